"""The job dispatcher: each turn dispatches the queued rows that the limits have room for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from chainsched.conf import get_config
from chainsched.flow.operate.cancel_run import cancel_late
from chainsched.flow.run.dispatch import BATCH, dispatch
from chainsched.models import WorkQueue
from chainsched.runtime.loops.poller import Turn
from chainsched.servers import get_server


def turn(now: datetime, *, limit: int = BATCH) -> Turn:
    """Dispatch one batch and submit it to the task server; ``next_at`` if a row comes due before the next turn."""
    server = get_server()
    dispatched = dispatch(workflows=server.known_workflows(now=now), limit=limit)
    server.submit(dispatched.execution_ids)
    cancelled = cancel_late(dispatched.cancelled_rows, now=now)
    is_getting_on = bool(dispatched.execution_ids or dispatched.put_aside or cancelled)
    next_turn = now + timedelta(seconds=get_config().dispatcher_interval)
    next_at = WorkQueue.objects.next_not_before(after=now, until=next_turn)
    return Turn(did=len(dispatched.execution_ids), next_at=next_at, has_more=dispatched.has_more and is_getting_on)


def make_turn() -> Callable[[datetime], Turn]:
    """The turns of one process."""
    return turn
