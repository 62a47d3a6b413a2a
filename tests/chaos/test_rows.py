"""The harness's reads of the database after a run."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from chainsched.db.clock import database_now, stop_clock
from chainsched.domain.states import ExecutionState
from chainsched.models import DueNote, GraphRun, JoinNote, JoinState, ManifestState, Metadata, TakenOver, WorkQueue
from chaos import rows
from chaos.fleet import SCHEDULER, WORKER
from tests.factories import NOW, make_dependent, make_execution, make_manifest, make_process, make_queue_row

pytestmark = pytest.mark.django_db

PID = 4711


@pytest.fixture(autouse=True)
def no_time_passes():
    """A heartbeat of now stays fresh, also if a test takes long."""
    stop_clock(NOW)
    yield
    stop_clock(None)


def alive(*, turns, **fields):
    """A process with a heartbeat of now, and with loops that turned so many seconds ago."""
    now = database_now()
    turned = {name: (now - timedelta(seconds=seconds)).isoformat() for name, seconds in turns.items()}
    return make_process(**{"pid": PID, "started_at": now, "heartbeat_at": now, "turns": turned, **fields})


def idle_processes(kind):
    member: Any = SimpleNamespace(kind=kind, name="member-1", pid=PID)
    return rows.idle_processes([member])


@pytest.mark.parametrize(
    ("kind", "turns"), [(SCHEDULER, {"manager": 1, "dispatcher": 1, "reaper": 1}), (WORKER, {"reaper": 1})]
)
def test_a_process_that_beats_and_turns_is_not_idle(kind, turns):
    alive(turns=turns)
    assert idle_processes(kind) == []


def test_a_process_that_does_not_beat_is_idle():
    assert idle_processes(WORKER) == ["member-1 has no heartbeat"]
    alive(turns={"reaper": 1}, heartbeat_at=database_now() - timedelta(minutes=1))
    assert idle_processes(WORKER) == ["member-1 has no heartbeat"]


def test_a_loop_that_stands_still_and_one_that_never_turned_are_noticed():
    process = alive(turns={"manager": 1, "dispatcher": 60})
    assert idle_processes(SCHEDULER) == [
        f"member-1: the dispatcher has not turned since {process.turns['dispatcher']}",
        "member-1: the reaper has never turned",
    ]


def test_of_two_leases_the_newer_one_counts():
    alive(turns={"reaper": 60}, heartbeat_at=database_now() - timedelta(minutes=1))
    alive(turns={"reaper": 1})
    assert idle_processes(WORKER) == []


def test_it_is_quiet_when_nothing_is_queued_under_way_or_due():
    manifest = make_manifest(state={})
    assert rows.is_quiet()
    make_queue_row(manifest)
    assert not rows.is_quiet()
    WorkQueue.objects.all().delete()
    make_execution(manifest)
    assert not rows.is_quiet()
    Metadata.objects.update(state=ExecutionState.CANCELLED, ended_at=database_now())
    assert rows.is_quiet()
    ManifestState.objects.update(next_run_at=database_now())
    assert not rows.is_quiet()


@pytest.mark.parametrize(
    "leave",
    [
        pytest.param(lambda: DueNote.objects.create(child_id=1), id="a note to a dependent"),
        pytest.param(lambda: JoinNote.objects.create(state_id=1), id="a note to a join"),
        pytest.param(lambda: GraphRun.objects.create(scheduled_for=NOW, created_at=NOW), id="an open run"),
    ],
)
def test_it_is_not_quiet_while_there_is(leave):
    assert rows.is_quiet()
    leave()
    assert not rows.is_quiet()


def test_an_execution_names_all_runs_that_it_stands_for():
    execution = make_execution(make_manifest(state={}), run_id=8)
    TakenOver.objects.create(run_id=7, execution_id=execution.id)
    (found,) = rows.executions()
    assert found.runs == {7, 8}


def test_runs_of_the_graph_and_their_joins_are_read_by_name():
    head = make_manifest("head", state={})
    joined = make_dependent(head, "joined", fan_in="siblings")
    run = GraphRun.objects.create(head=head, head_external_id="head", scheduled_for=NOW, created_at=NOW)
    for join_id in (joined.id, 0):
        JoinState.objects.create(run=run, join_id=join_id, open=1)
    assert [(passage.id, passage.head, passage.closed_at) for passage in rows.passages()] == [(run.id, "head", None)]
    assert [(row.run, row.join, row.open, row.outcome) for row in rows.waiting()] == [
        (run.id, "joined", 1, "waiting"),
        (run.id, "", 1, "waiting"),
    ]


def test_notes_that_are_left_are_named():
    DueNote.objects.create(child_id=3)
    JoinNote.objects.create(state_id=4)
    assert rows.notes() == ["note to manifest 3", "note to JoinState 4"]


def held_up(*besides):
    return rows.held_up(seconds=6, besides=besides)


LATE = NOW - timedelta(seconds=7)


def test_manifests_that_come_due_soon_are_found():
    for name, seconds in (("due", 0), ("at once", 1), ("soon", 2), ("later", 4)):
        make_manifest(name, state={"next_run_at": NOW + timedelta(seconds=seconds)})
    assert rows.coming_due(within=3) == ["soon"]


def test_a_manifest_that_is_due_and_not_queued_is_held_up():
    make_manifest("late", state={"next_run_at": LATE})
    make_manifest("in time", state={"next_run_at": NOW - timedelta(seconds=5)})
    assert held_up() == ["late was due for 6 s"]
    assert held_up("late") == []


@pytest.mark.parametrize(
    ("make", "columns"), [(make_queue_row, {}), (make_execution, {"state": ExecutionState.PENDING})], ids=["row", "run"]
)
def test_work_that_waits_is_held_up_if_nothing_else_moved(make, columns):
    make(make_manifest("job", state={}), created_at=LATE, **columns)
    assert held_up() == ["nothing was dispatched, claimed or ended for 6 s although work waited"]
    assert held_up("job") == []
    make_execution(make_manifest(state={}), created_at=LATE, state=ExecutionState.COMPLETED, ended_at=NOW)
    assert held_up() == []


def test_work_that_has_just_come_or_waits_for_its_time_is_not_held_up():
    make_queue_row(make_manifest(state={}), created_at=NOW)
    make_queue_row(make_manifest(state={}), created_at=LATE, not_before=NOW)
    assert held_up() == []
