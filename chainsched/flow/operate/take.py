"""Before execute: a worker takes queued rows for itself.

Reads:  through dispatch the queue and the limits.
Writes: through dispatch the executions, which are in progress; through cancel_run rows of cancelled runs.
Next:   execute.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from chainsched.db.clock import database_now
from chainsched.domain.run_context import Claim
from chainsched.flow.operate.cancel_run import cancel_late
from chainsched.flow.run.dispatch import TurnIsHeld, dispatch
from chainsched.models import Process, WorkQueue

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Taken:
    """The work that a worker took; how many other rows it cancelled; whether it should try again at once."""

    claims: Sequence[Claim] = field(default_factory=list)
    cancelled: int = 0
    has_more: bool = False


def take(*, process: Process, workflows: Collection[str], limit: int) -> Taken:
    """Take up to ``limit`` rows that the limits have room for; none once this process was declared lost.

    Looks first without the lock: most turns of a worker find no row, and need not wait for their turn to dispatch.
    """
    if limit < 1 or not WorkQueue.objects.has_any_ready(database_now(), workflows=workflows):
        return Taken()
    try:
        dispatched = dispatch(workflows=workflows, limit=limit, taker=process)
    except TurnIsHeld as error:
        logger.debug("Process %d takes nothing for now: %s.", process.pk, error)
        return Taken(has_more=True)
    cancelled = cancel_late(dispatched.cancelled_rows, now=database_now()) if dispatched.cancelled_rows else 0
    # Rows that were met and cannot start leave slots free for those behind them.
    has_more = dispatched.has_more and len(dispatched.claims) < limit and bool(dispatched.put_aside or cancelled)
    return Taken(dispatched.claims, cancelled, has_more)
