"""The loop that carries out bulk decisions: an operator's decision about many dead letters, one batch a turn."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from chainsched.flow.operate.bulk_decisions import carry_out
from chainsched.runtime.loops.poller import Turn


def turn(now: datetime) -> Turn:
    """Apply the decision to the next batch of dead letters; ``has_more`` until none is left."""
    carried = carry_out(now=now)
    return Turn(did=carried.letters, has_more=carried.has_more)


def make_turn() -> Callable[[datetime], Turn]:
    """The turns of one process."""
    return turn
