"""Before execute: a worker takes queued rows for itself.

Reads:  through dispatch the queue and the limits.
Writes: through dispatch the executions, which are in progress; through cancel_run rows of cancelled runs.
Next:   execute.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from chainsched.db.clock import database_now
from chainsched.domain.run_context import Claim
from chainsched.flow.operate.cancel_run import cancel_late
from chainsched.flow.run.dispatch import dispatch
from chainsched.models import Process, WorkQueue


def take(*, process: Process, workflows: Collection[str], limit: int) -> Sequence[Claim]:
    """Take up to ``limit`` rows that the limits have room for; none once this process was declared lost.

    Looks first without the lock: most turns of a worker find no row, and need not wait for their turn to dispatch.
    """
    if limit < 1 or not WorkQueue.objects.has_any_in_line():
        return []
    dispatched = dispatch(workflows=workflows, limit=limit, taker=process)
    if dispatched.cancelled_rows:
        cancel_late(dispatched.cancelled_rows, now=database_now())
    return dispatched.claims
