"""Before execute: a worker takes queued rows for itself.

Reads:  through dispatch the queue and the limits.
Writes: through dispatch the executions, which are in progress; through cancel_run rows of cancelled runs.
Next:   execute.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from chainsched.db.clock import database_now
from chainsched.domain.parking import ParkedFor
from chainsched.domain.routing import Pool
from chainsched.domain.run_context import Claim
from chainsched.flow.operate.cancel_run import cancel_late
from chainsched.flow.run.dispatch import TurnIsHeld, dispatch
from chainsched.flow.run.park import release
from chainsched.models import Process, parked_rows, queue_looks

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Taken:
    """The work that a worker took; how many other rows it cancelled; whether it should try again at once."""

    claims: Sequence[Claim] = field(default_factory=list)
    cancelled: int = 0
    has_more: bool = False


def take(*, process: Process, limit: int, now: datetime | None = None) -> Taken:
    """Take up to ``limit`` rows that the limits have room for; none once this process was declared lost.

    Looks first without the lock: most turns of a worker find no row, and need not wait for their turn to dispatch. It
    lets parked rows into line as well, as no dispatcher may be running. ``now`` is for that look alone: what is taken
    begins at a time that is read under the lock.
    """
    if limit < 1 or not _has_any_ready(process.pool, now=now or database_now()):
        return Taken()
    try:
        dispatched = dispatch(workflows=process.workflows, queues=process.queues, limit=limit, taker=process)
    except TurnIsHeld as error:
        logger.debug("Process %d takes nothing for now: %s.", process.pk, error)
        return Taken(has_more=True)
    cancelled = cancel_late(dispatched.cancelled_rows, now=database_now()) if dispatched.cancelled_rows else 0
    # Rows that were met and cannot start leave slots free for those behind them.
    has_more = dispatched.has_more and len(dispatched.claims) < limit and bool(dispatched.put_aside or cancelled)
    return Taken(dispatched.claims, cancelled, has_more)


def _has_any_ready(pool: Pool, *, now: datetime) -> bool:
    """Whether a row of the pool may start, after parked rows have come into line.

    Those of full groups only if there is no other: whoever takes a row of one lets in the next.
    """
    gone = parked_rows.find_releasable([pool], now=now)
    if gone - {ParkedFor.GROUP_FULL}:
        release([pool], now=now)
    if queue_looks.has_any_ready(now, pool=pool):
        return True
    return bool(gone) and release([pool], now=now) > 0 and queue_looks.has_any_ready(now, pool=pool)
