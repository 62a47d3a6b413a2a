"""One log line when the database becomes unavailable and one when it is back, for all loops together."""

from __future__ import annotations

import logging
import threading
import time

logger = logging.getLogger(__name__)


SPREADING_AFTER = 60.0


class DatabaseOutage:
    """An outage of the database, as all threads of a process see it.

    It is over when every affected loop works again: one that only reads may work while the others cannot write.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: float | None = None
        self._affected: set[str] = set()

    def begin(self, error: Exception, *, at: str) -> None:
        """Note that a loop could not use the database."""
        now = time.monotonic()
        with self._lock:
            is_first = self._since is None
            # One loop alone may fail for long; that another one fails as well is news then.
            is_spreading = at not in self._affected and self._since is not None and now - self._since > SPREADING_AFTER
            self._since = self._since or now
            self._affected.add(at)
        if is_first or is_spreading:
            logger.error("The database is in trouble; the %s keeps trying: %s", at, " ".join(str(error).split()))

    def end(self, *, at: str) -> None:
        """Note that a loop could use the database."""
        if self._since is None:
            return
        with self._lock:
            self._affected.discard(at)
            if self._affected:
                return
            since, self._since = self._since, None
        if since is not None:
            logger.warning("The database is back after %.0f s.", time.monotonic() - since)


outage = DatabaseOutage()
