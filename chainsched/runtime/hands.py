"""Whether a worker has anybody to work for it."""

from __future__ import annotations

import logging
import time

logger = logging.getLogger(__name__)

# How long there may be no child at all, as on a host that has no room for another process.
HELPLESS_SECONDS = 10.0


class Hands:
    """Says once that they are missing, and once that there are some again."""

    def __init__(self) -> None:
        self._seen_at = time.monotonic()
        self.are_missing = False

    def look(self, now: float, *, are_there: bool, are_wanted: bool) -> None:
        """Note whether there are any; a worker that drains has none in the end, and misses none."""
        if are_there:
            self._seen_at = now
        were_missing = self.are_missing
        self.are_missing = are_wanted and now - self._seen_at >= HELPLESS_SECONDS
        if self.are_missing and not were_missing:
            logger.error("No child came to life for %.0f s; nothing is kept for one until one does.", HELPLESS_SECONDS)
        if were_missing and are_there:
            logger.info("There is a child again.")
