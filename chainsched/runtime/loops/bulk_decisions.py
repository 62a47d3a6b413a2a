"""The loop that carries out bulk decisions: what somebody decided about many dead letters, a batch a turn."""

from __future__ import annotations

from datetime import datetime

from chainsched.flow.operate.bulk_decisions import carry_out
from chainsched.runtime.loops.poller import Turn


def turn(now: datetime) -> Turn:
    """Decide about the next batch of letters; there is more to do at once until none is left."""
    carried = carry_out(now=now)
    return Turn(did=carried.letters, has_more=carried.has_more)
