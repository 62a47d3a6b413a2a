"""For tests of projects that use chainsched: the engine step by step, at a time that the test chooses.

    with Workbench() as bench:
        bench.seed()                        # the schedules that schedules.py declares
        assert bench.drain() == ["extract", "transform", "load"]
        bench.run_for(days=2)               # two days of schedules, retries and nights with changing clocks
        bench.assert_queued()               # no row is left in the queue

All code runs in the calling thread and inside the test's transaction, without processes and waits; that of ``async``
workflows too, as far as it asks the database through Django.

``bench.context(…)`` is a run's context for a test that calls a workflow's function by itself.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Self

from chainsched.conf import get_config
from chainsched.db.clock import database_now, stop_clock
from chainsched.domain.inputs import to_document
from chainsched.domain.outcomes import Finished
from chainsched.domain.redaction import redact
from chainsched.domain.results import JoinReport, ParentRun
from chainsched.domain.routing import Pool
from chainsched.domain.run_context import RunContext, RunControl, each_once
from chainsched.flow.operate.cancel_run import cancel_late
from chainsched.flow.run.claim import claim
from chainsched.flow.run.dispatch import dispatch
from chainsched.flow.run.execute import execute_here
from chainsched.flow.run.park import release
from chainsched.flow.run.record import Recorded, record
from chainsched.flow.schedule.declare import Schedules, schedules
from chainsched.flow.schedule.seed import Seeded, seed
from chainsched.models import JoinState, ManifestState, Metadata, Process, WorkQueue
from chainsched.registry import registry
from chainsched.runtime.loops import manager

MAX_ROUNDS = 10_000


@dataclass(slots=True)
class _Notebook(RunControl):
    """Answers the calls of a run in a unit test, and writes them down; it touches no row."""

    parents: Sequence[ParentRun]
    join: JoinReport | None
    is_asked_to_stop: bool
    activated: list[tuple[str, Any]] = field(default_factory=list)
    reported: list[dict[str, Any]] = field(default_factory=list)

    def activate(self, activations: Iterable[tuple[str, Any]]) -> list[str]:
        asked = {external_id: _stored(external_id, value) for external_id, value in each_once(activations).items()}
        queued = [external_id for external_id in asked if external_id not in dict(self.activated)]
        self.activated += [(external_id, asked[external_id]) for external_id in queued]
        return queued

    def is_cancelled(self) -> bool:
        return self.is_asked_to_stop

    def report(self, progress: Any) -> None:
        self.reported.append(redact(progress))

    def find_join(self) -> JoinReport | None:
        return self.join

    def find_parents(self) -> list[ParentRun]:
        return list(self.parents)


def _stored(external_id: str, value: Any) -> Any:
    """An input in the form in which a row would hold it; raises InvalidInput for one that no row can."""
    return to_document(value, what=f"The input of {external_id}", max_bytes=get_config().max_input_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOnBench(RunContext):
    """A context that answers from the facts that the test stated, and keeps the requests of the workflow."""

    _control: _Notebook = field(repr=False, compare=False)

    @property
    def activated(self) -> list[tuple[str, Any]]:
        """The children that were activated, in order, each with its input as a row would hold it."""
        return self._control.activated

    @property
    def reported(self) -> list[dict[str, Any]]:
        """The progress that was reported, in order: ``done``, ``total`` and ``message``, as a page would show it."""
        return self._control.reported

    def ask_to_stop(self) -> None:
        """Let ``is_cancelled()`` be true from now on."""
        self._control.is_asked_to_stop = True


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
        """Dispatch the rows that the limits have room for, as to a task server; returns how many."""
        release([Pool(registry.names())], now=self._now)
        dispatched = dispatch(workflows=registry.names(), now=self._now)
        cancel_late(dispatched.cancelled_rows, now=self._now)
        return len(dispatched.execution_ids)

    def work(self) -> Recorded:
        """Run all dispatched executions and record them."""
        claims = claim(process=self.process, workflows=registry.names(), limit=1000, now=self._now)
        self._unrecorded += [Finished(item.execution_id, execute_here(item)) for item in claims]
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

    def context(
        self,
        external_id: str = "job",
        *,
        workflow: str = "",
        scheduled_for: datetime | None = None,
        attempt: int = 1,
        timeout: float | None = None,
        parents: Sequence[ParentRun] = (),
        join: JoinReport | None = None,
        is_cancelled: bool = False,
        **facts: Any,
    ) -> RunOnBench:
        """A context for a unit test that calls a workflow's function by itself; no row is read or written for it.

        ``facts`` are further fields of RunContext by name, such as ``cron_expression`` or ``execution_id``.
        """
        correlation_id = facts.pop("correlation_id", None) or uuid.uuid4()
        parent_id = parents[-1].execution_id if parents else None
        stated = {
            "execution_id": 1,
            "cron_expression": "",
            "parent_manifest_id": None,
            "parent_execution_id": parent_id,
            "root_execution_id": parent_id,
            "causation_id": "",
            "root_correlation_id": str(correlation_id),
            **facts,
        }
        return RunOnBench(
            external_id=external_id,
            correlation_id=correlation_id,
            workflow=workflow,
            scheduled_for=scheduled_for or self._now,
            attempt=attempt,
            timeout_seconds=get_config().job_timeout if timeout is None else timeout,
            _control=_Notebook(parents, join, is_cancelled),
            **stated,
        )

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
