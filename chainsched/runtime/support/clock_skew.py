"""One log line when this host's clock and the database's differ, and one when they agree again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from django.db import connections

from chainsched.conf import get_config
from chainsched.db.clock import database_now

logger = logging.getLogger(__name__)

TOLERANCE = timedelta(seconds=5)
# Smaller than TOLERANCE, so that a skew around TOLERANCE is not logged again and again.
AGREEMENT = timedelta(seconds=2.5)


class ClockSkew:
    """The difference between the two clocks, measured at each heartbeat of this process."""

    def __init__(self, host_now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._host_now = host_now
        self._lock = threading.Lock()
        self._is_large = False

    def database_now(self) -> datetime:
        """The time by the database's clock, compared with this host's. SQLite uses the host's clock."""
        asked_at = self._host_now()
        now = database_now()
        if connections[get_config().database].vendor != "sqlite":
            self._note(_distance(now, asked_at, self._host_now()))
        return now

    def _note(self, distance: timedelta) -> None:
        with self._lock:
            was_large = self._is_large
            self._is_large = is_large = abs(distance) > (AGREEMENT if was_large else TOLERANCE)
        if is_large and not was_large:
            logger.warning(
                "The clock of this host is %.0f s %s the database's. Schedules and leases follow the database's; the "
                "times in logs and of jobs do not. Let both hosts set their clocks by NTP.",
                abs(distance).total_seconds(),
                "behind" if distance > timedelta(0) else "ahead of",
            )
        elif was_large and not is_large:
            logger.warning("The clock of this host agrees with the database's again.")


def _distance(now: datetime, asked_at: datetime, answered_at: datetime) -> timedelta:
    """How far the database's time is outside the call that read it: a slow reply is no skew."""
    return max(now - answered_at, timedelta(0)) + min(now - asked_at, timedelta(0))


skew = ClockSkew()
