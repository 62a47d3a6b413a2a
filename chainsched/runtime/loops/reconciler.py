"""The loop that looks for missing alarms and wrong outstanding parts, and repairs them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from chainsched.flow.maintain.fsck import reconcile
from chainsched.runtime.loops.poller import Turn


def turn(now: datetime) -> Turn:
    """Look once, and say how many rows were repaired."""
    return Turn(did=reconcile(now=now))


def make_turn() -> Callable[[datetime], Turn]:
    """The turns of one process."""
    return turn
