"""Deadlines as monotonic times."""

from __future__ import annotations

import time


def seconds_until(deadline: float) -> float:
    """The seconds until the deadline; 0 once it has passed."""
    return max(0.0, deadline - time.monotonic())


def is_before(deadline: float | None) -> bool:
    """Whether the deadline has not passed; always true without one."""
    return deadline is None or time.monotonic() < deadline
