"""How a transaction of ours begins, on each database."""

from __future__ import annotations

from django.db.backends.base.base import BaseDatabaseWrapper

LOCK_TIMEOUT = "3s"
STATEMENT_TIMEOUT = "60s"
# A process that freezes inside a transaction loses it, so that nobody waits for it longer than this.
IDLE_TIMEOUT = "10s"
PATIENCE = "10min"
LOCK_NOT_AVAILABLE = "55P03"


def begin(connection: BaseDatabaseWrapper, *, is_patient: bool = False) -> None:
    """The first statement of a transaction.

    PostgreSQL: bound every wait, for this transaction only, so that a pooler hands on a clean session.
    SQLite: write at once. A transaction that reads first and writes later fails with "database is locked" when
    somebody else wrote in between, and no timeout helps; one that begins with a write waits its turn.
    """
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "SELECT set_config('lock_timeout', %s, true), set_config('statement_timeout', %s, true), "
                "set_config('idle_in_transaction_session_timeout', %s, true)",
                [PATIENCE] * 3 if is_patient else [LOCK_TIMEOUT, STATEMENT_TIMEOUT, IDLE_TIMEOUT],
            )
        else:
            cursor.execute("UPDATE chainsched_loop SET turned_at = turned_at WHERE name = ''")


def turn_wal_on(connection: BaseDatabaseWrapper) -> None:
    """Let readers and a writer work side by side on SQLite; the mode stays with the file."""
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA journal_mode=WAL")


def is_lock_timeout(error: Exception) -> bool:
    """Whether PostgreSQL gave up waiting for a row that somebody else holds."""
    return getattr(error.__cause__, "sqlstate", None) == LOCK_NOT_AVAILABLE
