"""A limit on log lines per period, so that many failures at once do not flood the log."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class LogDecision(enum.Enum):
    """Whether a log line is written, replaced by a notice that more follow, or skipped."""

    WRITE = "write"
    WRITE_NOTICE = "write_notice"
    SKIP = "skip"


@dataclass(slots=True)
class LogLimit:
    """At most ``lines`` in ``seconds``, counted from the first line; the times are monotonic seconds."""

    lines: int
    seconds: float
    _since: float | None = None
    _count: int = 0

    def decide(self, *, now: float) -> LogDecision:
        """Count one line; in place of the first one over the limit, the caller logs that more are left out."""
        if self._since is None or now - self._since >= self.seconds:
            self._since, self._count = now, 0
        self._count += 1
        if self._count <= self.lines:
            return LogDecision.WRITE
        return LogDecision.WRITE_NOTICE if self._count == self.lines + 1 else LogDecision.SKIP
