"""Monotonic times until which something is waited for."""

from __future__ import annotations

import time


def seconds_until(deadline: float) -> float:
    """How long it is until then; nothing once it is over."""
    return max(0.0, deadline - time.monotonic())


def is_before(deadline: float | None) -> bool:
    """Whether there is time left; without a deadline there always is."""
    return deadline is None or time.monotonic() < deadline
