"""Whether this process hears the notices of others, for its loops, which poll more often while it does not."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timedelta


class Hearing:
    """Whether notices are missed, as all threads of a process see it. Without a listener none are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lost_at: float | None = None
        self._deaf_since: datetime | None = None

    @property
    def is_lost(self) -> bool:
        return self._lost_at is not None

    def lose(self) -> None:
        """Note that no notice arrives."""
        with self._lock:
            self._lost_at = time.monotonic() if self._lost_at is None else self._lost_at

    def regain(self) -> None:
        """Note that a notice has arrived."""
        with self._lock:
            self._lost_at = self._deaf_since = None

    def deaf_since(self, now: datetime) -> datetime | None:
        """Since when no notice arrives, by the clock that ``now`` is from; None if they do."""
        with self._lock:
            if self._lost_at is not None and self._deaf_since is None:
                self._deaf_since = now - timedelta(seconds=time.monotonic() - self._lost_at)
            return self._deaf_since


hearing = Hearing()
