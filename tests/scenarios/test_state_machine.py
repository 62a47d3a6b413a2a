"""Anything in any order: schedulers, workers that finish, die and freeze, operators and edits, against a model.

Hypothesis chooses the steps. After each of them every row must be as ``reference_model`` says, and what the issue
asks for must hold: at most one queued and one active per manifest, limits never exceeded, nothing terminal changes,
an alarm exactly when nothing is open and nothing forbids it. At the end every obstacle is lifted and the engine driven
until it is quiet: everything queued has ended, and history shows a run for each outcome that a dependent waited for.

A failure prints the steps and ``@reproduce_failure(…)``: put that above ``Engine`` to see it again.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from itertools import cycle
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F, QuerySet
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from chainsched import Cron, Every, GiveUp, ManifestItem, Once
from chainsched.db.clock import stop_clock
from chainsched.domain import outcomes
from chainsched.domain.declarations import Declaration
from chainsched.domain.inputs import OWN_INPUT
from chainsched.domain.outcomes import FailureType, Finished, Outcome
from chainsched.domain.routing import Pool
from chainsched.domain.states import ExecutionState, RunCondition
from chainsched.exceptions import ProcessLost
from chainsched.flow.maintain.fsck import reconcile
from chainsched.flow.maintain.recall import give_back
from chainsched.flow.run.activate import activate
from chainsched.flow.run.claim import claim
from chainsched.flow.run.dispatch import dispatch
from chainsched.flow.run.evaluate import PAGE, evaluate
from chainsched.flow.run.park import release
from chainsched.flow.run.record import record
from chainsched.flow.schedule.batches import declaration
from chainsched.flow.schedule.plan import Origin
from chainsched.flow.schedule.seed import write_declarations
from chainsched.models import DeadLetter, Manifest, ManifestGroup, ManifestState, Metadata, Process, WorkQueue
from tests.drive import keep_line, reap_silent, silent_processes
from tests.factories import NOW, make_process
from tests.scenarios import reference_model as rm
from tests.scenarios.reference_model import Group, Job, Model, Run
from tests.testapp.workflows import Slice, copy

pytestmark = pytest.mark.django_db

PARTS = 4
EXAMPLES = {"sqlite": 200, "postgresql": 30}
FEW = 12
STEPS = 50
LIMIT = 3
CONFIG = {"MAX_ACTIVE_JOBS": LIMIT, "RETRY_DELAY": int(rm.RETRY_DELAY), "RETRY_MULTIPLIER": 2.0, "PROCESS_EXPIRY": 30}

WORKFLOWS = ["testapp.copy"]
BATCH = "m"
REMOVABLE = {"asked", "next", "last", "sleeper"}
CONDITIONS = st.sampled_from([rm.ON_SUCCESS, rm.ON_SUCCESS, rm.ON_FAILURE, rm.ON_COMPLETION])
PERIODS = {rm.INTERVAL: [60, 300, 1800], rm.CRON: [300, 600, 3600]}
KINDS_OF_END = [rm.SUCCESS, rm.SUCCESS, rm.SUCCESS, rm.FAILURE, rm.FAILURE, rm.HOPELESS, rm.LOST, rm.CANCELLED]
# In a turn of all loops many runs go on, so that the steps after it meet them.
ENDS_OR_NOT = st.sampled_from([*KINDS_OF_END, *[None] * 8])
DELAYS = [None, None, timedelta(0), timedelta(seconds=20), timedelta(minutes=10)]
PAUSES = [1, 10, 31, 61, 61, 301, 301, 601, 3601]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_happens_the_rows_are_as_the_design_says(part, settings):
    settings.CHAINSCHED = CONFIG
    run_state_machine_as_test(Engine, settings=_effort(-(-EXAMPLES[connection.vendor] // PARTS)))


@pytest.mark.slow_on_postgres
@pytest.mark.timeout(300)
def test_a_few_things_happen_and_the_rows_are_as_the_design_says(settings):
    settings.CHAINSCHED = CONFIG
    run_state_machine_as_test(Engine, settings=_effort(FEW))


def _effort(examples: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        print_blob=True,
        # Explaining which choices matter takes minutes here, and the steps speak for themselves.
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


def outcome_of(kind: str) -> Outcome:
    """What a worker would hand to record."""
    if kind == rm.SUCCESS:
        return outcomes.completed({"rows": 1})
    if kind == rm.CANCELLED:
        return Outcome(ExecutionState.CANCELLED)
    if kind == rm.LOST:
        return outcomes.failed(FailureType.LOST, "its child died")
    return outcomes.raised(GiveUp("no") if kind == rm.HOPELESS else RuntimeError("no"))


ALL_ROWS: tuple[QuerySet[Any, Any], ...] = (
    ManifestState.objects.values(
        "next_run_at",
        "trigger_at",
        "trigger_input",
        "consecutive_failures",
        "due_execution",
        "covered_execution",
        "last_successful_run",
        "last_finished_run",
        name=F("manifest__external_id"),
        enabled=F("manifest__is_enabled"),
        retired=F("manifest__retired_at"),
        done=F("manifest__done_at"),
    ),
    WorkQueue.objects.values(
        "id",
        "status",
        "source",
        "attempt",
        "not_before",
        "input",
        "scheduled_for",
        "priority",
        "execution_id",
        name=F("manifest_external_id"),
        parent=F("parent_execution_id"),
        root=F("root_execution_id"),
    ),
    Metadata.objects.values(
        "id",
        "state",
        "source",
        "attempt",
        "input",
        "scheduled_for",
        "priority",
        "started_at",
        "ended_at",
        "failure_reason",
        "output",
        "manifest_id",
        name=F("manifest_external_id"),
        run_by=F("process_id"),
        parent=F("parent_execution_id"),
        root=F("root_execution_id"),
        is_told_to_stop=F("cancel_requested"),
    ),
    DeadLetter.objects.values("id", "status", "execution_id", "failure_count", "resolved_at"),
)


class Look:
    """A query whose SQL is worked out once, for it is asked after every step."""

    def __init__(self, rows: QuerySet[Any, Any]) -> None:
        self.compiler = rows.query.get_compiler(connection=connection)
        self.sql, self.parameters = self.compiler.as_sql()
        self.names = [*rows.query.values_select, *rows.query.annotation_select]
        self.converters = self.compiler.get_converters([column for column, _, _ in self.compiler.select])

    def __call__(self) -> list[dict[str, Any]]:
        with connection.cursor() as cursor:
            cursor.execute(self.sql, self.parameters)
            rows = self.compiler.apply_converters(cursor.fetchall(), self.converters)
            return [dict(zip(self.names, row, strict=True)) for row in rows]


class Engine(RuleBasedStateMachine):
    """The engine's rows on one side, the model on the other; each rule does the same to both."""

    def __init__(self) -> None:
        super().__init__()
        # An example leaves nothing behind: it happens in a transaction that is rolled back.
        self.transaction = transaction.atomic()
        # A test's, not a caller's, who would keep stages from making dependents due at once.
        self.transaction._from_testcase = True  # type: ignore[attr-defined]
        self.transaction.__enter__()
        self.model = Model(NOW, limit=LIMIT)
        # Alive ones beat as time passes; frozen ones may come back. Both hold claims under the id of their row.
        self.alive: list[int] = []
        self.frozen: list[int] = []
        self.gone: list[int] = []
        self.late: list[tuple[int | None, int]] = []
        self.final: dict[tuple[str, int], Any] = {}
        self.edited: set[str] = set()
        self.states, self.queue, self.executions, self.dead_letters = (Look(rows) for rows in ALL_ROWS)
        stop_clock(NOW)

    # The graph.

    @initialize(data=st.data())
    def declare(self, data):
        draw = data.draw
        self.model.groups = {name: Group(name) for name in ("a", "b")}
        self.model.groups["b"].limit = draw(st.sampled_from([1, 2, None]))
        own = {"max_retries": st.sampled_from([1, 2, 3])}
        roots = [
            Job("tick", rm.INTERVAL, "a", None, period=draw(st.sampled_from(PERIODS[rm.INTERVAL]))),
            Job("cron", rm.CRON, draw(st.sampled_from("ab")), None, period=draw(st.sampled_from(PERIODS[rm.CRON]))),
            Job("asked", rm.ON_DEMAND, "a", None),
        ]
        if draw(st.booleans()):
            roots.append(Job("once", rm.ONCE, "b", None, once_at=NOW + timedelta(minutes=5)))
        top = draw(st.sampled_from(["tick", "asked"]))
        below = [
            Job("next", rm.DEPENDENT, draw(st.sampled_from("ab")), None, parent="tick", condition=draw(CONDITIONS)),
            Job("last", rm.DEPENDENT, "b", None, parent="next", condition=draw(CONDITIONS)),
            Job("sleeper", rm.DORMANT, "b", None, parent=top, condition=rm.ON_SUCCESS),
        ]
        members = [self._member(letter, top) for letter in "xyz"[: draw(st.integers(1, 3))]]
        for job in (*roots, *below, *members):
            job.input = asdict(Slice(job.name))
            job.max_retries = draw(own["max_retries"])
        self.top = top
        jobs = [*roots, *below, *members]
        write_declarations([self.declaration(job) for job in jobs], origin=Origin("tests", is_declared=False), now=NOW)
        for job in jobs:
            self.model.declare(job)
        for _ in range(2):
            self.start_process()

    def declaration(self, job: Job) -> Declaration:
        """The manifest as it is written the first time, all of them in one go."""
        options = self._options(job) | {"group": job.group} | self._group_options(job.group)
        made = declaration(
            copy, job.name, Slice(**job.input), schedule=self._schedule(job), depends_on=job.parent, options=options
        )
        return replace(made, batch=BATCH if job.name.startswith(BATCH) else "")

    def _member(self, letter: str, parent: str) -> Job:
        return Job(f"{BATCH}-{letter}", rm.DEPENDENT, "b", None, parent=parent, condition=rm.ON_SUCCESS)

    def write(self, job: Job) -> None:
        """Create or change the manifest through the front door."""
        options: dict[str, Any] = self._options(job) | {"group": job.group} | self._group_options(job.group)
        given = Slice(**job.input)
        if job.parent is not None:
            Manifest.objects.schedule_dependent(copy, job.name, given, depends_on=job.parent, **options)
        else:
            Manifest.objects.schedule(copy, job.name, given, self._schedule(job), **options)

    def write_batch(self, members: Sequence[Job]) -> None:
        items = [
            ManifestItem(job.name.removeprefix(f"{BATCH}-"), Slice(**job.input), job.parent, **self._options(job))
            for job in members
        ]
        options = {"group": "b", **self._group_options("b")}
        Manifest.objects.schedule_many_dependent(copy, BATCH, items, prune=True, **options)

    def _options(self, job: Job) -> dict[str, Any]:
        options: dict[str, Any] = {"max_retries": job.max_retries, "priority": job.priority}
        if job.kind == rm.DORMANT:
            options["dormant"] = True
        if job.kind == rm.DEPENDENT:
            options["run_condition"] = RunCondition(job.condition)
        return options

    def _group_options(self, name: str) -> dict[str, Any]:
        group = self.model.groups[name]
        return {"group_max_active_jobs": group.limit, "group_priority": group.priority}

    def _schedule(self, job: Job) -> Any:
        if job.kind == rm.INTERVAL:
            return Every.seconds(job.period)
        if job.kind == rm.CRON:
            return Cron.expression(f"*/{job.period // 60} * * * *" if job.period < 3600 else "0 * * * *")
        return Once(job.once_at) if job.kind == rm.ONCE else None

    # Time and processes.

    def start_process(self) -> None:
        process = make_process(workflows=WORKFLOWS, heartbeat_at=self.model.now, started_at=self.model.now)
        self.alive.append(process.pk)
        self.model.heartbeats[process.pk] = self.model.now

    def pass_time(self, seconds: float) -> None:
        self.model.now += timedelta(seconds=seconds)
        stop_clock(self.model.now)
        Process.objects.filter(pk__in=self.alive).update(heartbeat_at=self.model.now)
        self.model.heartbeats |= dict.fromkeys(self.alive, self.model.now)

    @rule(seconds=st.sampled_from(PAUSES), reaping=st.sampled_from(["none", "whole", "whole", "cut short"]))
    def time_passes(self, seconds, reaping):
        self.pass_time(seconds)
        if reaping == "whole":
            self.reap()
        elif reaping == "cut short":
            # The one who reaps dies halfway: the leases are gone, the runs are not closed yet.
            self.declare_lost()

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), comes_back=st.booleans())
    def a_process_falls_silent(self, data, comes_back):
        process = data.draw(st.sampled_from(self.alive))
        self.alive.remove(process)
        (self.frozen if comes_back else self.gone).append(process)
        if not comes_back:
            self.start_process()

    @precondition(lambda self: self.frozen)
    @rule()
    def a_frozen_process_comes_back(self):
        process = Process.objects.get(pk=self.frozen.pop())
        beaten_at = self.model.heartbeats.get(process.pk)
        if beaten_at is None:
            assert not Process.objects.beat(process, now=self.model.now)
        # One whose time is over by its own clock does not even try.
        if beaten_at is not None and beaten_at >= self.model.now - rm.EXPIRY:
            assert Process.objects.beat(process, now=self.model.now)
            self.alive.append(process.pk)
            self.model.heartbeats[process.pk] = self.model.now
        else:
            self.gone.append(process.pk)
            self.start_process()

    def declare_lost(self) -> None:
        lost = Process.objects.declare_lost(silent_processes(now=self.model.now), now=self.model.now)
        assert lost == self.model.declare_lost()

    @precondition(lambda self: self.model.running())
    @rule(data=st.data(), kind=st.sampled_from(KINDS_OF_END))
    def a_zombie_reports_before_its_run_is_closed(self, data, kind):
        """Its lease is gone, its run is not: what it says changes nothing all the same."""
        run = self.pick_run(data)
        if run.process in self.alive:
            self.alive.remove(run.process)
            self.gone.append(run.process)
            self.start_process()
        self.pass_time(31)
        self.declare_lost()
        for parent, child in self.parents_of_sleepers():
            if parent is run:
                self.activate(run, child, None)
        self.finish(run.process, [(run.id, kind)])

    @precondition(lambda self: self.model.running())
    @rule()
    def the_dead_are_reaped_and_the_living_are_not(self):
        self.reap()

    def reap(self) -> None:
        self.late += [(run.process, run.id) for run in self.model.running()]
        lost = self.model.reap()
        assert reap_silent(now=self.model.now).lost == len(lost)

    # The loops.

    @rule(page=st.sampled_from([1, 2, PAGE, PAGE, PAGE]))
    def a_manager_takes_its_turn(self, page):
        self.manage(page)

    def manage(self, page: int = PAGE) -> None:
        before = self.queued_names()
        evaluated = evaluate(now=self.model.now, limit=page)
        queued = self.queued_names() - before
        assert evaluated.queued == evaluated.seen == len(queued)
        self.model.manage(queued, page=page)

    @rule()
    def a_dispatcher_takes_its_turn(self):
        self.dispatch()

    def dispatch(self) -> None:
        keep_line(WORKFLOWS, now=self.model.now)
        started = dispatch(workflows=WORKFLOWS, now=self.model.now).execution_ids
        names = dict(Metadata.objects.filter(id__in=started).values_list("id", "manifest_external_id"))
        self.model.dispatch([(names[id_], id_) for id_ in started])

    @precondition(lambda self: self.model.pending())
    @rule(data=st.data(), limit=st.integers(1, LIMIT))
    def a_worker_claims(self, data, limit):
        """One that was declared lost gets nothing."""
        self.claim(data.draw(st.sampled_from([*self.alive, *self.frozen, *self.gone])), limit)

    def claim(self, process_id: int, limit: int = LIMIT) -> None:
        process = Process.objects.get(pk=process_id)
        claims = claim(process=process, workflows=WORKFLOWS, limit=limit, now=self.model.now)
        assert sorted(item.execution_id for item in claims) == self.model.claim(process_id, limit=limit)

    @precondition(lambda self: self.alive or self.frozen or self.gone)
    @rule(data=st.data(), limit=st.integers(1, LIMIT))
    def a_worker_takes_work_for_itself(self, data, limit):
        """One that was declared lost gets nothing."""
        process_id = data.draw(st.sampled_from([*self.alive, *self.frozen, *self.gone]))
        process = Process.objects.get(pk=process_id)
        room = self.model.limit
        self.model.limit = min(room, len(self.model.active()) + limit)
        release([Pool(WORKFLOWS)], now=self.model.now)
        claims = dispatch(workflows=WORKFLOWS, now=self.model.now, limit=limit, taker=process).claims
        assert all(item.process_id == process_id for item in claims)
        self.model.take(process_id, [(item.external_id, item.execution_id) for item in claims])
        self.model.limit = room

    @precondition(lambda self: self.unbegun())
    @rule(data=st.data())
    def a_worker_gives_back_what_it_has_not_begun(self, data):
        run = data.draw(st.sampled_from(self.unbegun()))
        process, row = self.process(run.process), WorkQueue.objects.get(execution=run.id)
        assert give_back([run.id], process=process, now=self.model.now) == set()
        # The row may wait again.
        self.final.pop(("queue row", row.id), None)
        self.model.give_back(run)
        assert not Metadata.objects.filter(pk=run.id).in_progress().exists() or run.process not in self.model.heartbeats

    def unbegun(self):
        return sorted((run for run in self.model.running() if not run.has_acted), key=lambda run: run.id)

    @precondition(lambda self: self.model.running())
    @rule(data=st.data())
    def a_run_ends(self, data):
        run = self.pick_run(data)
        self.finish(run.process, [(run.id, data.draw(st.sampled_from(KINDS_OF_END)))])

    @precondition(lambda self: self.model.running())
    @rule(data=st.data())
    def a_worker_reports_all_its_runs_at_once(self, data):
        process = self.pick_run(data).process
        runs = self.model.running(process)
        self.finish(process, [(run.id, data.draw(st.sampled_from(KINDS_OF_END))) for run in runs])

    def finish(self, process_id: int | None, results: Sequence[tuple[int, str]]) -> None:
        self.late += [(process_id, id_) for id_, _ in results]
        finished = [Finished(id_, outcome_of(kind)) for id_, kind in results]
        recorded = record(finished, by=self.process(process_id), now=self.model.now)
        assert sorted(recorded.ended) == self.model.finish(process_id, results)
        assert not recorded.unwritten

    @precondition(lambda self: self.late)
    @rule(data=st.data(), kind=st.sampled_from(KINDS_OF_END))
    def a_result_comes_late(self, data, kind):
        """From a process that was frozen meanwhile, or twice from the same: it changes nothing."""
        process_id, execution_id = data.draw(st.sampled_from(self.late))
        self.finish(process_id, [(execution_id, kind)])

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def all_loops_take_a_turn(self, data):
        self.turn(lambda: data.draw(ENDS_OR_NOT))

    @precondition(lambda self: self.alive)
    @rule(ends=st.lists(ENDS_OR_NOT, min_size=1, max_size=4))
    def all_loops_take_a_turn_at_the_next_alarm(self, ends):
        self.pass_time(self.seconds_to_next_alarm())
        following = cycle(ends)
        self.turn(lambda: next(following))

    @precondition(lambda self: self.alive)
    @rule()
    def all_goes_well_at_the_next_alarm(self):
        self.pass_time(self.seconds_to_next_alarm())
        self.turn(lambda: rm.SUCCESS)

    def seconds_to_next_alarm(self) -> float:
        alarms = [self.model.alarm(job) for job in self.model.jobs.values()]
        alarms += [job.row.not_before for job in self.model.jobs.values() if job.row is not None]
        waits = [(alarm - self.model.now).total_seconds() for alarm in alarms if alarm is not None]
        return max(min(waits, default=0), 0)

    def turn(self, ending: Callable[[], str | None]) -> int:
        """Queue, start and claim what can be, and end what is to end; returns how many ended."""
        self.manage()
        self.look()
        self.dispatch()
        self.claim(self.alive[0])
        ends = [(run.id, ending()) for run in self.model.running(self.alive[0])]
        results = [(id_, kind) for id_, kind in ends if kind is not None]
        self.finish(self.alive[0], results)
        self.look()
        return len(results)

    @rule()
    def reconciliation_finds_nothing(self):
        assert reconcile(now=self.model.now) == 0

    # A run wakes a dormant child.

    @precondition(lambda self: self.parents_of_sleepers())
    @rule(data=st.data(), size=st.sampled_from([None, 7]))
    def a_run_activates_a_child(self, data, size):
        pairs = self.parents_of_sleepers()
        run, child = pairs[data.draw(st.integers(0, len(pairs) - 1))]
        self.activate(run, child, None if size is None else Slice("activated", size))

    def activate(self, run: Run, child: Job, given: Slice | None) -> None:
        """A run that is no longer its process's own is refused."""
        parent_id = Manifest.objects.get(external_id=run.name).pk
        named = {"parent_manifest_id": parent_id, "execution_id": run.id, "process_id": run.process}
        if run.process not in self.model.heartbeats:
            with pytest.raises(ProcessLost):
                activate([(child.name, given)], **named)
            return
        is_new = self.model.activate(run, child)
        if is_new and given is not None and child.row is not None:
            child.row.input = asdict(given)
        assert activate([(child.name, given)], **named) == ([child.name] if is_new else [])

    def parents_of_sleepers(self) -> list[tuple[Run, Job]]:
        sleepers = [job for job in self.model.jobs.values() if job.kind == rm.DORMANT]
        runs = [run for run in self.model.running() if run.id not in self.model.orphans]
        return [(run, child) for child in sleepers for run in runs if run.name == child.parent]

    # Operators.

    @rule(data=st.data(), delay=st.sampled_from(DELAYS), size=st.sampled_from([None, None, 7, 8]))
    def somebody_triggers(self, data, delay, size):
        job = self.pick(data)
        given = None if size is None else Slice("wished", size)
        answer = self.manifest(job).trigger(delay, input=given or OWN_INPUT)
        assert answer == self.model.trigger(job, delay=delay, input=given and asdict(given))

    # Two ways that chance seldom finds step by step.

    @precondition(lambda self: any(self.model.is_behind(job) for job in self.model.jobs.values()))
    @rule(data=st.data())
    def somebody_triggers_with_another_input_what_is_due(self, data):
        job = self.pick(data, self.model.is_behind)
        given = Slice("another", 6)
        assert self.manifest(job).trigger(input=given) == self.model.trigger(job, delay=None, input=asdict(given))

    @precondition(lambda self: self.alive and len(self.model.active()) < LIMIT)
    @rule(data=st.data(), is_retried=st.booleans())
    def a_run_with_an_input_of_its_own_is_given_up(self, data, is_retried):
        job = self.pick(data)
        given = Slice("given up", 9)
        assert self.manifest(job).trigger(input=given) == self.model.trigger(job, delay=None, input=asdict(given))
        self.dispatch()
        self.claim(self.alive[0])
        if job.run is not None and job.run.process is not None:
            self.finish(job.run.process, [(job.run.id, rm.HOPELESS)])
        if job.letter is not None:
            self.look()
            self.resolve(job, is_retry=is_retried)

    @rule(name=st.sampled_from("ab"))
    def somebody_triggers_a_group(self, name):
        members = [
            job
            for job in self.model.jobs.values()
            if job.group == name and job.is_enabled and not job.is_retired and not job.has_parent
        ]
        answers = Counter(self.model.trigger(job, delay=None, input=None) for job in members)
        assert ManifestGroup.objects.get(name=name).trigger() == answers

    @rule(data=st.data())
    def somebody_switches_a_manifest(self, data):
        off = [job.name for job in self.model.jobs.values() if not job.is_enabled]
        job = self.pick(data, lambda job: not off or job.name in off or job.name == "tick")
        assert (self.manifest(job).disable() if job.is_enabled else self.manifest(job).enable()) is True
        job.is_enabled = not job.is_enabled

    @rule(name=st.sampled_from("ab"), is_on=st.sampled_from([True, True, False]))
    def somebody_switches_a_group(self, name, is_on):
        group, row = self.model.groups[name], ManifestGroup.objects.get(name=name)
        assert (row.enable() if is_on else row.disable()) == (group.is_enabled != is_on)
        group.is_enabled = is_on

    @rule(data=st.data(), is_group=st.sampled_from([False, False, False, True]))
    def somebody_cancels(self, data, is_group):
        job = self.pick(data)
        members = [other for other in self.model.jobs.values() if other.group == job.group] if is_group else [job]
        stopped = tuple(sum(numbers) for numbers in zip(*map(self.model.cancel, members), strict=True))
        row = ManifestGroup.objects.get(name=job.group) if is_group else self.manifest(job)
        cancelled = row.cancel()
        assert (cancelled.queued, cancelled.pending, cancelled.running) == stopped

    @precondition(lambda self: self.letters())
    @rule(data=st.data(), is_retry=st.booleans())
    def somebody_decides_about_a_letter_and_again(self, data, is_retry):
        self.resolve(self.pick(data, lambda job: job.letter is not None), is_retry=is_retry)

    def letters(self) -> list[Job]:
        return [job for job in self.model.jobs.values() if job.letter is not None]

    def resolve(self, job: Job, *, is_retry: bool) -> None:
        letter = DeadLetter.objects.get(execution=job.letter.id)
        first, second = (letter.retry, letter.acknowledge) if is_retry else (letter.acknowledge, letter.retry)
        assert first().done == (letter.id,)
        assert first().done == second().done == ()
        (self.model.retry_letter if is_retry else self.model.acknowledge_letter)(job)

    # Edits.

    @rule(data=st.data())
    def somebody_changes_a_schedule(self, data):
        job = self.pick(data, lambda job: job.kind in rm.TIMED)
        if job.kind == rm.ONCE:
            at = self.model.now + timedelta(seconds=data.draw(st.sampled_from([0, 30, 900])))
            self.model.reschedule(job, once_at=at)
        else:
            self.model.reschedule(job, period=data.draw(st.sampled_from(PERIODS[job.kind])))
        self.write(job)

    @rule(
        data=st.data(),
        priority=st.sampled_from([None, 0, 3, 20]),
        retries=st.sampled_from([0, 1, 3]),
        limit=st.sampled_from([None, 1, 2]),
        group_priority=st.sampled_from([0, 5]),
    )
    def somebody_changes_what_does_not_matter_for_the_alarm(self, data, priority, retries, limit, group_priority):
        job = self.pick(data, self.is_plain)
        job.priority, job.max_retries = priority, retries
        group = self.model.groups[job.group]
        group.limit, group.priority = limit, group_priority
        self.write(job)

    @precondition(lambda self: {"next", "last", "sleeper"} & self.model.jobs.keys())
    @rule(data=st.data(), condition=CONDITIONS)
    def somebody_gives_another_parent_or_condition(self, data, condition):
        job = self.pick(data, lambda job: job.name in ("next", "last", "sleeper"))
        parent = self.pick(data, lambda parent: self.may_be_parent(parent, job))
        self.edited.add(job.name)
        job.condition = condition
        self.model.give_parent(job, parent.name)
        self.write(job)

    def may_be_parent(self, parent: Job, job: Job) -> bool:
        """No circle of manifests, and none of groups: what depends on group b is in group b."""
        if (parent.group, job.group) == ("b", "a") or parent.is_retired:
            return False
        above: Job | None = parent
        while above is not None and above is not job:
            above = self.model.jobs.get(above.parent or "")
        return above is None

    @precondition(lambda self: REMOVABLE & self.model.jobs.keys())
    @rule(data=st.data())
    def somebody_removes(self, data):
        job = self.pick(data, lambda job: job.name in REMOVABLE)
        self.manifest(job).delete()
        self.edited |= {job.name, *(child.name for child in self.model.children(job.name))}
        self.model.remove(job)

    @precondition(lambda self: REMOVABLE - self.model.jobs.keys())
    @rule(data=st.data(), condition=CONDITIONS)
    def somebody_declares_again(self, data, condition):
        name = data.draw(st.sampled_from(sorted(REMOVABLE - self.model.jobs.keys())))
        job = Job(name, rm.ON_DEMAND, "a", asdict(Slice(name)))
        if name != "asked":
            kind = rm.DORMANT if name == "sleeper" else rm.DEPENDENT
            job = Job(name, kind, "b", asdict(Slice(name)), parent="tick", condition=condition)
        self.write(job)
        self.model.declare(job)

    @rule(data=st.data())
    def a_batch_is_declared_with_other_members(self, data):
        """What is left out is retired, unless it is in the middle of a run; what comes back is revived."""
        if self.top not in self.model.jobs:
            return
        letters = data.draw(st.sets(st.sampled_from("xyz"), min_size=1))
        wanted = [self.model.jobs.get(f"{BATCH}-{letter}") or self._member(letter, self.top) for letter in letters]
        for job in wanted:
            job.input = asdict(Slice(job.name))
            if job.parent is None:
                self.edited.add(job.name)
                self.model.give_parent(job, self.top)
        self.write_batch(wanted)
        for job in wanted:
            job.is_retired = False
            if job.name not in self.model.jobs:
                self.model.declare(job)
        for job in self.model.jobs.values():
            if job.name.startswith(BATCH) and job not in wanted:
                self.model.retire(job)

    # What must hold after every step.

    @invariant()
    def rows_are_as_the_model_says(self):
        self.look()

    def look(self) -> None:
        self.model.settle_alarms()
        self.check_manifests()
        self.check_queue()
        self.check_executions()
        self.check_letters()

    def check_manifests(self) -> None:
        rows = {row["name"]: row for row in self.states()}
        assert rows.keys() == self.model.jobs.keys()
        for job in self.model.jobs.values():
            self.check_manifest(job, rows[job.name])

    def check_manifest(self, job: Job, row: dict[str, Any]) -> None:
        alarm, actual = self.model.alarm(job), row["next_run_at"]
        # A run that is owed to the parent may have been due for a while, before any other reason for one.
        is_right = actual == alarm or (self.model.is_behind(job) and actual is not None and actual <= alarm)
        assert is_right, f"{job.name} has its alarm at {actual}, not at {alarm}; it is {self.model.now}; {job}"
        expected = {
            "trigger_at": job.request and job.request.at,
            "trigger_input": job.request and job.request.input,
            "consecutive_failures": job.failures,
            "last_successful_run": job.last_success,
            "last_finished_run": job.last_over,
            "enabled": job.is_enabled,
        }
        assert {name: row[name] for name in expected} == expected, job
        assert (row["retired"] is not None, row["done"] is not None) == (job.is_retired, job.is_done), job
        if job.kind == rm.DEPENDENT and job.parent is not None:
            matching = self.model.matching(job)
            assert row["covered_execution"] == job.ran_for, job
            assert row["due_execution"] == max([job.ran_for, *matching]), job

    def check_queue(self) -> None:
        rows = self.queue()
        queued = {row["name"]: row for row in rows if row["status"] == "queued"}
        self.check_final("queue row", (row for row in rows if row["status"] != "queued"))
        assert len(queued) == sum(row["status"] == "queued" for row in rows), "two queued rows of one manifest"
        expected = {job.name: job.row for job in self.model.jobs.values() if job.row is not None}
        assert queued.keys() == expected.keys()
        for name, wanted in expected.items():
            row = queued[name]
            if wanted.not_before_between is not None:
                earliest, latest = wanted.not_before_between
                assert earliest <= row["not_before"] <= latest, (row, wanted)
                wanted.not_before, wanted.not_before_between = row["not_before"], None
            columns = ("source", "attempt", "not_before", "input", "scheduled_for", "parent", "root")
            assert {column: row[column] for column in columns} == {
                column: getattr(wanted, column) for column in columns
            }
            assert row["priority"] == self.model.rank(self.model.jobs[name])

    def check_executions(self) -> None:
        rows = self.executions()
        active = {row["id"]: row for row in rows if row["ended_at"] is None}
        self.check_final("execution", (row for row in rows if row["ended_at"] is not None))
        assert {row["id"]: row["state"] for row in rows if row["ended_at"] is not None} == self.model.ended
        per_manifest = Counter(row["manifest_id"] for row in active.values())
        assert not per_manifest or max(per_manifest.values()) == 1, "two active executions of one manifest"
        expected = {run.id: run for run in self.model.active()}
        assert active.keys() == expected.keys()
        columns = ("name", "source", "attempt", "input", "scheduled_for", "priority", "parent", "root")
        for id_, run in expected.items():
            row = active[id_]
            assert {column: row[column] for column in columns} == {column: getattr(run, column) for column in columns}
            assert (row["run_by"], row["is_told_to_stop"]) == (run.process, run.is_told_to_stop)
            assert row["state"] == ("pending" if run.process is None else "in_progress")

    def check_letters(self) -> None:
        rows = self.dead_letters()
        self.check_final("letter", (row for row in rows if row["resolved_at"] is not None))
        awaiting = {row["execution_id"]: row["failure_count"] for row in rows if row["resolved_at"] is None}
        assert awaiting == {job.letter.id: job.failures for job in self.letters()}

    def check_final(self, kind: str, rows: Iterator[dict[str, Any]]) -> None:
        """Nothing terminal changes."""
        for row in rows:
            assert self.final.setdefault((kind, row["id"]), row) == row, f"a final {kind} changed"

    # The end.

    def teardown(self):
        try:
            # What a step has found is not to be hidden by what follows from it.
            if self.model.jobs and sys.exc_info()[0] is None:
                self.lift_all_obstacles()
                self.drive_until_quiet()
                self.audit()
        finally:
            stop_clock(None)
            transaction.set_rollback(True)
            self.transaction.__exit__(None, None, None)

    def lift_all_obstacles(self) -> None:
        for group in self.model.groups.values():
            ManifestGroup.objects.get(name=group.name).enable()
            group.is_enabled = True
        for job in self.model.jobs.values():
            if not job.is_enabled:
                self.manifest(job).enable()
                job.is_enabled = True
        self.start_process()
        self.alive = self.alive[-1:]

    def drive_until_quiet(self) -> None:
        for round_ in range(60):
            for job in self.letters():
                self.resolve(job, is_retry=round_ % 2 == 0)
            self.look()
            if not self.turn(lambda: rm.SUCCESS) and not self.wait_for_what_is_queued():
                break
        self.look()
        assert not self.queued_names(), "something queued never ended"
        assert not Metadata.objects.active().exists(), "something that began never ended"
        assert not self.model.due()

    def wait_for_what_is_queued(self) -> bool:
        """Let the time of retries come, or that of a silent process run out; False if nothing is open."""
        queued = [job.row for job in self.model.jobs.values() if job.row is not None]
        if not queued and not self.model.running():
            return False
        waits = [(row.not_before - self.model.now).total_seconds() for row in queued if row.not_before is not None]
        self.pass_time(max([31.0, *waits]))
        self.reap()
        return True

    def audit(self) -> None:
        """From the history alone: each outcome that a dependent waited for has a run that began after it."""
        for job in self.model.jobs.values():
            if job.kind == rm.DEPENDENT and job.name not in self.edited and not job.is_retired:
                self.audit_dependent(job)

    def audit_dependent(self, job: Job) -> None:
        letters = set(DeadLetter.objects.values_list("execution_id", flat=True))
        for parent_run in Metadata.objects.filter(manifest__external_id=job.parent).order_by("id"):
            kind = rm.SUCCEEDED if parent_run.state == "completed" else rm.CANCELLED
            kind = rm.DEAD_LETTERED if parent_run.state == "failed" else kind
            is_outcome = parent_run.state != "failed" or parent_run.id in letters
            if not is_outcome or job.condition not in rm.MEETS[kind]:
                continue
            rows = WorkQueue.objects.filter(manifest__external_id=job.name, attempt=1, dead_letter=None)
            covering = rows.filter(parent_execution__gte=parent_run.id).order_by("id").first()
            assert covering is not None, f"{job.name} never ran for {parent_run}"
            if covering.execution_id is not None:
                run = Metadata.objects.get(id=covering.execution_id)
                assert (run.started_at or run.ended_at) >= parent_run.ended_at, f"{run} began before {parent_run} ended"

    # Short ways.

    def pick(self, data: st.DataObject, condition: Callable[[Job], bool] = lambda job: True) -> Job:
        """One of the jobs that meet the condition."""
        names = [job.name for job in self.model.jobs.values() if condition(job)]
        return self.model.jobs[data.draw(st.sampled_from(names))]

    def pick_run(self, data: st.DataObject) -> Run:
        running = {run.id: run for run in self.model.running()}
        return running[data.draw(st.sampled_from(sorted(running)))]

    def is_plain(self, job: Job) -> bool:
        """Whether it can be written as it is: its parent, if it needs one, is there."""
        is_complete = job.parent is not None or not job.has_parent
        return is_complete and not job.name.startswith(BATCH)

    def process(self, process_id: int | None) -> Process:
        return Process.objects.get(pk=process_id or 0)

    def manifest(self, job: Job) -> Manifest:
        return Manifest.objects.get(external_id=job.name)

    def queued_names(self) -> set[str]:
        return set(WorkQueue.objects.queued().values_list("manifest_external_id", flat=True))
