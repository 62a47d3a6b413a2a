"""How much may be said in a while, so that a storm of failures does not drown the log."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Leave(enum.Enum):
    """What one who has something to say may do."""

    SPEAK = "speak"
    SAY_ENOUGH = "say_enough"
    KEEP_SILENT = "keep_silent"


@dataclass(slots=True)
class LogLimit:
    """So many lines in so many seconds, counted from the first one; the times are monotonic seconds."""

    lines: int
    seconds: float
    _since: float | None = None
    _asked: int = 0

    def ask(self, *, now: float) -> Leave:
        """Take one line; the first that is refused may say that more was left out."""
        if self._since is None or now - self._since >= self.seconds:
            self._since, self._asked = now, 0
        self._asked += 1
        if self._asked <= self.lines:
            return Leave.SPEAK
        return Leave.SAY_ENOUGH if self._asked == self.lines + 1 else Leave.KEEP_SILENT
