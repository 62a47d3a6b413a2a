"""The one clock that decides: the database's. Hosts' clocks differ."""

from __future__ import annotations

from datetime import UTC, datetime

from django.db import connections

from chainsched.conf import get_config


def database_now() -> datetime:
    """The present time by the database's clock, aware, in UTC.

    SQLite lives in this process, so its clock is the host's.
    """
    connection = connections[get_config().database]
    if connection.vendor == "sqlite":
        return datetime.now(UTC)
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        now: datetime = cursor.fetchone()[0]
    return now.astimezone(UTC)
