"""A family in the middle of its work, and what may happen to it next, as calls that somebody makes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from chainsched import Cron, GiveUp, RunCondition
from chainsched.domain import outcomes
from chainsched.domain.outcomes import Finished, Outcome
from chainsched.domain.results import Cancelled
from chainsched.domain.routing import Pool
from chainsched.flow.maintain.recall import give_back, recall
from chainsched.flow.run.activate import activate
from chainsched.flow.run.claim import claim
from chainsched.flow.run.dispatch import dispatch
from chainsched.flow.run.evaluate import evaluate
from chainsched.flow.run.fold_notes import fold_notes, settle
from chainsched.flow.run.park import park, release_due
from chainsched.flow.run.record import record
from chainsched.models import DeadLetter, GraphRun, Manifest, ManifestGroup, Metadata, Process, WorkQueue
from chainsched.registry import registry
from chainsched.runtime.loops import manager
from chainsched.testing import Workbench
from tests.drive import manifest, reap_silent
from tests.factories import make_process
from tests.testapp import workflows

MINUTE = timedelta(minutes=1)
HOURLY = Cron.hourly(minute=5)
COMPLETED = outcomes.completed("pong")
HOPELESS = outcomes.raised(GiveUp("the source is gone"))

Call = Callable[[], Any]


class Family:
    """A parent with members a and b, a continuation that waits for them, a dormant child, and one that follows it."""

    def __init__(self, bench: Workbench) -> None:
        self.bench = bench
        self.declare("a", "b")
        bench.seed()
        bench.advance(minutes=5)
        self.worker = self.new_worker()

    def declare(self, *members: str) -> None:
        self.bench.schedules.clear()
        chain = self.bench.schedules.schedule(workflows.ping, "parent", None, HOURLY, group="g")
        for name in members:
            chain = chain.include(workflows.ping, name, group="g", max_retries=1)
        chain = chain.include(workflows.ping, "join", group="g", fan_in=True)
        chain = chain.include(workflows.copy, "dormant", workflows.Slice("t"), group="g", dormant=True)
        chain.then_include(workflows.ping, "after", group="g", run_condition=RunCondition.COMPLETION)

    def new_worker(self) -> Process:
        names = registry.names()
        return make_process(workflows=names, started_at=self.bench.now, heartbeat_at=self.bench.now)

    # Where it stands: each of these goes on from another one.

    def parent_runs(self) -> None:
        self.start()

    def members_are_due(self) -> None:
        self.parent_runs()
        self.end("parent")

    def members_wait(self) -> None:
        self.members_are_due()
        self.bench.manage()

    def members_are_dispatched(self) -> None:
        self.members_wait()
        self.bench.dispatch()

    def members_run(self) -> None:
        self.members_are_dispatched()
        self.claim()()

    def all_run(self) -> None:
        self.members_run()
        manifest("parent").trigger()
        self.start()

    def parent_runs_and_a_member_is_due(self) -> None:
        self.all_run()
        self.end("a")
        manifest("a").trigger(delay=0.001)
        self.bench.advance(seconds=1)

    def one_member_has_ended(self) -> None:
        self.members_run()
        self.end("a")

    def last_note_waits(self) -> None:
        """All members have ended, and nothing is decided yet."""
        self.members_run()
        self.end("a", "b")

    def join_has_fired(self) -> None:
        """It is decided, and its manifest has a note that waits."""
        self.last_note_waits()
        fold_notes(now=self.bench.now)

    def two_runs_overlap(self) -> None:
        """The members wait in the queue for one run, and the parent runs again."""
        self.members_wait()
        for name in ("a", "b"):
            WorkQueue.objects.queued().filter(manifest_external_id=name).update(not_before=self.bench.now + MINUTE)
        manifest("parent").trigger()
        self.start()

    def members_wait_for_two_runs(self) -> None:
        self.two_runs_overlap()
        self.end("parent")

    def members_run_for_two_runs(self) -> None:
        self.members_wait_for_two_runs()
        self.bench.advance(minutes=1)
        self.start()

    def member_is_off_and_due(self) -> None:
        """The other one has ended: only what is off may hold the decision up."""
        self.members_are_due()
        manifest("a").disable()
        self.start()
        self.end("b")

    def member_is_given_up(self) -> None:
        self.members_run()
        self.record("a", result=HOPELESS)()

    def member_is_off(self) -> None:
        self.parent_runs()
        manifest("a").disable()

    def member_waits_while_off(self) -> None:
        """Its row may not start."""
        self.members_wait()
        manifest("a").disable()

    def members_wait_while_their_group_is_off(self) -> None:
        self.members_wait()
        self.group.disable()

    def group_is_full(self) -> None:
        """One member runs, and the others wait."""
        self.group.set_limits(max_active_jobs=1, priority=0)
        self.members_wait()
        for name in ("x", "y"):
            Manifest.objects.schedule(workflows.ping, name, None, None, group="g").trigger()
        self.bench.dispatch()
        self.claim()()

    def group_is_off(self) -> None:
        self.members_are_due()
        self.group.disable()

    def group_is_off_while_it_runs(self) -> None:
        self.parent_runs()
        self.group.disable()

    def worker_is_silent(self) -> None:
        """So long that it may be declared lost; it runs everybody."""
        self.all_run()
        self.bench.advance(minutes=1)

    def worker_is_silent_before_it_claims(self) -> None:
        self.members_are_dispatched()
        self.bench.advance(minutes=1)

    def two_stand_alone(self) -> None:
        self.parent_runs()
        for name in ("x", "y"):
            Manifest.objects.schedule(workflows.ping, name, None, None, group="g")

    def one_is_off_beside_another_with_a_dependent(self) -> None:
        """What hangs below the other one has been due since that ran."""
        self.two_stand_alone()
        depend("below", on="y")()
        manifest("y").trigger()
        self.start()
        self.end("y")
        manifest("x").disable()

    def one_alone_runs(self) -> None:
        """Nothing depends on it: it is in no run of the graph."""
        Manifest.objects.schedule(workflows.ping, "alone", None, None, group="g").trigger()
        self.start()

    def deploy_waits(self) -> None:
        """Of code without a, and with somebody new."""
        self.parent_runs()
        self.declare("b", "new")

    def deploy_waits_while_members_are_due(self) -> None:
        self.members_are_due()
        self.declare("b", "new")

    # What happens next.

    def start(self) -> None:
        self.bench.manage()
        self.bench.dispatch()
        self.claim()()

    def end(self, *names: str) -> None:
        self.record(*names)()

    def record(self, *names: str, result: Outcome = COMPLETED) -> Call:
        running = Metadata.objects.active().filter(manifest_external_id__in=names)
        finished = [Finished(execution.id, result) for execution in running]
        assert len(finished) == len(names)
        return lambda: record(finished, by=self.worker, now=self.bench.now).ended

    def evaluate(self) -> int:
        return evaluate(now=self.bench.now).queued

    def settle(self) -> int:
        return settle(now=self.bench.now)

    def turn(self) -> int:
        """Of a manager: the notes, then what is due."""
        return manager.turn(self.bench.now).did

    def cancel_run(self) -> Cancelled:
        """Of the first one."""
        return GraphRun.objects.earliest("id").cancel()

    def cancel_below(self, name: str) -> Call:
        """Of an execution that runs, with what follows from it."""
        execution = Metadata.objects.active().get(manifest_external_id=name)
        return lambda: execution.cancel(tree=True)

    def dispatch(self) -> int:
        return len(dispatch(workflows=registry.names(), now=self.bench.now).execution_ids)

    def park(self) -> int:
        """By a dispatcher, for workers that know all workflows."""
        return park([Pool(registry.names())], now=self.bench.now)

    def running(self) -> list[str]:
        return list(Metadata.objects.active().order_by("id").values_list("manifest_external_id", flat=True))

    def raise_limit(self) -> bool:
        return self.group.set_limits(max_active_jobs=9, priority=0)

    def dispatch_later(self) -> int:
        """When the time of rows that were put off has come."""
        release_due(now=self.bench.now + MINUTE)
        return len(dispatch(workflows=registry.names(), now=self.bench.now + MINUTE).execution_ids)

    def claim(self, worker: Process | None = None) -> Call:
        names = registry.names()
        return lambda: claim(process=worker or self.worker, workflows=names, limit=100, now=self.bench.now)

    def give_back(self) -> set[int]:
        held = Metadata.objects.unknown_to(self.worker, known=[])
        return give_back(held, process=self.worker, now=self.bench.now)

    def reap(self) -> Any:
        return reap_silent(now=self.bench.now)

    def recall(self) -> int:
        """By somebody who has heard of no worker."""
        return recall(workflows=[], now=self.bench.now).queued

    def activate(self) -> Call:
        """The parent's run wakes the dormant child."""
        execution_id = Metadata.objects.in_progress().get(manifest_external_id="parent").id
        return lambda: activate(
            [("dormant", workflows.Slice("now"))],
            parent_manifest_id=manifest("parent").id,
            execution_id=execution_id,
            process_id=self.worker.pk,
        )

    @property
    def group(self) -> ManifestGroup:
        return ManifestGroup.objects.get(name="g")

    @property
    def letter(self) -> DeadLetter:
        return DeadLetter.objects.get()


def depend(name: str, *, on: str, **options: Any) -> Call:
    """Declare or change a dependent at run time."""
    stated = {"group": "g", **options}
    return lambda: Manifest.objects.schedule_dependent(workflows.ping, name, None, depends_on=on, **stated).external_id


def add_one_time_child(name: str, *, by: str) -> Call:
    return lambda: Manifest.objects.schedule_child(workflows.ping, name, None, parent=by).external_id


def join_group(name: str) -> Call:
    return lambda: Manifest.objects.schedule(workflows.ping, name, None, HOURLY, group="g").external_id


def remove(name: str) -> Call:
    return lambda: Manifest.objects.filter(external_id=name).delete()[0] > 0
