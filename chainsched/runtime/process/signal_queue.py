"""The signals of a process that wait for receivers: bounded, in order, with a count of those that were dropped."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

from chainsched.flow.announce import Announcement

logger = logging.getLogger(__name__)

# Only ids wait, so this many take a few megabytes.
MAX_ROWS = 100_000
# The rows that are loaded at once; a receiver sees a row as it was at that moment.
LOADED = 100


@dataclass(slots=True)
class Part:
    """A signal for a few rows: when it was put, by the monotonic clock, and for how many it has still to be sent."""

    announcement: Announcement
    put_at: float
    left: int


class SignalQueue:
    """Filled by the threads that commit, emptied by one that calls receivers. It holds at most ``max_rows`` rows."""

    def __init__(self, *, max_rows: int = MAX_ROWS) -> None:
        self._max_rows = max_rows
        # The first part stays here while it is being sent.
        self._parts: deque[Part] = deque()
        self._changed = threading.Condition()
        self._waiting = 0
        self._dropped = 0
        self._is_dropping = False
        self._is_ending = False

    def put(self, announcement: Announcement) -> None:
        """Queue a signal for the rows that there is room for, and count the others as dropped; returns at once."""
        with self._changed:
            taken = announcement.ids[: max(0, self._max_rows - self._waiting)]
            for part in replace(announcement, ids=taken).parts(LOADED):
                self._parts.append(Part(part, time.monotonic(), left=len(part.ids)))
            self._waiting += len(taken)
            if len(taken) < len(announcement.ids):
                self._note_full()
                self._dropped += len(announcement.ids) - len(taken)
            self._changed.notify_all()

    def first(self) -> Part | None:
        """The first part, as soon as there is one; None if there is none and no more are to be waited for."""
        with self._changed:
            self._changed.wait_for(lambda: self._parts or self._is_ending)
            return self._parts[0] if self._parts else None

    def note_sent(self, part: Part) -> None:
        """The receivers were called for one row of the first part."""
        with self._changed:
            if self._is_first(part):
                part.left -= 1
                self._waiting -= 1

    def remove(self, part: Part, *, is_dropped: bool = False) -> None:
        """Remove the first part. Rows for which it was not sent are gone from the database, or it is dropped."""
        with self._changed:
            if self._is_first(part):
                self._parts.popleft()
                self._waiting -= part.left
                self._dropped += part.left if is_dropped else 0
            if not self._parts:
                self._note_empty()

    def end(self) -> None:
        """Let ``first`` return None, instead of waiting, once all signals are sent."""
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()

    def drop_all(self) -> int:
        """Drop the signals that wait; returns how many these are."""
        with self._changed:
            unsent, self._waiting = self._waiting, 0
            self._dropped += unsent
            self._parts.clear()
            return unsent

    def as_facts(self) -> dict[str, Any]:
        """How many signals wait and for how long, and how many were dropped; empty if there is nothing to report."""
        with self._changed:
            if not (self._parts or self._dropped):
                return {}
            return {
                "waiting": self._waiting,
                "oldest_seconds": round(time.monotonic() - self._parts[0].put_at, 1) if self._parts else 0,
                "dropped": self._dropped,
                "is_dropping": self._is_dropping,
            }

    def _is_first(self, part: Part) -> bool:
        """Whether it is still there: all may have been dropped while it was being sent."""
        return bool(self._parts) and self._parts[0] is part

    def _note_full(self) -> None:
        """Log the first drop of a series, which lasts until no signal waits any more."""
        if not self._is_dropping:
            self._is_dropping = True
            logger.error(
                "%d signals wait for receivers; further ones are dropped. Make receivers quick.", self._waiting
            )

    def _note_empty(self) -> None:
        if self._is_dropping:
            self._is_dropping = False
            logger.warning("No signal waits for receivers any more; %d were dropped since the start.", self._dropped)
