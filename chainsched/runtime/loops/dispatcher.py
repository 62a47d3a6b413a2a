"""The job dispatcher: parks rows and wakes the workers that take the others, or submits rows to the task server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta

from chainsched.conf import get_config
from chainsched.db import notify
from chainsched.domain.routing import Pool
from chainsched.flow.maintain.analyze import analyze_grown
from chainsched.flow.operate.cancel_run import cancel_late
from chainsched.flow.run.dispatch import BATCH, dispatch
from chainsched.flow.run.park import park, release
from chainsched.models import Metadata, WorkQueue, queue_looks
from chainsched.models.parked_rows import PAGE
from chainsched.runtime.loops.poller import Turn
from chainsched.servers import TaskServer, get_server

# Executions that were submitted so long ago and are still pending are submitted again: a message may be lost.
RESUBMIT_SECONDS = 60.0
# The line is searched for rows to park once in so long, or at once after a page of which some were parked.
PARK_SECONDS = 1.0
# Where workers take rows for themselves, they hear of new ones when this loop does, and are not to wait for it.
PATIENCE_SECONDS = 0.2


class Dispatcher:
    """Keeps the line short for workers that take rows for themselves, and wakes them for rows that are ready.

    Another task server gets executions that it has room for, those again that it has not claimed for a while, and the
    names of those that are to stop.
    """

    def __init__(self) -> None:
        self._resubmitted_at: datetime | None = None
        # The last execution of those that were submitted again.
        self._resubmitted_to = 0
        self._parked_at: datetime | None = None
        self._stopping: set[int] = set()

    def turn(self, now: datetime, *, limit: int = BATCH) -> Turn:
        """Take one turn; ``next_at`` if a row comes due before the next one."""
        server = get_server()
        pools = server.pools(now=now)
        fed = [pool for pool in pools if pool.is_fed]
        if not fed:
            return self._keep_line(pools, now=now)
        turns = [self._submit(server, pool, now=now, limit=limit) for pool in fed]
        released = release(pools, now=now)
        self._repeat(server, now=now)
        self._cancel(server)
        return Turn(
            did=sum(turn.did for turn in turns) + released,
            next_at=_next_time(now),
            has_more=any(turn.has_more for turn in turns) or released > 0,
        )

    def _keep_line(self, pools: Collection[Pool], *, now: datetime) -> Turn:
        """Let parked rows in, park others, and wake workers of all processes for those that are ready."""
        released = release(pools, now=now)
        again_at = self._next_parking(now)
        parked = 0
        if again_at is None and queue_looks.is_any_in_line():
            analyze_grown()
            parked = park(pools, now=now)
            self._parked_at = None if parked else now
        has_ready = queue_looks.has_any_ready(now)
        if has_ready:
            notify.send(notify.WORKER)
        times = [time for time in (_next_time(now), again_at if has_ready else None) if time is not None]
        return Turn(
            did=int(has_ready or released > 0),
            next_at=min(times, default=None),
            has_more=parked > 0 or released >= PAGE,
            patience=PATIENCE_SECONDS,
        )

    def _next_parking(self, now: datetime) -> datetime | None:
        """When the line is searched again; None if now."""
        if self._parked_at is None:
            return None
        next_at = self._parked_at + timedelta(seconds=PARK_SECONDS)
        return next_at if self._parked_at <= now < next_at else None

    def _submit(self, server: TaskServer, pool: Pool, *, now: datetime, limit: int) -> Turn:
        """Dispatch as much as a pool of the server has room for."""
        room = limit if pool.room is None else min(limit, pool.room)
        dispatched = dispatch(workflows=pool.workflows, queues=pool.queues, limit=room)
        server.submit(dispatched.execution_ids)
        cancelled = cancel_late(dispatched.cancelled_rows, now=now)
        is_getting_on = bool(dispatched.execution_ids or dispatched.put_aside or cancelled)
        return Turn(did=len(dispatched.execution_ids), has_more=dispatched.has_more and is_getting_on)

    def _repeat(self, server: TaskServer, *, now: datetime) -> None:
        """Submit the next ones again, once a minute, and after the last the first: a long backlog goes in parts."""
        last = self._resubmitted_at
        if last is not None and (now - last).total_seconds() < RESUBMIT_SECONDS:
            return
        self._resubmitted_at = now
        before = now - timedelta(seconds=RESUBMIT_SECONDS)
        unclaimed = Metadata.objects.unclaimed(before=before, after=self._resubmitted_to, limit=BATCH)
        self._resubmitted_to = unclaimed[-1] if len(unclaimed) == BATCH else 0
        if unclaimed:
            server.submit(unclaimed)

    def _cancel(self, server: TaskServer) -> None:
        """Name the running executions that were asked to stop, each once."""
        asked: Sequence[int] = Metadata.objects.asked_to_stop()
        if new := [id_ for id_ in asked if id_ not in self._stopping]:
            server.cancel(new)
        self._stopping = set(asked)


def _next_time(now: datetime) -> datetime | None:
    next_turn = now + timedelta(seconds=get_config().dispatcher_interval)
    return WorkQueue.objects.next_not_before(after=now, until=next_turn)


def make_turn() -> Callable[[datetime], Turn]:
    """The turns of one process."""
    return Dispatcher().turn
