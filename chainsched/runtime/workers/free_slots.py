"""Room for claims, counted in one thread and filled in another."""

from __future__ import annotations

import logging
import threading
import time

logger = logging.getLogger(__name__)

# How long there may be no child at all, as on a host that has no room for another process.
NO_CHILD_SECONDS = 10.0


class FreeSlots:
    """For how many more claims there is room.

    The thread that has the children counts, the worker's thread hands claims over meanwhile: what is on the way
    has not been counted yet, and takes room all the same.
    """

    def __init__(self) -> None:
        self._handing_over = threading.Lock()
        self._handed_over = 0
        self._accepted = 0
        # One value, so that both numbers of a count are seen together.
        self._counted = (0, 0)

    @property
    def number(self) -> int:
        accepted, room = self._counted
        return max(0, room - (self._handed_over - accepted))

    def hand_over(self) -> None:
        """A claim is on its way; said by the worker's thread, or by two when one of them has just lost its lease."""
        with self._handing_over:
            self._handed_over += 1

    def accept(self) -> None:
        """A claim has arrived; this and the count are of the children's thread."""
        self._accepted += 1

    def count(self, room: int) -> None:
        """There is room for so many, beside all that has arrived."""
        self._counted = (self._accepted, room)


class MissingChildren:
    """Says once that they are missing, and once that there are some again."""

    def __init__(self) -> None:
        self._seen_at = time.monotonic()
        self.are_missing = False

    def look(self, now: float, *, are_there: bool, are_wanted: bool) -> None:
        """Note whether there are any; a worker that drains has none in the end, and misses none."""
        if are_there:
            self._seen_at = now
        were_missing = self.are_missing
        self.are_missing = are_wanted and now - self._seen_at >= NO_CHILD_SECONDS
        if self.are_missing and not were_missing:
            logger.error("No child came to life for %.0f s; nothing is kept for one until one does.", NO_CHILD_SECONDS)
        if were_missing and are_there:
            logger.info("There is a child again.")
