"""The job dispatcher: wakes workers that take queued rows for themselves, or submits rows to the task server."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from chainsched.conf import get_config
from chainsched.db import notify
from chainsched.flow.operate.cancel_run import cancel_late
from chainsched.flow.run.dispatch import BATCH, dispatch
from chainsched.models import Metadata, WorkQueue
from chainsched.runtime.loops.poller import Turn
from chainsched.servers import TaskServer, get_server

# Executions that were submitted so long ago and are still pending are submitted again: a message may be lost.
RESUBMIT_AFTER = timedelta(minutes=1)


def turn(now: datetime, *, limit: int = BATCH) -> Turn:
    """Give the task server what it has room for; ``next_at`` if a row comes due before the next turn.

    Where workers take rows for themselves it wakes them for rows that wait, as those whose time has just come.
    """
    server = get_server()
    room = server.room(now=now)
    limit = limit if room is None else min(limit, room)
    return _submit(server, now=now, limit=limit) if limit else _wake_workers(now)


def _wake_workers(now: datetime) -> Turn:
    is_waiting = WorkQueue.objects.has_any_ready(now)
    if is_waiting:
        notify.send(notify.WORKER)
    return Turn(did=int(is_waiting), next_at=_next_time(now))


def _submit(server: TaskServer, *, now: datetime, limit: int) -> Turn:
    dispatched = dispatch(workflows=server.known_workflows(now=now), limit=limit)
    server.submit([*dispatched.execution_ids, *Metadata.objects.unclaimed(before=now - RESUBMIT_AFTER, limit=limit)])
    cancelled = cancel_late(dispatched.cancelled_rows, now=now)
    is_getting_on = bool(dispatched.execution_ids or dispatched.put_aside or cancelled)
    has_more = dispatched.has_more and is_getting_on
    return Turn(did=len(dispatched.execution_ids), next_at=_next_time(now), has_more=has_more)


def _next_time(now: datetime) -> datetime | None:
    next_turn = now + timedelta(seconds=get_config().dispatcher_interval)
    return WorkQueue.objects.next_not_before(after=now, until=next_turn)


def make_turn() -> Callable[[datetime], Turn]:
    """The turns of one process."""
    return turn
