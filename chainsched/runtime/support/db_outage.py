"""One line in the log when the database goes away and one when it is back, however many loops notice."""

from __future__ import annotations

import logging
import threading
import time

logger = logging.getLogger(__name__)


SPREADING_AFTER = 60.0


class DatabaseOutage:
    """What the threads of a process know together about the database.

    It is over when all whom it hit are well again: a loop that only reads may be, while no other can write.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: float | None = None
        self._hit: set[str] = set()

    def begin(self, error: Exception, *, at: str) -> None:
        """Somebody could not work with it."""
        now = time.monotonic()
        with self._lock:
            is_first = self._since is None
            # One loop may be in trouble of its own for long; that another joins it then is a change.
            is_spreading = at not in self._hit and self._since is not None and now - self._since > SPREADING_AFTER
            self._since = self._since or now
            self._hit.add(at)
        if is_first or is_spreading:
            logger.error(
                "The database is in trouble; the %s waits and goes on trying: %s", at, " ".join(str(error).split())
            )

    def end(self, *, at: str) -> None:
        """Somebody could."""
        if self._since is None:
            return
        with self._lock:
            self._hit.discard(at)
            if self._hit:
                return
            since, self._since = self._since, None
        if since is not None:
            logger.warning("The database is back after %.0f s.", time.monotonic() - since)


outage = DatabaseOutage()
