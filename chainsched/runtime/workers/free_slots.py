"""Free slots for claims, counted in one thread and filled in another."""

from __future__ import annotations

import logging
import threading
import time

logger = logging.getLogger(__name__)

# How long there may be no child at all, as on a host where no process can be forked.
NO_CHILD_SECONDS = 10.0


class FreeSlots:
    """The number of further claims that can be taken.

    The runner's thread counts the slots while the worker's thread hands claims over: claims on the way have not been
    counted yet, and take a slot all the same.
    """

    def __init__(self) -> None:
        self._handing_over = threading.Lock()
        self._handed_over = 0
        self._accepted = 0
        # One value, so that both numbers of a count are seen together.
        self._counted = (0, 0)
        # Whether the last answer was that there is none.
        self._is_awaited = False

    @property
    def number(self) -> int:
        accepted, room = self._counted
        return max(0, room - (self._handed_over - accepted))

    def ask(self) -> int:
        """The number, for the worker's thread; if it is 0, the next ``count`` of more says that it should ask again.

        A result may be collected before the slot that it frees is counted.
        """
        # Before the look: a count in between then wakes the worker once too often, and never once too seldom.
        self._is_awaited = True
        number = self.number
        self._is_awaited = number == 0
        return number

    def hand_over(self, number: int) -> None:
        """Claims are on their way; called by the worker's thread, or by two when one has just lost its lease."""
        with self._handing_over:
            self._handed_over += number

    def accept(self, number: int) -> None:
        """Claims have arrived; this and ``count`` are called by the runner's thread only."""
        self._accepted += number

    def count(self, room: int) -> bool:
        """Set the number of free slots, given all claims that have arrived. True if the worker waits for one."""
        self._counted = (self._accepted, room)
        return self._is_awaited and self.number > 0


class MissingChildren:
    """Logs once that there are no children, and once that there are some again."""

    def __init__(self) -> None:
        self._seen_at = time.monotonic()
        self.are_missing = False

    def check(self, now: float, *, are_there: bool, are_wanted: bool, waiting: int) -> None:
        """Note whether there are children; a draining worker needs none. ``waiting`` jobs are returned without them."""
        if are_there:
            self._seen_at = now
        were_missing = self.are_missing
        self.are_missing = are_wanted and now - self._seen_at >= NO_CHILD_SECONDS
        if self.are_missing and not were_missing:
            logger.error("No worker child started within %.0f s; returning %d claimed jobs.", NO_CHILD_SECONDS, waiting)
        if were_missing and are_there:
            logger.info("A worker child has started; taking jobs again.")
