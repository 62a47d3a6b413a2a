"""Every stage crashed after every statement and every commit: after recovery all is as if nothing had happened."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model

from chainsched import Cron, GiveUp, ManifestItem, RunCondition
from chainsched.domain import outcomes
from chainsched.domain.outcomes import Finished, Outcome
from chainsched.domain.states import BulkDecisionStatus, BulkDecisionVerb, ExecutionState
from chainsched.flow.maintain.fsck import reconcile
from chainsched.flow.maintain.recall import give_back
from chainsched.flow.operate.bulk_decisions import carry_out, request_bulk_decision
from chainsched.flow.run.activate import activate
from chainsched.flow.run.claim import claim
from chainsched.flow.run.consume import consume
from chainsched.flow.run.dispatch import dispatch
from chainsched.flow.run.fold_notes import fold_notes, settle
from chainsched.flow.run.record import record
from chainsched.models import (
    BulkDecision,
    DeadLetter,
    GraphRun,
    Manifest,
    ManifestGroup,
    ManifestState,
    Metadata,
    Process,
    TakenOver,
    WorkQueue,
)
from chainsched.registry import registry
from chainsched.testing import Workbench
from tests.drive import manifest, reap_silent
from tests.factories import NOW, make_process
from tests.scenarios.crashes import Stage, sweep
from tests.testapp import workflows

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow_on_postgres]

# Alarms of a cron do not depend on when a run ended, so that they can be compared.
HOURLY = Cron.hourly(minute=5)
DUE = NOW + timedelta(minutes=5)
COMPLETED = outcomes.completed("pong")
FAILED = outcomes.raised(RuntimeError("broken"))
HOPELESS = outcomes.raised(GiveUp("the source is gone"))


def declare_family(bench: Workbench, *members: str, workflow: Any = workflows.ping, **options: Any) -> None:
    """A parent with members, a continuation, one that follows whatever happens, and one that follows a failure."""
    chain = bench.schedules.schedule(workflow, "parent", None, HOURLY, group="g", **options)
    for name in members:
        chain = chain.include(workflows.ping, name, group="g")
    chain = chain.include(workflows.ping, "join", group="g", fan_in=True)
    chain = chain.include(workflows.ping, "always", group="g", run_condition=RunCondition.COMPLETION)
    chain.include(workflows.ping, "alas", group="g", run_condition=RunCondition.FAILURE)


def start(bench: Workbench, worker: Process | None = None) -> None:
    """What is due is dispatched and, if there is a worker, claimed by it."""
    bench.manage()
    bench.dispatch()
    if worker:
        claim(process=worker, workflows=registry.names(), limit=100, now=bench.now)


def new_worker(bench: Workbench) -> Process:
    return make_process(workflows=registry.names(), started_at=bench.now, heartbeat_at=bench.now)


def running(name: str) -> int:
    return Metadata.objects.in_progress().get(manifest_external_id=name).id


class OfAFamily(Stage):
    """The family is seeded and its parent is due."""

    def prepare(self, bench: Workbench) -> None:
        declare_family(bench, "a", "b")
        bench.seed()
        bench.travel_to(DUE)


class Seed(Stage):
    def prepare(self, bench: Workbench) -> None:
        declare_family(bench, "a", "b")
        items = [ManifestItem(str(number), workflows.Slice(f"t{number}")) for number in range(3)]
        bench.schedules.schedule_many(workflows.copy, "copy", items, HOURLY)

    def run(self, bench: Workbench) -> None:
        bench.seed()


class SeedAnotherVersion(OfAFamily):
    """While the members wait in the queue: one moves to another parent, one changes its rank, one is new, one goes."""

    def prepare(self, bench: Workbench) -> None:
        super().prepare(bench)
        bench.schedules.schedule(workflows.ping, "lone", None, HOURLY, group="g", enabled=False)
        bench.schedules.schedule(workflows.ping, "gone", None, HOURLY, group="gone")
        bench.seed()
        worker = new_worker(bench)
        start(bench, worker)
        done = Metadata.objects.in_progress().values_list("id", flat=True)
        record([Finished(id_, COMPLETED) for id_ in done], by=worker, now=bench.now)
        bench.manage()
        bench.schedules.clear()
        chain = bench.schedules.schedule(workflows.ping, "parent", None, HOURLY, group="g", group_priority=3)
        chain.include(workflows.ping, "b", group="new", priority=7).include(workflows.ping, "new", group="new")
        chain.include(workflows.ping, "join", group="g", fan_in=True)
        lone = bench.schedules.schedule(workflows.ping, "lone", None, HOURLY, group="g", enabled=True)
        lone.include(workflows.ping, "a", group="g")

    def run(self, bench: Workbench) -> None:
        bench.seed()


class Evaluate(OfAFamily):
    def run(self, bench: Workbench) -> None:
        bench.manage()


class OfDueMembers(OfAFamily):
    """The parent has ended and its members are due; the continuation waits for them."""

    def prepare(self, bench: Workbench) -> None:
        super().prepare(bench)
        worker = new_worker(bench)
        start(bench, worker)
        record([Finished(running("parent"), COMPLETED)], by=worker, now=bench.now)


class EvaluateDependents(OfDueMembers):
    """The note of the gate is folded, then the members are queued."""

    transactions = 2

    def run(self, bench: Workbench) -> None:
        bench.manage()


class Dispatch(OfAFamily):
    """One row of the schedule, and one of a dead letter that is being retried."""

    def prepare(self, bench: Workbench) -> None:
        super().prepare(bench)
        given_up(bench, workflows.ping).retry()
        bench.manage()

    def run(self, bench: Workbench) -> None:
        bench.dispatch()


class Claim(OfAFamily):
    """By a task server that executions are submitted to; its process dies with what it claimed."""

    def prepare(self, bench: Workbench) -> None:
        super().prepare(bench)
        self.worker = new_worker(bench)
        start(bench)

    def run(self, bench: Workbench) -> None:
        claim(process=self.worker, workflows=registry.names(), limit=100, now=bench.now)

    def recover(self, bench: Workbench) -> None:
        let_the_dead_be_found(bench)


class TakeOfAWorkerThatDies(OfAFamily):
    """What it took it takes with it, until it is declared lost."""

    def prepare(self, bench: Workbench) -> None:
        super().prepare(bench)
        bench.manage()
        self.worker = new_worker(bench)

    def run(self, bench: Workbench) -> None:
        dispatch(workflows=registry.names(), taker=self.worker, now=bench.now)

    def recover(self, bench: Workbench) -> None:
        let_the_dead_be_found(bench)


class TakeOfAWorkerThatLivesOn(TakeOfAWorkerThatDies):
    """Only its connection broke; it returns what it may have taken, and takes again."""

    def recover(self, bench: Workbench) -> None:
        return_all(self.worker, bench)
        assert not Metadata.objects.in_progress().exists(), "it would run what it knows nothing of"
        self.run(bench)
        let_the_dead_be_found(bench)


class GiveBack(TakeOfAWorkerThatDies):
    """A worker that drains returns what it has not begun."""

    def prepare(self, bench: Workbench) -> None:
        super().prepare(bench)
        super().run(bench)

    def run(self, bench: Workbench) -> None:
        return_all(self.worker, bench)

    def recover(self, bench: Workbench) -> None:
        self.run(bench)


def return_all(worker: Process, bench: Workbench) -> None:
    held = Metadata.objects.unknown_to(worker, known=[])
    assert give_back(held, process=worker, now=bench.now) == set()


def let_the_dead_be_found(bench: Workbench) -> None:
    bench.advance(minutes=1)
    reap_silent(now=bench.now)


class Record(OfAFamily):
    """The parent ends, and the worker lives on to bring the result again."""

    result: Outcome = COMPLETED
    options: dict[str, Any] = {}  # noqa: RUF012

    def prepare(self, bench: Workbench) -> None:
        declare_family(bench, "a", "b", **self.options)
        bench.seed()
        bench.travel_to(DUE)
        self.worker = new_worker(bench)
        start(bench, self.worker)
        self.execution_id = running("parent")

    def run(self, bench: Workbench) -> None:
        record([Finished(self.execution_id, self.result)], by=self.worker, now=bench.now)


class RecordOfSuccess(Record):
    pass


class RecordThatQueuesDependents(Record):
    def run(self, bench: Workbench) -> None:
        record([Finished(self.execution_id, self.result)], by=self.worker, now=bench.now, opens=True)


class RecordOfFailureWithRetry(Record):
    result = FAILED
    options = {"retry_delay": 60}  # noqa: RUF012


class RecordOfDeadLetter(Record):
    result = HOPELESS
    options = {"workflow": workflows.give_up}  # noqa: RUF012


class RecordOfCancelled(Record):
    result = Outcome(ExecutionState.CANCELLED)


class RecordOfTheLastMemberOfAFanIn(Record):
    def prepare(self, bench: Workbench) -> None:
        super().prepare(bench)
        self.run(bench)
        start(bench, self.worker)
        ended = [Finished(running(name), COMPLETED) for name in ("a", "always")]
        record(ended, by=self.worker, now=bench.now)
        self.execution_id = running("b")


class _Dies(Record):
    """The worker dies with the result; the run is lost and made again."""

    def recover(self, bench: Workbench) -> None:
        let_the_dead_be_found(bench)


class RecordOfSuccessByAWorkerThatDies(RecordOfSuccess, _Dies):
    pass


class RecordOfFailureWithRetryByAWorkerThatDies(RecordOfFailureWithRetry, _Dies):
    pass


class RecordOfDeadLetterByAWorkerThatDies(RecordOfDeadLetter, _Dies):
    pass


class RecordOfTheLastMemberOfAFanInByAWorkerThatDies(RecordOfTheLastMemberOfAFanIn, _Dies):
    pass


class RecordOfAMemberOfTwoRuns(OfAFamily):
    """It waited in the queue while the parent ran again, so that it stands for both runs."""

    def prepare(self, bench: Workbench) -> None:
        super().prepare(bench)
        self.worker = new_worker(bench)
        overlap(bench, self.worker)
        start(bench, self.worker)
        self.execution_id = running("a")
        assert TakenOver.objects.filter(execution_id=self.execution_id).exists()

    def run(self, bench: Workbench) -> None:
        record([Finished(self.execution_id, COMPLETED)], by=self.worker, now=bench.now)


class RecordOfWhatTakesARunOver(OfAFamily):
    """The parent ends once more while its members wait in the queue."""

    def prepare(self, bench: Workbench) -> None:
        super().prepare(bench)
        self.worker = new_worker(bench)
        overlap(bench, self.worker, is_ended=False)
        self.execution_id = running("parent")

    def run(self, bench: Workbench) -> None:
        record([Finished(self.execution_id, COMPLETED)], by=self.worker, now=bench.now)


def overlap(bench: Workbench, worker: Process, *, is_ended: bool = True) -> None:
    """Members wait in the queue for one run; the parent runs once more and ends, or does not."""
    start(bench, worker)
    record([Finished(running("parent"), COMPLETED)], by=worker, now=bench.now)
    bench.manage()
    waiting = WorkQueue.objects.queued()
    waiting.update(not_before=bench.now + timedelta(minutes=1))
    manifest("parent").trigger()
    start(bench, worker)
    if is_ended:
        record([Finished(running("parent"), COMPLETED)], by=worker, now=bench.now)
        waiting.update(not_before=None)


class OfALastMember(OfAFamily):
    """All members have ended: the notes of the last one wait for the manager, whose process dies."""

    def prepare(self, bench: Workbench) -> None:
        super().prepare(bench)
        worker = new_worker(bench)
        start(bench, worker)
        record([Finished(running("parent"), COMPLETED)], by=worker, now=bench.now)
        start(bench, worker)
        self.end_members(worker, now=bench.now)

    def end_members(self, worker: Process, *, now: datetime) -> None:
        ended = [Finished(running(name), COMPLETED) for name in ("a", "b", "always")]
        record(ended, by=worker, now=now)

    def recover(self, bench: Workbench) -> None:
        """Nothing: the next turn of a manager decides."""


class FoldOfALastMember(OfALastMember):
    def run(self, bench: Workbench) -> None:
        fold_notes(now=bench.now)


class TurnAfterALastMember(OfALastMember):
    """The join is decided, becomes due, and is queued."""

    transactions = 4

    def run(self, bench: Workbench) -> None:
        bench.manage()


class ConsumeOfAJoin(OfALastMember):
    """The join is decided, and does not know it yet."""

    def prepare(self, bench: Workbench) -> None:
        super().prepare(bench)
        fold_notes(now=bench.now)

    def run(self, bench: Workbench) -> None:
        consume(now=bench.now)


class FoldOfTwoRuns(OfALastMember):
    """Both runs are decided together, and their joins meet in one item."""

    def prepare(self, bench: Workbench) -> None:
        OfAFamily.prepare(self, bench)
        worker = new_worker(bench)
        overlap(bench, worker)
        start(bench, worker)
        self.end_members(worker, now=bench.now)

    def run(self, bench: Workbench) -> None:
        fold_notes(now=bench.now)


class ConsumeOfTwoRuns(FoldOfTwoRuns):
    def prepare(self, bench: Workbench) -> None:
        super().prepare(bench)
        fold_notes(now=bench.now)

    def run(self, bench: Workbench) -> None:
        consume(now=bench.now)


class SettleOfNestedJoins(OfALastMember):
    """A join that has too little to run with is passed by the one behind it, in the same turn."""

    transactions = 4

    def prepare(self, bench: Workbench) -> None:
        chain = bench.schedules.schedule(workflows.ping, "parent", None, HOURLY, group="g")
        for name in ("a", "b", "always"):
            chain = chain.include(workflows.ping, name, group="g", max_retries=1)
        chain = chain.include(workflows.ping, "inner", group="g", depends_on=["a", "b"])
        chain.include(workflows.ping, "outer", group="g", depends_on=["always", "inner"], at_least=1)
        bench.seed()
        bench.travel_to(DUE)
        worker = new_worker(bench)
        start(bench, worker)
        record([Finished(running("parent"), COMPLETED)], by=worker, now=bench.now)
        start(bench, worker)
        self.end_members(worker, now=bench.now)

    def end_members(self, worker: Process, *, now: datetime) -> None:
        ended = [Finished(running("a"), HOPELESS), *(Finished(running(name), COMPLETED) for name in ("b", "always"))]
        record(ended, by=worker, now=now)

    def run(self, bench: Workbench) -> None:
        settle(now=bench.now)


class FoldAtADeadline(OfAFamily):
    """A member still runs when the time of the join has come; it ends later, and is late."""

    def prepare(self, bench: Workbench) -> None:
        chain = bench.schedules.schedule(workflows.ping, "parent", None, HOURLY, group="g")
        chain = chain.include(workflows.ping, "a", group="g").include(workflows.ping, "b", group="g")
        chain.include(workflows.ping, "join", group="g", depends_on=["a", "b"], at_least=1, deadline=10)
        bench.seed()
        bench.travel_to(DUE)
        worker = new_worker(bench)
        start(bench, worker)
        record([Finished(running("parent"), COMPLETED)], by=worker, now=bench.now)
        start(bench, worker)
        record([Finished(running("a"), COMPLETED)], by=worker, now=bench.now)
        bench.manage()
        bench.advance(seconds=10)

    def run(self, bench: Workbench) -> None:
        fold_notes(now=bench.now)


class Reap(Stage):
    """A dead worker held a run that is retried, and one that is given up."""

    transactions = 2

    def prepare(self, bench: Workbench) -> None:
        declare_family(bench, "a")
        bench.schedules.schedule(workflows.ping, "last", None, HOURLY, group="g", max_retries=1)
        bench.seed()
        bench.travel_to(DUE)
        start(bench, new_worker(bench))
        bench.advance(minutes=1)

    def run(self, bench: Workbench) -> None:
        reap_silent(now=bench.now)

    def recover(self, bench: Workbench) -> None:
        self.run(bench)
        assert not Metadata.objects.in_progress().exists(), "who was declared lost before is reaped too"


class Cancel(OfAFamily):
    """A member whose end lets the continuation go; beside it the parent has a wish waiting, which goes too."""

    def prepare(self, bench: Workbench) -> None:
        super().prepare(bench)
        worker = new_worker(bench)
        start(bench, worker)
        record([Finished(running("parent"), COMPLETED)], by=worker, now=bench.now)
        bench.manage()
        manifest("parent").trigger(delay=600)

    def run(self, bench: Workbench) -> None:
        ManifestGroup.objects.get(name="g").cancel()


class CancelQueued(Cancel):
    pass


class CancelPending(Cancel):
    def prepare(self, bench: Workbench) -> None:
        super().prepare(bench)
        bench.dispatch()


class CancelRunning(Cancel):
    def prepare(self, bench: Workbench) -> None:
        super().prepare(bench)
        start(bench, new_worker(bench))


class CancelRun(Cancel):
    """The mark is committed first, then what is open is stopped; who asked for it asks again."""

    transactions = 3

    def run(self, bench: Workbench) -> None:
        GraphRun.objects.earliest("id").cancel()


class CancelRunQueued(CancelRun):
    pass


class CancelRunPending(CancelRun, CancelPending):
    pass


class CancelRunRunning(CancelRun, CancelRunning):
    pass


class CancelOlderRunOfTwo(CancelRun):
    """The members stand for another run too: they go on, and the join runs for that one alone."""

    transactions = 2

    def prepare(self, bench: Workbench) -> None:
        OfAFamily.prepare(self, bench)
        overlap(bench, new_worker(bench))


class CancelNewerRunOfTwo(CancelOlderRunOfTwo):
    """The members are named after it, so that they are looked at, and left."""

    transactions = 3

    def run(self, bench: Workbench) -> None:
        GraphRun.objects.latest("id").cancel()


class CancelRunOfADecidedJoin(CancelRun):
    """The join has fired and does not know it yet."""

    transactions = 2

    def prepare(self, bench: Workbench) -> None:
        ConsumeOfAJoin().prepare(bench)


class CancelBelow(Cancel):
    """One member with what follows from it; the continuation counts it, and goes on. A second round finds no more."""

    transactions = 4

    def prepare(self, bench: Workbench) -> None:
        super().prepare(bench)
        start(bench, new_worker(bench))

    def run(self, bench: Workbench) -> None:
        Metadata.objects.get(id=running("a")).cancel(tree=True)


def given_up(bench: Workbench, workflow: Any) -> DeadLetter:
    """The dead letter of a manifest of its own that has a dependent."""
    # Declared at run time, so that seeding does not retire it.
    lost = Manifest.objects.schedule(workflow, "lost", None, None, max_retries=1)
    Manifest.objects.schedule_dependent(workflows.ping, "heir", None, depends_on="lost")
    lost.trigger()
    worker = new_worker(bench)
    bench.dispatch()
    claim(process=worker, workflows=registry.names(), limit=100, now=bench.now)
    record([Finished(running("lost"), FAILED)], by=worker, now=bench.now)
    return DeadLetter.objects.get()


class RetryLetter(Stage):
    def prepare(self, bench: Workbench) -> None:
        self.letter = given_up(bench, workflows.ping)
        self.operator = get_user_model().objects.create_user("ann")

    def run(self, bench: Workbench) -> None:
        self.letter.retry(by=self.operator, note="the source is back")


class AcknowledgeLetter(OfAFamily):
    """The letter of a member whose continuation waits for another one."""

    def prepare(self, bench: Workbench) -> None:
        super().prepare(bench)
        worker = new_worker(bench)
        start(bench, worker)
        record([Finished(running("parent"), COMPLETED)], by=worker, now=bench.now)
        start(bench, worker)
        record([Finished(running("a"), HOPELESS)], by=worker, now=bench.now)
        self.letter = DeadLetter.objects.get()
        self.operator = get_user_model().objects.create_user("ann")

    def run(self, bench: Workbench) -> None:
        self.letter.acknowledge(by=self.operator, note="known")


class CarryOutBulkDecision(Stage):
    """A letter is decided about, then the bulk decision is closed."""

    transactions = 2

    def prepare(self, bench: Workbench) -> None:
        letter = given_up(bench, workflows.ping)
        operator = get_user_model().objects.create_user("ann")
        told = {"by": operator, "note": "the source is back", "selection": "", "now": bench.now}
        request_bulk_decision(BulkDecisionVerb.RETRY, [letter.id], **told)

    def run(self, bench: Workbench) -> None:
        while carry_out(now=bench.now).has_more:
            pass
        assert BulkDecision.objects.get().status == BulkDecisionStatus.DONE


class Disable(OfDueMembers):
    """A member that the continuation waits for."""

    def run(self, bench: Workbench) -> None:
        manifest("a").disable()


class Enable(Disable):
    def prepare(self, bench: Workbench) -> None:
        super().prepare(bench)
        manifest("a").disable()
        manifest("parent").disable()

    def run(self, bench: Workbench) -> None:
        manifest("parent").enable()


class EnableGroup(OfDueMembers):
    def prepare(self, bench: Workbench) -> None:
        super().prepare(bench)
        ManifestGroup.objects.get(name="g").disable()

    def run(self, bench: Workbench) -> None:
        ManifestGroup.objects.get(name="g").enable()


class Trigger(OfAFamily):
    def run(self, bench: Workbench) -> None:
        manifest("a").trigger()


class TriggerOfWhatIsUnderWay(Record):
    """The wish is remembered; a wish made twice is one wish."""

    def run(self, bench: Workbench) -> None:
        manifest("parent").trigger()


class TriggerWithADelay(OfAFamily):
    def run(self, bench: Workbench) -> None:
        manifest("a").trigger(delay=timedelta(minutes=10))


class Activate(Stage):
    """A run wakes a dormant child; the run lives on and asks again."""

    def prepare(self, bench: Workbench) -> None:
        chain = bench.schedules.schedule(workflows.activate_copy, "parent", None, HOURLY)
        chain.include(workflows.copy, "child", workflows.Slice("declared"), dormant=True)
        bench.seed()
        bench.travel_to(DUE)
        self.worker = new_worker(bench)
        start(bench, self.worker)
        self.execution_id = running("parent")

    def run(self, bench: Workbench) -> None:
        activate(
            [("child", workflows.Slice("runtime", 7))],
            parent_manifest_id=manifest("parent").id,
            execution_id=self.execution_id,
            process_id=self.worker.pk,
        )


class Edit(OfDueMembers):
    """A member that waits in the queue gets another parent, which has succeeded too, another rank and group."""

    def prepare(self, bench: Workbench) -> None:
        super().prepare(bench)
        Manifest.objects.schedule(workflows.ping, "other", None, None, group="g").trigger()
        bench.drain()
        Manifest.objects.schedule_dependent(workflows.ping, "c", None, depends_on="parent", group="g")
        bench.manage()

    def run(self, bench: Workbench) -> None:
        Manifest.objects.schedule_dependent(workflows.ping, "c", None, depends_on="other", group="h", priority=9)


class Prune(OfAFamily):
    """A run-time batch loses a member that a continuation waits for and gets a new one."""

    transactions = 2

    def prepare(self, bench: Workbench) -> None:
        super().prepare(bench)
        self.write("1", "2")
        bench.turn()

    def write(self, *members: str) -> None:
        items = [ManifestItem(name, depends_on="parent", group="g") for name in members]
        Manifest.objects.schedule_many_dependent(workflows.ping, "batch", items, prune=True)

    def run(self, bench: Workbench) -> None:
        self.write("2", "3")


class Remove(OfDueMembers):
    """A member in the queue that a continuation waits for; and a manifest with an awaiting letter and a dependent."""

    def prepare(self, bench: Workbench) -> None:
        super().prepare(bench)
        bench.manage()
        given_up(bench, workflows.ping)

    def run(self, bench: Workbench) -> None:
        Manifest.objects.filter(external_id__in=["a", "lost"]).delete()


class ScheduleChild(Record):
    """Of a parent that runs; the child waits for its end."""

    def run(self, bench: Workbench) -> None:
        Manifest.objects.schedule_child(workflows.ping, "child", None, parent="parent")


class ScheduleChildAgain(ScheduleChild):
    """It has had its run, and shall have another one."""

    def prepare(self, bench: Workbench) -> None:
        super().prepare(bench)
        super().run(bench)
        record([Finished(self.execution_id, COMPLETED)], by=self.worker, now=bench.now)
        for _ in range(2):
            bench.drain()
            manifest("parent").trigger()


class Reconcile(OfDueMembers):
    """Somebody took alarms away and switched a member off by hand."""

    transactions = 2

    def prepare(self, bench: Workbench) -> None:
        super().prepare(bench)
        Manifest.objects.filter(external_id="a").update(is_enabled=False)
        ManifestState.objects.update(next_run_at=None)

    def run(self, bench: Workbench) -> None:
        reconcile(now=bench.now)


STAGES: list[type[Stage]] = [
    Seed,
    SeedAnotherVersion,
    Evaluate,
    EvaluateDependents,
    Dispatch,
    Claim,
    TakeOfAWorkerThatDies,
    TakeOfAWorkerThatLivesOn,
    GiveBack,
    RecordOfSuccess,
    RecordOfSuccessByAWorkerThatDies,
    RecordOfFailureWithRetry,
    RecordOfFailureWithRetryByAWorkerThatDies,
    RecordOfDeadLetter,
    RecordOfDeadLetterByAWorkerThatDies,
    RecordOfCancelled,
    RecordOfTheLastMemberOfAFanIn,
    RecordOfTheLastMemberOfAFanInByAWorkerThatDies,
    RecordOfAMemberOfTwoRuns,
    RecordOfWhatTakesARunOver,
    FoldOfALastMember,
    ConsumeOfAJoin,
    TurnAfterALastMember,
    FoldOfTwoRuns,
    ConsumeOfTwoRuns,
    SettleOfNestedJoins,
    FoldAtADeadline,
    CancelRunQueued,
    CancelRunPending,
    CancelRunRunning,
    CancelOlderRunOfTwo,
    CancelNewerRunOfTwo,
    CancelRunOfADecidedJoin,
    CancelBelow,
    Reap,
    CancelQueued,
    CancelPending,
    CancelRunning,
    RetryLetter,
    AcknowledgeLetter,
    CarryOutBulkDecision,
    Enable,
    Disable,
    EnableGroup,
    Trigger,
    TriggerOfWhatIsUnderWay,
    TriggerWithADelay,
    Activate,
    Edit,
    Prune,
    Remove,
    ScheduleChild,
    ScheduleChildAgain,
    Reconcile,
]


@pytest.mark.parametrize("stage", STAGES)
def test_a_crash_after_any_statement_leaves_what_was_committed_and_the_outcome_is_the_same(stage):
    swept = sweep(stage(), recovers_always=False)
    assert swept.points > 3
    assert swept.undone > 1, "no crash came between a write and its commit"
    assert swept.recovered == stage.transactions + 1, "before each commit, and after the last"


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_recovery_from_a_crash_after_any_statement_leads_to_the_same_outcome(stage):
    swept = sweep(stage(), recovers_always=True)
    assert swept.recovered == swept.points > 3
