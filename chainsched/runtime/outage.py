"""One line in the log when the database goes away and one when it is back, however many loops notice."""

from __future__ import annotations

import logging
import threading
import time

logger = logging.getLogger(__name__)


class Outage:
    """What the threads of a process know together about the database."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: float | None = None

    def begin(self, error: Exception) -> None:
        """Somebody could not reach it."""
        with self._lock:
            is_news, self._since = self._since is None, self._since or time.monotonic()
        if is_news:
            logger.error("The database is in trouble; everything waits and goes on trying: %s", str(error).strip())

    def end(self) -> None:
        """Somebody reached it."""
        if self._since is None:
            return
        with self._lock:
            since, self._since = self._since, None
        if since is not None:
            logger.warning("The database is back after %.0f s.", time.monotonic() - since)


outage = Outage()
