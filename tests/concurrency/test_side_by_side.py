"""Loops and processes side by side on real connections: nothing doubled, nothing lost, limits exact."""

import functools
from collections import Counter
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from chainsched import Every, ManifestItem
from chainsched.db import locks
from chainsched.domain import outcomes
from chainsched.domain.joins import JoinOutcome
from chainsched.domain.outcomes import Finished
from chainsched.domain.states import BulkDecisionStatus, BulkDecisionVerb, ExecutionState
from chainsched.exceptions import LimitExceeded
from chainsched.flow.maintain.recall import give_back
from chainsched.flow.operate.bulk_decisions import carry_out, request_bulk_decision
from chainsched.flow.run.claim import claim, note_progress
from chainsched.flow.run.dispatch import dispatch
from chainsched.flow.run.evaluate import evaluate
from chainsched.flow.run.fold_notes import settle
from chainsched.flow.run.record import record
from chainsched.flow.schedule.declare import Schedules
from chainsched.flow.schedule.seed import seed
from chainsched.flow.transactions import transact
from chainsched.models import BulkDecision, GraphRun, Manifest, ManifestState, Metadata, NamedLock, WorkQueue
from chainsched.models.named_lock import DISPATCH
from tests.concurrency.gathering import Gathering
from tests.concurrency.rules import check_rules
from tests.concurrency.threads import at_once
from tests.drive import executions_of, manifest, new_bench
from tests.factories import (
    NOW,
    make_execution,
    make_group,
    make_letter,
    make_manifest,
    make_many_manifests,
    make_process,
    make_queue_row,
)
from tests.testapp import workflows

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("patience")]

KNOWN = ["testapp.ping"]


def evaluate_all() -> int:
    queued = 0
    while evaluated := evaluate(now=NOW, limit=50):
        queued += evaluated.queued
        if evaluated.seen == 0:
            return queued
    return queued


def test_managers_side_by_side_queue_each_due_manifest_once():
    make_many_manifests(400, due=400)
    counts = at_once(*[evaluate_all] * 4)
    assert sum(counts) == WorkQueue.objects.count() == 400


def test_dispatchers_side_by_side_start_each_row_once_and_hold_the_limits(settings):
    settings.CHAINSCHED = {"MAX_ACTIVE_JOBS": 30}
    groups = [make_group(f"g{number}", max_active_jobs=12) for number in range(3)]
    for group in groups:
        for _ in range(20):
            make_queue_row(make_manifest(group=group, state={}))

    def turns() -> int:
        return sum(len(dispatch(workflows=KNOWN, now=NOW, limit=5).execution_ids) for _ in range(8))

    assert sum(at_once(*[turns] * 4)) == 30
    started = Counter(Metadata.objects.values_list("group__name", flat=True))
    assert max(started.values()) <= 12
    assert Metadata.objects.values("work_queue").distinct().count() == 30


def test_workers_side_by_side_claim_each_execution_once():
    for _ in range(200):
        make_execution(make_manifest(state={}))
    processes = [make_process() for _ in range(4)]

    def claim_all(process):
        def run():
            taken = []
            while claims := claim(process=process, workflows=KNOWN, limit=7, now=NOW):
                taken += [item.execution_id for item in claims]
            return taken

        return run

    taken = [execution_id for ids in at_once(*map(claim_all, processes)) for execution_id in ids]
    assert len(taken) == len(set(taken)) == 200


def test_clerks_side_by_side_decide_about_each_letter_once():
    letters = [make_letter(make_manifest(state={})) for _ in range(60)]
    asker = User.objects.create_user("ann")
    told = {"by": asker, "note": "back", "selection": "", "now": NOW}
    request_bulk_decision(BulkDecisionVerb.RETRY, [letter.id for letter in letters], **told)

    def turns() -> int:
        decided = 0
        while BulkDecision.objects.open().exists():
            decided += carry_out(now=NOW, limit=7).letters
        return decided

    assert sum(at_once(*[turns] * 4)) == 60
    bulk_decision = BulkDecision.objects.get()
    assert (bulk_decision.status, bulk_decision.done_count, bulk_decision.skipped_count) == (
        BulkDecisionStatus.DONE,
        60,
        0,
    )
    assert WorkQueue.objects.queued().count() == 60
    entries = LogEntry.objects.filter(content_type__model="deadletter").values_list("object_id", flat=True)
    assert Counter(entries) == {str(letter.id): 1 for letter in letters}


def test_two_records_of_one_execution_make_one_end():
    process = make_process()
    for _ in range(20):
        execution = make_execution(make_manifest(state={}), state=ExecutionState.IN_PROGRESS, process=process)
        results = at_once(*[finish(execution, process)] * 2)
        assert sorted(len(result.ended) for result in results) == [0, 1]


def finish(execution, process):
    return lambda: record([Finished(execution.id, outcomes.completed(None))], by=process, now=NOW)


def test_a_parent_and_its_dependent_that_end_together_lose_nothing():
    with new_bench() as bench:
        gathering = Gathering(bench, members=1)
        gathering.members_run()
        for number in range(2, 27):
            gathering.head_runs()
            of_head = gathering.recording("head")
            ((of_parent,), (_,)) = at_once(of_head, gathering.recording("m-0"))
            settle(now=bench.now)
            state = ManifestState.objects.get(manifest=gathering.member(0))
            assert (state.due_execution, state.next_run_at) == (of_parent, bench.now)
            gathering.start()
            assert Metadata.objects.get(id=gathering.running_members()[0]).parent_execution_id == of_parent
            assert GraphRun.objects.filter(head=gathering.head.id).count() == number


def test_many_parents_of_overlapping_families_are_recorded_without_deadlock():
    with new_bench() as bench:
        gathering = Gathering(bench, members=30)
        below = [ManifestItem(f"{at}-{name}", depends_on=f"m-{at}") for at in range(30) for name in ("a", "b")]
        Manifest.objects.schedule_many_dependent(workflows.ping, "below", below)
        gathering.members_run()
        running = gathering.running_members()
        at_once(*map(gathering.recording_of, (running[::2], running[1::2], running[::-1])))
        assert Metadata.objects.filter(id__in=running, state=ExecutionState.COMPLETED).count() == 30
        settle(now=bench.now)
        due = ManifestState.objects.filter(due_execution__gt=0, next_run_at__isnull=False)
        assert due.count() == 61, "the dependents, and the join"


def test_processes_that_seed_together_end_with_one_row_each():
    def run():
        schedules = Schedules()
        schedules.schedule_many(workflows.ping, "many", [ManifestItem(str(n)) for n in range(300)], Every.hours(1))
        schedules.schedule(workflows.ping, "a", None, Every.hours(1)).then_include(workflows.ping, "b")
        return len(seed(schedules, now=NOW).created)

    assert sorted(at_once(*[run] * 3)) == [0, 0, 302]
    assert Manifest.objects.count() == ManifestState.objects.count() == 302


def test_the_last_two_members_of_a_fan_in_that_end_together_fire_it_once():
    with new_bench() as bench:
        gathering = Gathering(bench, members=2)
        for number in range(1, 11):
            gathering.members_run()
            at_once(*(gathering.recording(name) for name in ("m-0", "m-1")))
            at_once(*[lambda: settle(now=bench.now)] * 2)
            assert (gathering.state().outcome, gathering.firings()) == (JoinOutcome.FIRED, number)
            gathering.start()
            gathering.end("join")
        bench.drain()
        assert Metadata.objects.filter(manifest=gathering.join).count() == 10
        check_rules(bench)


def test_a_deploy_that_edits_a_family_and_its_parents_end_do_not_block_each_other():
    process = make_process()

    def deploy(number):
        schedules = Schedules()
        chain = schedules.schedule(workflows.ping, "parent", None, Every.hours(1), group="g")
        for member in range(3 + number):
            chain.include(workflows.ping, f"child-{member}", group="g", priority=number)
        return lambda: seed(schedules, now=NOW)

    deploy(0)()
    for number in range(1, 12):
        parent = Manifest.objects.get(external_id="parent")
        execution = make_execution(parent, state=ExecutionState.IN_PROGRESS, process=process)
        _, recorded = at_once(deploy(number), finish(execution, process))
        assert recorded.ended == [execution.id]
        settle(now=NOW)
        due = ManifestState.objects.filter(manifest__depends_on=parent, due_execution=execution.id)
        assert due.count() == 3 + number
        ManifestState.objects.update(next_run_at=None)


@pytest.mark.parametrize("repetition", range(5))
def test_a_cancel_and_a_claim_at_once_end_in_one_of_two_ways(repetition):
    manifest, process = make_manifest(state={}), make_process()
    execution = make_execution(manifest)
    calls: list[Any] = [manifest.cancel, lambda: claim(process=process, workflows=KNOWN, limit=1)]
    cancelled, claims = at_once(*calls)
    execution.refresh_from_db()
    if claims:
        assert (execution.state, execution.cancel_requested) == (ExecutionState.IN_PROGRESS, True)
        assert cancelled.running == 1
    else:
        assert (execution.state, execution.started_at) == (ExecutionState.CANCELLED, None)
        assert cancelled.pending == 1


@pytest.fixture
def impatience(monkeypatch):
    """Rows that somebody else holds are waited for a moment only."""
    for name in ("LOCK_TIMEOUT", "SHORT_LOCK_TIMEOUT"):
        monkeypatch.setattr(locks, name, "200ms")


def take_some(number):
    """A process, and the ids of so many executions that it has taken from the queue."""
    process = make_process()
    for _ in range(number):
        make_queue_row(make_manifest(state={}))
    return process, list(dispatch(workflows=["testapp.ping"], taker=process).execution_ids)


def lock_execution(execution_id):
    Metadata.objects.lock_active([execution_id])


def lock_state(execution_id):
    ManifestState.objects.lock(Metadata.objects.manifests_of([execution_id]))


def run_some(number):
    """A process, and so many executions that it runs."""
    process = make_process()
    in_progress = {"state": ExecutionState.IN_PROGRESS, "process": process}
    return process, [make_execution(make_manifest(state={}), **in_progress) for _ in range(number)]


@pytest.mark.postgres
def test_one_held_manifest_delays_its_own_result_alone(impatience):
    process, running = run_some(6)
    results = [Finished(execution.id, outcomes.completed(None)) for execution in running]
    with transaction.atomic():
        ManifestState.objects.lock([running[2].manifest_id or 0])
        (recorded,) = at_once(lambda: record(results, by=process, now=NOW))
    assert recorded.unwritten == [running[2].id]
    assert len(recorded.ended) == 5
    assert record([results[2]], by=process, now=NOW).ended == [running[2].id]


@pytest.mark.postgres
def test_held_rows_are_waited_for_once_however_many_there_are(impatience):
    process, running = run_some(20)
    results = [Finished(execution.id, outcomes.completed(None)) for execution in running]
    held, free = running[3:9], [*running[:3], *running[9:]]

    def record_them():
        with CaptureQueriesContext(connection) as queries:
            recorded = record(results, by=process, now=NOW)
        return recorded, len([query for query in queries if "lock_timeout" in query["sql"]])

    with transaction.atomic():
        ManifestState.objects.lock([execution.manifest_id or 0 for execution in held])
        ((recorded, transactions),) = at_once(record_them)
    assert recorded.unwritten == [execution.id for execution in held]
    assert recorded.ended == [execution.id for execution in free]
    assert transactions == 2, "one that waited, and one that passed them over"


@pytest.mark.postgres
@pytest.mark.parametrize("relative", ["below", "join"])
def test_a_result_waits_for_no_relative_that_another_transaction_holds(relative):
    with new_bench() as bench:
        gathering = Gathering(bench, members=2)
        gathering.add("below", on="m-0")
        gathering.members_run()
        running = gathering.running_members()
        results = [Finished(id_, outcomes.completed(None)) for id_ in running]
        with transaction.atomic():
            ManifestState.objects.lock([manifest(relative).id])
            (recorded,) = at_once(lambda: record(results, by=gathering.worker, now=bench.now, is_waiting=False))
            assert (recorded.unwritten, recorded.ended) == ([], running)
        bench.drain()
        assert [len(executions_of(name)) for name in ("below", "join")] == [1, 1]


@pytest.mark.postgres
@pytest.mark.parametrize("lock", [lock_execution, lock_state], ids=["execution", "state"])
def test_one_held_row_delays_the_return_of_its_own_execution_alone(lock):
    process, running = take_some(2)
    held, _ = running
    with transaction.atomic():
        lock(held)
        assert at_once(lambda: give_back(running, process=process, now=NOW)) == [{held}]
        assert set(Metadata.objects.values_list("id", flat=True)) == {held}
    assert give_back([held], process=process, now=NOW) == set()
    assert WorkQueue.objects.queued().count() == 2
    assert not Metadata.objects.exists()


@pytest.mark.postgres
def test_one_held_execution_delays_its_own_progress_alone(impatience):
    process, running = run_some(3)
    told = {execution.id: {"done": execution.id} for execution in running}
    held = running[1].id
    with transaction.atomic():
        Metadata.objects.lock_active([held])
        (waiting,) = at_once(lambda: note_progress(told, process=process))
    assert waiting == {held: told[held]}
    assert set(Metadata.objects.filter(progress__isnull=True).values_list("id", flat=True)) == {held}
    assert note_progress(waiting, process=process) == {}
    assert Metadata.objects.get(id=held).progress == told[held]


@pytest.mark.postgres
def test_a_dispatcher_that_freezes_in_its_turn_is_replaced(monkeypatch):
    """Its transaction idles until the database ends it; whoever waits for the Loop row goes on."""
    make_queue_row(make_manifest(state={}))
    frozen = connection.copy()
    try:
        frozen.set_autocommit(False)
        with frozen.cursor() as cursor:
            cursor.execute("INSERT INTO chainsched_namedlock (name, turns) VALUES (%s, '{}')", [DISPATCH])
        # In the end and here alone, so that nothing else is ended that takes its time.
        with monkeypatch.context() as patched:
            patched.setattr(locks, "IDLE_TIMEOUT", "500ms")
            locks.begin(frozen)
        assert len(dispatch(workflows=KNOWN, now=NOW).execution_ids) == 1
    finally:
        frozen.close()
    with transact():
        assert NamedLock.objects.hold(DISPATCH, now=NOW).turns == {"0": 1}


def test_children_that_are_added_at_once_stay_within_the_limit(settings):
    settings.CHAINSCHED = {**settings.CHAINSCHED, "MAX_FAN_OUT": 3}
    Manifest.objects.schedule(workflows.ping, "parent", None, None)

    def add(number: int) -> bool:
        try:
            Manifest.objects.schedule_child(workflows.ping, f"child-{number}", None, parent="parent")
        except LimitExceeded:
            return False
        return True

    added = at_once(*(functools.partial(add, number) for number in range(6)))
    assert sum(added) == 3
    assert manifest("parent").dependents.count() == 3
