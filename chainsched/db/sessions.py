"""Sessions of the database: which one holds a transaction open, and whether new transactions may write."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from chainsched.conf import get_config

# As PostgreSQL's own library counts them.
IN_TRANSACTION, IN_FAILED_TRANSACTION = 2, 3


@dataclass(frozen=True, slots=True)
class Session:
    """A session with an open transaction: the pid of its backend, its application name, and when it began."""

    pid: int
    name: str
    began_at: datetime


def oldest_transaction() -> Session | None:
    """The session with the oldest open transaction, on PostgreSQL; vacuum cannot remove rows deleted since then."""
    connection = connections[get_config().database]
    if connection.vendor != "postgresql":
        return None
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid, coalesce(nullif(application_name, ''), usename, ''), xact_start FROM pg_stat_activity "
            "WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid() "
            "AND backend_type = 'client backend' ORDER BY xact_start LIMIT 1"
        )
        found = cursor.fetchone()
    return Session(*found) if found else None


@dataclass(frozen=True, slots=True)
class Access:
    """Whether the database refuses writes, and for which reason."""

    is_standby: bool = False
    is_read_only: bool = False


def access() -> Access:
    """Whether PostgreSQL lets new transactions write; the present transaction may differ."""
    connection = connections[get_config().database]
    if connection.vendor != "postgresql":
        return Access()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_is_in_recovery(), current_setting('default_transaction_read_only')::boolean")
        return Access(*cursor.fetchone())


def is_in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Whether a transaction is open in which rows may have been written, regardless of how it was begun.

    Django knows only its own transactions, not one that is open because autocommit is off, or after a plain BEGIN.
    """
    session: Any = connection.connection
    if connection.in_atomic_block or session is None:
        return connection.in_atomic_block
    if connection.vendor == "sqlite":
        # A connection that was closed without Django is in no transaction.
        with contextlib.suppress(sqlite3.ProgrammingError):
            return bool(session.in_transaction)
    if connection.vendor == "postgresql":
        status = session.info.transaction_status
        return status == IN_FAILED_TRANSACTION or (status == IN_TRANSACTION and _may_have_written(connection))
    return False


def _may_have_written(connection: BaseDatabaseWrapper) -> bool:
    """Whether the transaction may have written. Without autocommit, a read also begins one on PostgreSQL."""
    if connection.autocommit:
        return True
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_current_xact_id_if_assigned() IS NOT NULL")
            return bool(cursor.fetchone()[0])
    except Error:
        # The session is gone, and its writes with it.
        return True
