"""The manager's turn: what it queues, what it passes over, and what it costs."""

from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from chainsched.domain.due import Reason
from chainsched.domain.states import ExecutionState, QueueStatus, RunCondition, ScheduleType, Source
from chainsched.flow.run.alarm import arm
from chainsched.flow.run.evaluate import evaluate
from chainsched.models import Manifest, ManifestGroup, ManifestState, WorkQueue
from tests.factories import (
    NOW,
    make_dependent,
    make_execution,
    make_group,
    make_letter,
    make_manifest,
    make_many_manifests,
    make_queue_row,
)

pytestmark = pytest.mark.django_db

DUE = {"next_run_at": NOW}


def test_a_due_manifest_is_queued_once_with_what_it_needs():
    group = make_group(priority=7)
    manifest = make_manifest("sync", group=group, workflow="testapp.copy", input={"table": "t", "size": 1})
    assert evaluate(now=NOW).queued == 1
    assert evaluate(now=NOW).seen == 0
    row = WorkQueue.objects.get()
    assert (row.manifest, row.group, row.manifest_external_id) == (manifest, group, "sync")
    assert (row.workflow, row.input) == ("testapp.copy", {"table": "t", "size": 1})
    assert (row.priority, row.source, row.status) == (7, Source.SCHEDULE, QueueStatus.QUEUED)
    assert row.scheduled_for == NOW


def test_a_manifests_own_priority_wins_over_its_groups():
    make_manifest(group=make_group(priority=7), priority=3)
    evaluate(now=NOW)
    assert WorkQueue.objects.get().priority == 3


def disabled():
    make_manifest(is_enabled=False)


def in_disabled_group():
    make_manifest(group=make_group(is_enabled=False))


def retired():
    make_manifest(retired_at=NOW)


def awaiting_letter():
    make_letter(make_manifest())


def queued():
    make_queue_row(make_manifest())


def pending():
    make_execution(make_manifest())


def running():
    make_execution(make_manifest(), state=ExecutionState.IN_PROGRESS)


def on_demand():
    make_manifest(schedule_type=ScheduleType.ON_DEMAND)


def dormant():
    make_manifest(
        schedule_type=ScheduleType.DORMANT_DEPENDENT,
        run_condition=RunCondition.SUCCESS,
        depends_on=make_manifest(state={}),
    )


def parent_disabled():
    make_dependent(make_manifest(state={}, is_enabled=False), state={"due_execution": 5, **DUE})


def parent_gone():
    make_manifest(
        schedule_type=ScheduleType.DEPENDENT, run_condition=RunCondition.SUCCESS, state={"due_execution": 5, **DUE}
    )


def parent_not_ahead():
    make_dependent(make_manifest(state={}), state={"due_execution": 5, "covered_execution": 5, **DUE})


def done():
    make_manifest(schedule_type=ScheduleType.ONCE, once_at=NOW, done_at=NOW)


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (disabled, Reason.DISABLED),
        (in_disabled_group, Reason.GROUP_DISABLED),
        (retired, Reason.RETIRED),
        (awaiting_letter, Reason.AWAITING_DEAD_LETTER),
        (queued, Reason.QUEUED),
        (pending, Reason.PENDING),
        (running, Reason.RUNNING),
        (on_demand, Reason.ON_DEMAND),
        (dormant, Reason.DORMANT),
        (parent_disabled, Reason.PARENT_DISABLED),
        (parent_gone, Reason.PARENT_MISSING),
        (parent_not_ahead, Reason.PARENT_NOT_AHEAD),
        (done, Reason.DONE),
    ],
)
def test_what_may_not_run_is_not_queued_and_not_looked_at_again(prepare, reason):
    prepare()
    before = WorkQueue.objects.count()
    evaluated = evaluate(now=NOW)
    assert dict(evaluated.passed_over) == {reason: 1}
    assert WorkQueue.objects.count() == before
    assert evaluate(now=NOW + timedelta(days=1)).seen == 0


def test_what_is_not_due_is_not_looked_at():
    make_manifest(state={"next_run_at": NOW + timedelta(seconds=1)})
    make_manifest(state={})
    assert evaluate(now=NOW).seen == 0


def test_a_disabled_group_of_many_costs_one_turn_and_is_armed_when_it_is_enabled():
    group = make_group(is_enabled=False)
    manifests = [make_manifest(group=group) for _ in range(30)]
    assert evaluate(now=NOW).seen == 30
    assert evaluate(now=NOW).seen == 0
    ManifestGroup.objects.update(is_enabled=True)
    assert arm([manifest.id for manifest in manifests], now=NOW) == 30
    assert evaluate(now=NOW).queued == 30


def test_capacity_plays_no_part(settings):
    settings.CHAINSCHED = {"MAX_ACTIVE_JOBS": 1}
    group = make_group(max_active_jobs=1)
    for _ in range(5):
        make_manifest(group=group)
    assert evaluate(now=NOW).queued == 5


def test_a_broken_schedule_is_reported_and_does_not_stop_the_others(caplog):
    broken = make_manifest(
        schedule_type=ScheduleType.CRON,
        cron_expression="* * * * *",
        timezone="Mars/Olympus",
        misfire_policy="skip",
        state={"next_run_at": NOW - timedelta(hours=1)},
    )
    make_manifest("good")
    evaluated = evaluate(now=NOW)
    assert evaluated.queued == 1
    assert evaluated.passed_over == {Reason.UNSCHEDULABLE: 1}
    assert ManifestState.objects.get(manifest=broken).next_run_at is None


def test_a_row_that_the_database_refuses_is_put_aside_and_the_others_are_queued(caplog, monkeypatch):
    manifests = [make_manifest() for _ in range(9)]
    bad = manifests[4]
    from chainsched.flow.run import enqueue as stage  # noqa: PLC0415

    row = stage._row
    monkeypatch.setattr(
        stage,
        "_row",
        lambda order, job, **rest: row(order, job, **rest) | ({"priority": 99} if order.manifest_id == bad.id else {}),
    )
    evaluated = evaluate(now=NOW)
    assert evaluated.queued == 8
    assert ManifestState.objects.get(manifest=bad).next_run_at is None
    assert f"Manifest {bad.id} cannot be queued and is put aside: " in caplog.text


def test_a_trigger_runs_a_disabled_manifest_with_its_own_input():
    make_manifest(
        is_enabled=False, input={"a": 1}, state={"next_run_at": NOW, "trigger_at": NOW, "trigger_input": {"b": 2}}
    )
    assert evaluate(now=NOW).queued == 1
    row = WorkQueue.objects.get()
    assert (row.source, row.input) == (Source.TRIGGER, {"b": 2})
    state = ManifestState.objects.get()
    assert (state.trigger_at, state.trigger_input) == (None, None)


def test_a_trigger_without_input_uses_the_manifests():
    make_manifest(input={"a": 1}, state={"next_run_at": NOW, "trigger_at": NOW})
    evaluate(now=NOW)
    assert WorkQueue.objects.get().input == {"a": 1}


def test_a_delayed_trigger_survives_a_scheduled_run():
    later = NOW + timedelta(hours=1)
    make_manifest(state={"next_run_at": NOW, "trigger_at": later, "trigger_input": {"b": 2}})
    evaluate(now=NOW)
    state = ManifestState.objects.get()
    assert (state.trigger_at, state.trigger_input) == (later, {"b": 2})
    assert WorkQueue.objects.get().source == Source.SCHEDULE


def test_a_save_of_the_manifest_leaves_its_run_time_state_alone():
    manifest = make_manifest()
    stale = Manifest.objects.get(pk=manifest.pk)
    evaluate(now=NOW)
    stale.priority = 9
    stale.save()
    assert ManifestState.objects.get().next_run_at is None


def statements_of_a_turn() -> int:
    with CaptureQueriesContext(
        connection,
    ) as captured:
        evaluate(now=NOW)
    return len([query for query in captured.captured_queries if "SAVEPOINT" not in query["sql"]])


def test_the_number_of_statements_follows_neither_what_is_due_nor_what_exists():
    make_many_manifests(1, due=1)
    one = statements_of_a_turn()
    make_many_manifests(10, due=10)
    few = statements_of_a_turn()
    make_many_manifests(1000, due=100)
    many = statements_of_a_turn()
    assert WorkQueue.objects.count() == 111
    assert one < few == many


@pytest.mark.slow
def test_a_turn_over_a_hundred_thousand_manifests_takes_the_statements_of_one_over_a_thousand():
    make_many_manifests(1000, due=100)
    few = statements_of_a_turn()
    make_many_manifests(100_000, due=100)
    assert statements_of_a_turn() == few
    assert WorkQueue.objects.count() == 200


def explain_due_query() -> dict:
    with CaptureQueriesContext(connection) as captured, transaction.atomic():
        ManifestState.objects.lock_due_page(NOW, limit=1000)
    (sql,) = (query["sql"] for query in captured.captured_queries if "next_run_at" in query["sql"])
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE chainsched_manifeststate")
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}")
        return cursor.fetchone()[0][0]["Plan"]


def node_types(plan: dict) -> set[str]:
    return {plan["Node Type"]}.union(*(node_types(child) for child in plan.get("Plans", [])))


def index_names(plan: dict) -> set[str]:
    own = {plan["Index Name"]} if "Index Name" in plan else set()
    return own.union(*(index_names(child) for child in plan.get("Plans", [])))


@pytest.mark.postgres
@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_the_due_query_reads_its_index_and_as_much_at_a_hundred_thousand_as_at_a_thousand():
    make_many_manifests(1000, due=100)
    small = explain_due_query()
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE chainsched_manifest, chainsched_manifeststate, chainsched_dependency, chainsched_near")
    make_many_manifests(100_000, due=100)
    large = explain_due_query()
    # By the alarms, and one look by key for each of them, whether this version knows its manifest.
    assert index_names(large) == {"chainsched_state_alarm", "chainsched_manifest_pkey"}
    assert "Seq Scan" not in node_types(large)
    assert large["Actual Rows"] == small["Actual Rows"] == 100
    assert buffers(large) <= 1.5 * buffers(small)


def buffers(plan: dict) -> int:
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
