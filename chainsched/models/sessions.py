"""Other sessions of the database: who holds a transaction open."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import connections

from chainsched.conf import get_config


@dataclass(frozen=True, slots=True)
class Session:
    """A session with an open transaction: its backend, what it calls itself, and since when."""

    pid: int
    name: str
    began_at: datetime


def oldest_transaction() -> Session | None:
    """The session whose transaction has been open longest, on PostgreSQL; vacuum cannot clean up behind it."""
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
