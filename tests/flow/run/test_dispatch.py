"""The dispatcher's turn: order, limits, fairness, and what waits."""

from collections import Counter
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from chainsched.db.clock import database_now
from chainsched.domain.states import ExecutionState, QueueStatus, Source
from chainsched.flow.run.dispatch import HAS_ANOTHER, dispatch
from chainsched.flow.run.enqueue import enqueue
from chainsched.flow.run.requests import QueueRequest
from chainsched.models import Manifest, Metadata, WorkQueue
from tests.factories import NOW, make_execution, make_group, make_manifest, make_queue_row

pytestmark = pytest.mark.django_db

KNOWN = ["testapp.ping"]


def turn(**options):
    return dispatch(**{"workflows": KNOWN, "now": NOW, **options})


def make_backlog(group, number, **columns):
    return [make_queue_row(make_manifest(group=group, state={}), **columns) for _ in range(number)]


def started():
    return list(Metadata.objects.order_by("id").values_list("work_queue_id", flat=True))


def started_by_group():
    return Counter(Metadata.objects.values_list("group__name", flat=True))


def test_a_row_becomes_one_execution_with_its_time_and_link():
    row = make_queue_row(make_manifest("sync", state={}), priority=4, attempt=2, input={"a": 1})
    assert len(turn().execution_ids) == 1
    assert turn().execution_ids == []
    execution = Metadata.objects.get()
    row.refresh_from_db()
    assert (row.status, row.execution_id) == (QueueStatus.DISPATCHED, execution.id)
    assert (execution.state, execution.created_at, execution.ended_at) == (ExecutionState.PENDING, NOW, None)
    assert (execution.priority, execution.attempt, execution.input) == (4, 2, {"a": 1})
    assert execution.manifest_external_id == "sync"
    assert execution.timeout_seconds == 1200
    assert execution.root_correlation_id == str(execution.external_id)


def test_a_manifests_own_timeout_is_the_one_that_counts():
    make_queue_row(make_manifest(state={}, timeout_seconds=7))
    turn()
    assert Metadata.objects.get().timeout_seconds == 7


def test_rows_start_by_priority_then_turn_then_age():
    rows = [
        make_queue_row(make_manifest(state={}), priority=priority, turn=at)
        for priority, at in [(0, 1), (5, 9), (5, 2), (31, 50), (5, 2)]
    ]
    turn(limit=2)
    turn(limit=1)
    turn(limit=2)
    assert started() == [rows[index].id for index in (3, 2, 4, 1, 0)]


def test_cancelled_and_dispatched_rows_are_ignored():
    make_queue_row(make_manifest(state={}), status=QueueStatus.CANCELLED)
    assert turn().execution_ids == []


def test_the_limits_of_all_and_of_each_group_hold_together(settings):
    settings.CHAINSCHED = {"MAX_ACTIVE_JOBS": 5}
    first, second = make_group("A", max_active_jobs=3), make_group("B", max_active_jobs=3)
    make_backlog(second, 4, priority=10)
    make_backlog(first, 4, priority=20)
    turn()
    assert started_by_group() == {"A": 3, "B": 2}
    assert turn().execution_ids == []


@pytest.mark.parametrize("state", [ExecutionState.PENDING, ExecutionState.IN_PROGRESS])
def test_pending_and_running_count_against_the_limit(settings, state):
    settings.CHAINSCHED = {"MAX_ACTIVE_JOBS": 2}
    make_execution(make_manifest(state={}), state=state)
    make_backlog(make_group(), 3)
    assert len(turn().execution_ids) == 1


def test_ended_executions_do_not_count(settings):
    settings.CHAINSCHED = {"MAX_ACTIVE_JOBS": 1}
    make_execution(make_manifest(state={}), state=ExecutionState.FAILED)
    make_backlog(make_group(), 3)
    assert len(turn().execution_ids) == 1


def test_without_a_limit_all_start(settings):
    settings.CHAINSCHED = {"MAX_ACTIVE_JOBS": None}
    make_backlog(make_group(), 150)
    assert len(turn().execution_ids) == 150


def test_a_lowered_limit_starts_nothing_and_breaks_nothing():
    group = make_group(max_active_jobs=1)
    for _ in range(3):
        make_execution(make_manifest(group=group, state={}))
    make_backlog(group, 1)
    assert turn().execution_ids == []


@pytest.mark.parametrize("columns", [{"max_active_jobs": 1}, {"is_enabled": False}])
def test_a_full_or_disabled_group_blocks_nobody_else(columns):
    blocked = make_group("blocked", **columns)
    make_execution(make_manifest(group=blocked, state={}))
    make_backlog(blocked, 20, priority=31)
    make_backlog(make_group("free"), 2)
    turn(limit=5)
    assert started_by_group() == {"blocked": 1, "free": 2}


def test_a_group_that_fills_up_within_a_turn_lets_the_others_pass():
    make_backlog(make_group("small", max_active_jobs=1), 20, priority=31)
    make_backlog(make_group("free"), 2)
    turn(limit=10)
    assert started_by_group() == {"small": 1, "free": 2}


def test_rows_that_wait_for_their_time_wait():
    """Although nothing has parked them: a row that had another manifest or rank just now is in line."""
    make_queue_row(make_manifest(state={}), not_before=NOW + timedelta(seconds=1), parked_for="")
    assert turn().execution_ids == []
    assert len(turn(now=NOW + timedelta(seconds=1)).execution_ids) == 1


def test_rows_without_a_manifest_obey_the_global_limit_alone(settings):
    settings.CHAINSCHED = {"MAX_ACTIVE_JOBS": 2}
    for _ in range(3):
        make_queue_row(None)
    assert len(turn().execution_ids) == 2


def test_a_workflow_that_nobody_knows_waits_and_blocks_nobody():
    unknown = make_queue_row(make_manifest(state={}, workflow="old.name"), priority=31)
    make_backlog(make_group(), 1)
    assert len(turn(limit=1).execution_ids) == 1
    unknown.refresh_from_db()
    assert unknown.status == QueueStatus.QUEUED
    assert len(turn(workflows=["old.name"]).execution_ids) == 1


@pytest.mark.parametrize(
    ("source", "expected"), [(Source.SCHEDULE, 0), (Source.RETRY, 0), (Source.TRIGGER, 1), (Source.DEAD_LETTER, 1)]
)
def test_a_disabled_manifest_runs_only_what_a_person_asked_for(source, expected):
    make_queue_row(make_manifest(state={}, is_enabled=False), source=source)
    assert len(turn().execution_ids) == expected


def test_a_released_row_runs_when_its_manifest_is_enabled_again():
    manifest = make_manifest(state={}, is_enabled=False)
    make_queue_row(manifest)
    turn()
    Manifest.objects.update(is_enabled=True)
    assert len(turn().execution_ids) == 1


def test_a_row_whose_manifest_has_an_execution_under_way_is_put_aside(caplog):
    manifest = make_manifest(state={})
    make_execution(manifest)
    make_queue_row(manifest)
    make_backlog(make_group(), 2)
    assert len(turn().execution_ids) == 2
    assert WorkQueue.objects.queued().get().put_aside_reason == HAS_ANOTHER
    assert "put aside" in caplog.text


def test_one_huge_group_does_not_starve_small_ones(settings):
    settings.CHAINSCHED = {"MAX_ACTIVE_JOBS": None}
    huge = make_group("huge")
    members = [make_manifest(group=huge, state={}) for _ in range(200)]
    enqueue([QueueRequest(member.id, Source.SCHEDULE, NOW) for member in members], now=NOW)
    turn(limit=10)
    small = [make_manifest(group=make_group(f"small-{number}"), state={}) for number in range(10)]
    enqueue([QueueRequest(member.id, Source.SCHEDULE, NOW) for member in small], now=NOW)
    turn(limit=11)
    assert started_by_group()["huge"] == 11
    assert sum(started_by_group().values()) == 21


def test_groups_that_fill_up_one_after_the_other_leave_no_room_unused(settings):
    settings.CHAINSCHED = {"MAX_ACTIVE_JOBS": None}
    for number in range(9):
        make_backlog(make_group(max_active_jobs=1), 12, priority=number)
    started = 0
    for _ in range(3):
        dispatched = turn(limit=10)
        started += len(dispatched.execution_ids)
        if not dispatched.has_more:
            break
    assert started == 9


def test_what_busier_priorities_started_does_not_put_small_groups_behind_a_huge_one(settings):
    settings.CHAINSCHED = {"MAX_ACTIVE_JOBS": None}
    huge = make_group("huge")
    enqueue([QueueRequest(make_manifest(group=huge, state={}).id, Source.SCHEDULE, NOW) for _ in range(30)], now=NOW)
    busy = make_group("busy", priority=20)
    enqueue([QueueRequest(make_manifest(group=busy, state={}).id, Source.SCHEDULE, NOW) for _ in range(40)], now=NOW)
    turn(limit=40)
    small = make_manifest(group=make_group("small"), state={})
    enqueue([QueueRequest(small.id, Source.SCHEDULE, NOW)], now=NOW)
    turn(limit=2)
    assert started_by_group()["small"] == 1


def test_a_start_is_timed_after_the_lock_that_allowed_it():
    make_backlog(make_group(), 1)
    before = database_now()
    dispatch(workflows=KNOWN)
    assert Metadata.objects.get().created_at >= before


def test_large_inputs_stay_in_the_database():
    make_queue_row(make_manifest(state={}), input={"text": "a-large-input"})
    with CaptureQueriesContext(connection) as captured:
        turn()
    assert Metadata.objects.get().input == {"text": "a-large-input"}
    assert not any("a-large-input" in query["sql"] for query in captured.captured_queries)


def test_a_turn_moves_any_number_of_rows_with_the_same_statements(settings):
    settings.CHAINSCHED = {"MAX_ACTIVE_JOBS": None}

    def statements():
        with CaptureQueriesContext(connection) as captured:
            turn()
        return len(captured.captured_queries)

    turn()  # makes the Loop row
    make_backlog(make_group(), 1)
    few = statements()
    make_backlog(make_group(), 200, turn=2)
    assert statements() == few
    assert Metadata.objects.count() == 201
