"""The clock that all decisions use: the database's. The clocks of hosts differ."""

from __future__ import annotations

from datetime import UTC, datetime

from django.db import connections

from chainsched.conf import get_config
from chainsched.db.compiled import binding_cursor

_stopped_at: datetime | None = None


def database_now() -> datetime:
    """The present time by the database's clock, aware, in UTC.

    SQLite runs inside this process, so its clock is the host's.
    """
    connection = connections[get_config().database]
    if _stopped_at is not None or connection.vendor == "sqlite":
        return present_time()
    with binding_cursor(connection) as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return present_time(cursor.fetchone()[0])


def present_time(read: datetime | None = None) -> datetime:
    """The same, where a statement has ``read`` the clock of a database outside of this process."""
    if _stopped_at is not None:
        return _stopped_at
    return datetime.now(UTC) if read is None else read.astimezone(UTC)


def stop_clock(at: datetime | None) -> None:
    """For tests: stop the clock of this process at this time until the next call; None lets it run again."""
    global _stopped_at  # noqa: PLW0603 - one process, one clock
    _stopped_at = at
