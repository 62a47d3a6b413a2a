"""For tests of projects that use chainsched: the engine step by step, at a time that the test chooses.

    with Workbench() as bench:
        bench.seed()                        # the schedules that schedules.py declares
        assert bench.drain() == ["extract", "transform", "load"]
        bench.run_for(days=2)               # two days of schedules, retries and nights with changing clocks
        bench.assert_queued()               # no row is left in the queue

All code runs in the calling thread and inside the test's transaction, without processes and waits.
"""

from __future__ import annotations

import os
import socket
from datetime import datetime, timedelta
from functools import cached_property
from typing import Self

from chainsched.db.clock import database_now, stop_clock
from chainsched.domain.outcomes import Finished
from chainsched.flow.operate.cancel_run import cancel_late
from chainsched.flow.run.claim import claim
from chainsched.flow.run.dispatch import dispatch
from chainsched.flow.run.execute import execute
from chainsched.flow.run.record import Recorded, record
from chainsched.flow.schedule.declare import Schedules, schedules
from chainsched.flow.schedule.seed import Seeded, seed
from chainsched.models import JoinState, ManifestState, Metadata, Process, WorkQueue
from chainsched.registry import registry
from chainsched.runtime.loops import manager

MAX_ROUNDS = 10_000


class Workbench:
    """Takes the turns of all loops one after the other. Inside its ``with`` block the clock stands still."""

    def __init__(self, start: datetime | None = None, *, declared: Schedules | None = None) -> None:
        self._now = start or database_now()
        self.schedules = schedules if declared is None else declared
        self._unrecorded: list[Finished] = []

    def __enter__(self) -> Self:
        stop_clock(self._now)
        return self

    def __exit__(self, *_error: object) -> None:
        stop_clock(None)

    @property
    def now(self) -> datetime:
        """The time of the bench."""
        return self._now

    def travel_to(self, moment: datetime) -> None:
        """Set the time; manifests that are due by then run at the next turn."""
        self._now = moment
        stop_clock(moment)

    def advance(self, **delta: float) -> datetime:
        """Let time pass, as ``timedelta`` counts it: ``advance(minutes=5)``."""
        self.travel_to(self._now + timedelta(**delta))
        return self._now

    def seed(self) -> Seeded:
        """Write the declarations to rows."""
        return seed(self.schedules, now=self._now)

    def manage(self) -> int:
        """Turns of the manager until all due manifests are queued; returns how many were."""
        turn = manager.turn(self._now)
        return turn.did + (self.manage() if turn.has_more else 0)

    def dispatch(self) -> int:
        """One turn of the dispatcher: rows that the limits have room for are dispatched; returns how many."""
        dispatched = dispatch(workflows=registry.names(), now=self._now)
        cancel_late(dispatched.cancelled_rows, now=self._now)
        return len(dispatched.execution_ids)

    def work(self) -> Recorded:
        """Run all dispatched executions and record them."""
        claims = claim(process=self.process, workflows=registry.names(), limit=1000, now=self._now)
        self._unrecorded += [Finished(item.execution_id, execute(item)) for item in claims]
        recorded = record(self._unrecorded, by=self.process, now=self._now)
        self._unrecorded = [item for item in self._unrecorded if item.execution_id in recorded.unwritten]
        return recorded

    def turn(self) -> list[str]:
        """One turn of manager, dispatcher and worker; returns the external ids of the jobs that ran, in order."""
        self.manage()
        self.dispatch()
        ended = self.work().ended
        names = dict(Metadata.objects.filter(id__in=ended).values_list("id", "manifest_external_id"))
        return [names[execution_id] for execution_id in ended]

    def drain(self) -> list[str]:
        """Turns until no more jobs run at this time; returns the external ids of those that ran, in order."""
        ran: list[str] = []
        for _ in range(MAX_ROUNDS):
            names = self.turn()
            if not names:
                return ran
            ran += names
        raise AssertionError(f"Still running after {MAX_ROUNDS} turns at {self._now}; the last was {ran[-1]!r}.")

    def run_until(self, moment: datetime) -> list[str]:
        """Go from alarm to alarm up to this time, draining at each; returns the external ids of all jobs in order."""
        ran = self.drain()
        while (alarm := self._next_alarm(until=moment)) is not None:
            self.travel_to(max(alarm, self._now))
            ran += self.drain()
        self.travel_to(moment)
        return ran

    def run_for(self, **delta: float) -> list[str]:
        """``run_until`` for a length of time: ``run_for(days=2)``."""
        return self.run_until(self._now + timedelta(**delta))

    def queued(self) -> list[str]:
        """The external ids of the rows in the queue, in the order of dispatch."""
        rows = WorkQueue.objects.queued().order_by("-priority", "turn", "id")
        return list(rows.values_list("manifest_external_id", flat=True))

    def assert_queued(self, *external_ids: str) -> None:
        """Fail unless exactly these are in the queue, in any order."""
        waiting = self.queued()
        if sorted(waiting) != sorted(external_ids):
            raise AssertionError(f"Queued are {waiting or 'no manifests'}, not {list(external_ids) or 'none'}.")

    @cached_property
    def process(self) -> Process:
        """The process row under which the bench claims and records."""
        return Process.objects.create(
            kind="test",
            host=socket.gethostname(),
            pid=os.getpid(),
            workflows=registry.names(),
            started_at=self._now,
            heartbeat_at=self._now,
        )

    def _next_alarm(self, *, until: datetime) -> datetime | None:
        alarms = (
            ManifestState.objects.next_alarm(after=self._now, until=until),
            WorkQueue.objects.next_not_before(after=self._now, until=until),
            JoinState.objects.next_deadline(after=self._now, until=until),
        )
        return min((alarm for alarm in alarms if alarm is not None), default=None)
