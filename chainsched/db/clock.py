"""The clock that all decisions use: the database's. The clocks of hosts differ."""

from __future__ import annotations

from datetime import UTC, datetime

from django.db import connections

from chainsched.conf import get_config

_stopped_at: datetime | None = None


def database_now() -> datetime:
    """The present time by the database's clock, aware, in UTC.

    SQLite runs inside this process, so its clock is the host's.
    """
    if _stopped_at is not None:
        return _stopped_at
    connection = connections[get_config().database]
    if connection.vendor == "sqlite":
        return datetime.now(UTC)
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        now: datetime = cursor.fetchone()[0]
    return now.astimezone(UTC)


def stop_clock(at: datetime | None) -> None:
    """For tests: stop the clock of this process at this time until the next call; None lets it run again."""
    global _stopped_at  # noqa: PLW0603 - one process, one clock
    _stopped_at = at
