"""Sessions of the database: which one holds a transaction open, and whether new transactions may write."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping
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


@dataclass(frozen=True, slots=True)
class Nesting:
    """How deep a connection stands in blocks of transactions, and whether statements outside of them are committed."""

    blocks: int
    is_autocommit: bool
    is_open: bool

    @classmethod
    def of(cls, connection: BaseDatabaseWrapper) -> Nesting:
        is_autocommit = connection.autocommit if connection.connection else connection.settings_dict["AUTOCOMMIT"]
        return cls(len(connection.atomic_blocks), is_autocommit, is_in_transaction(connection))


def nestings() -> dict[str, Nesting]:
    """How this thread's connections stand now, by alias."""
    return {connection.alias: Nesting.of(connection) for connection in connections.all(initialized_only=True)}


def undo_left_open(before: Mapping[str, Nesting]) -> list[str]:
    """Let this thread's connections stand as before; returns those in which a transaction had been left open.

    The writes in these transactions are rolled back, and none that were made before.
    """
    opened = [connection for connection in connections.all(initialized_only=True) if connection.connection]
    return [connection.alias for connection in opened if _is_undone(connection, before.get(connection.alias))]


@contextlib.contextmanager
def savepoints() -> Iterator[list[str]]:
    """Let the open transactions of this thread's connections outlast what breaks them; yields those that were broken.

    The writes inside are rolled back in these.
    """
    opened = [connection for connection in connections.all(initialized_only=True) if connection.in_atomic_block]
    marks = {connection: connection.savepoint() for connection in opened if not connection.needs_rollback}
    broken: list[str] = []
    yield broken
    for connection, mark in marks.items():
        if mark is None:
            continue
        if connection.needs_rollback:
            connection.needs_rollback = False
            connection.savepoint_rollback(mark)
            broken.append(connection.alias)
        connection.savepoint_commit(mark)


def _is_undone(connection: BaseDatabaseWrapper, before: Nesting | None) -> bool:
    before = before or Nesting(0, connection.settings_dict["AUTOCOMMIT"], is_open=False)
    is_left_open = len(connection.atomic_blocks) > before.blocks or (is_in_transaction(connection) > before.is_open)
    while len(connection.atomic_blocks) > before.blocks:
        connection.atomic_blocks[-1].__exit__(RuntimeError, RuntimeError("left open"), None)
    if not before.is_open and (is_left_open or connection.autocommit is not before.is_autocommit):
        connection.rollback()
        connection.set_autocommit(before.is_autocommit)
    return is_left_open


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
