"""The job dispatcher: wakes workers that take queued rows for themselves, or submits rows to the task server."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from chainsched.conf import get_config
from chainsched.db import notify
from chainsched.flow.operate.cancel_run import cancel_late
from chainsched.flow.run.dispatch import BATCH, Dispatched, dispatch
from chainsched.models import Metadata, WorkQueue
from chainsched.runtime.loops.poller import Turn
from chainsched.servers import TaskServer, get_server

# Executions that were submitted so long ago and are still pending are submitted again: a message may be lost.
RESUBMIT_SECONDS = 60.0
# Where workers take rows for themselves, they hear of new ones when this loop does, and are not to wait for it.
PATIENCE_SECONDS = 0.05


class Dispatcher:
    """Gives the task server executions that it has room for, and again those that it has not claimed for a while.

    Where workers take rows for themselves it wakes them for rows that are ready, as those that have just come due.
    """

    def __init__(self) -> None:
        self._resubmitted_at: datetime | None = None
        # The last execution of those that were submitted again.
        self._resubmitted_to = 0

    def turn(self, now: datetime, *, limit: int = BATCH) -> Turn:
        """Take one turn; ``next_at`` if a row comes due before the next one."""
        server = get_server()
        room = server.room(now=now)
        dispatched = self._dispatch(server, now=now, limit=limit if room is None else min(limit, room))
        if self._is_time_to_resubmit(now):
            self._resubmit(server, now=now)
        cancelled = cancel_late(dispatched.cancelled_rows, now=now)
        did = len(dispatched.execution_ids)
        if room == 0 and WorkQueue.objects.has_any_ready(now):
            # Workers take rows for themselves, in this process and in others.
            notify.send(notify.WORKER)
            did = 1
        is_getting_on = bool(dispatched.execution_ids or dispatched.put_aside or cancelled)
        return Turn(
            did=did,
            next_at=_next_time(now),
            has_more=dispatched.has_more and is_getting_on,
            patience=PATIENCE_SECONDS if room == 0 else 0.0,
        )

    def _dispatch(self, server: TaskServer, *, now: datetime, limit: int) -> Dispatched:
        if limit < 1:
            return Dispatched()
        dispatched = dispatch(workflows=server.known_workflows(now=now), limit=limit)
        server.submit(dispatched.execution_ids)
        return dispatched

    def _is_time_to_resubmit(self, now: datetime) -> bool:
        last = self._resubmitted_at
        return last is None or (now - last).total_seconds() >= RESUBMIT_SECONDS

    def _resubmit(self, server: TaskServer, *, now: datetime) -> None:
        """Submit the next ones again, and after the last the first: a long backlog is not sent all at once."""
        self._resubmitted_at = now
        before = now - timedelta(seconds=RESUBMIT_SECONDS)
        unclaimed = Metadata.objects.unclaimed(before=before, after=self._resubmitted_to, limit=BATCH)
        self._resubmitted_to = unclaimed[-1] if len(unclaimed) == BATCH else 0
        if unclaimed:
            server.submit(unclaimed)


def _next_time(now: datetime) -> datetime | None:
    next_turn = now + timedelta(seconds=get_config().dispatcher_interval)
    return WorkQueue.objects.next_not_before(after=now, until=next_turn)


def make_turn() -> Callable[[datetime], Turn]:
    """The turns of one process."""
    return Dispatcher().turn
