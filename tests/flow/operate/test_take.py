"""Workers that take queued rows for themselves: side by side, under shared limits, and when a turn goes wrong."""

from datetime import timedelta

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from chainsched.db import notify
from chainsched.domain.capacity import Candidate
from chainsched.domain.routing import Pool
from chainsched.flow.operate import take as module
from chainsched.flow.operate.take import Taken, take
from chainsched.flow.run import dispatch as dispatching
from chainsched.flow.run.dispatch import TurnIsHeld, dispatch
from chainsched.flow.transactions import LostMidway
from chainsched.models import Metadata, WorkQueue, queue_looks
from tests.factories import NOW, make_execution, make_group, make_manifest, make_process, make_queue_row

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def standing_clock(monkeypatch):
    monkeypatch.setattr("chainsched.db.clock._stopped_at", NOW)


def worker(*names, slots=1):
    return make_process(workflows=list(names), slots=slots, heartbeat_at=NOW)


def queue(workflow, number, *, group=None, priority=0, first_turn=1):
    return [
        make_queue_row(
            make_manifest(group=group, workflow=workflow, state={}),
            workflow=workflow,
            group=group,
            priority=priority,
            turn=first_turn + index,
        )
        for index in range(number)
    ]


def take_by(process, *, limit=50):
    return [item.workflow for item in take(process=process, limit=limit).claims]


def end_one(process):
    """One job of this process ends."""
    ended = Metadata.objects.in_progress().filter(process=process).order_by("id").first()
    Metadata.objects.filter(id=ended.id).update(state="completed", ended_at=NOW)


def candidate(row):
    return Candidate(row.id, row.group_id, row.turn, row.priority)


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        pytest.param([(1, 9), (0, 0), (0, 5), (31, 2)], [(31, 2), (1, 9), (0, 0)], id="higher priorities, then turns"),
        pytest.param([(0, 1), (0, 1), (0, 2)], [(0, 1)], id="in one turn the older row"),
        pytest.param([], [], id="none"),
    ],
)
def test_the_rows_before_one_are_found(places, expected):
    rows = [queue("other", 1, priority=priority, first_turn=turn) for priority, turn in places[:1]]
    (own,) = queue("own", 1, first_turn=1)
    rows += [queue("other", 1, priority=priority, first_turn=turn) for priority, turn in places[1:]]
    found = queue_looks.before(candidate(own), pool=Pool(["other"]), full_groups=[], now=NOW, limit=5)
    assert [(row.priority, row.turn) for row in found] == expected
    assert queue_looks.first_of(Pool(["own"]), full_groups=[], now=NOW) == candidate(own)


def test_rows_behind_a_row_are_not_read():
    (own,) = queue("own", 1)
    other = queue("other", 3, first_turn=2)
    with CaptureQueriesContext(connection) as captured:
        assert not queue_looks.before(candidate(own), pool=Pool(["other"]), full_groups=[], now=NOW, limit=5)
    assert len(captured) == 2
    assert len(other) == 3


class TestSharedLimits:
    """Two workers that know different workflows: the one that frees a place does not take all that follow."""

    def test_a_place_of_a_group_goes_to_the_row_that_comes_first(self):
        group = make_group(max_active_jobs=1)
        queue("long", 30, group=group)
        queue("urgent", 3, group=group, priority=31)
        one, other = worker("long"), worker("urgent")
        taken = []
        for _ in range(6):
            for process in (one, other):
                taken += take_by(process)
                if Metadata.objects.in_progress().exists():
                    end_one(Metadata.objects.in_progress().get().process)
        assert taken[:3] == ["urgent"] * 3
        assert set(taken[3:]) == {"long"}

    def test_so_do_the_places_of_all(self, settings):
        settings.CHAINSCHED = {"MAX_ACTIVE_JOBS": 4}
        queue("long", 200)
        one, other = worker("long", slots=4), worker("urgent", slots=4)
        assert len(take_by(one)) == 50, "more than it runs at once"
        queue("urgent", 3, priority=31)
        assert take_by(other) == []
        for _ in range(47):
            assert take_by(one) == [], "it takes nothing ahead any more"
            end_one(one)
        assert take_by(other) == ["urgent"]

    def test_within_a_priority_the_turns_decide(self):
        group = make_group(max_active_jobs=1)
        queue("long", 3, group=group)
        queue("other", 3, group=group, first_turn=2)
        one, other = worker("long"), worker("other")
        taken = []
        for _ in range(12):
            for process in (one, other):
                for name in take_by(process):
                    taken.append(name)
                    end_one(process)
        assert taken == ["long", "long", "other", "long", "other", "other"]

    def test_the_other_worker_is_woken(self, monkeypatch, django_capture_on_commit_callbacks):
        woken: list[str] = []
        monkeypatch.setattr(notify, "send", woken.append)
        group = make_group(max_active_jobs=1)
        queue("long", 1, group=group)
        queue("urgent", 1, group=group, priority=31)
        one = worker("long")
        worker("urgent")
        with django_capture_on_commit_callbacks(execute=True):
            assert take_by(one) == []
        assert woken == [notify.WORKER]

    @pytest.mark.parametrize("state", ["busy", "lost", "silent", "stopped"])
    def test_no_place_is_left_to_one_that_cannot_take_it(self, state):
        group = make_group(max_active_jobs=2)
        queue("long", 1, group=group)
        queue("urgent", 2, group=group, priority=31)
        one, other = worker("long"), worker("urgent")
        columns = {"lost": "lost_at", "stopped": "stopped_at", "silent": "heartbeat_at"}
        if state == "busy":
            make_execution(make_manifest(workflow="urgent"), workflow="urgent", state="in_progress", process=other)
        else:
            setattr(other, columns[state], NOW - timedelta(hours=1))
            other.save()
        assert take_by(one) == ["long"]

    def test_workers_that_know_the_same_take_what_they_find(self):
        group = make_group(max_active_jobs=5)
        queue("long", 10, group=group)
        one, _ = worker("long", slots=5), worker("long", slots=5)
        assert len(take_by(one)) == 5


def test_rows_of_other_workflows_are_no_reason_to_wait_for_a_turn(monkeypatch):
    queue("other", 3)
    monkeypatch.setattr(module, "dispatch", None)
    assert take(process=worker("own"), limit=5) == Taken()


def test_a_turn_that_another_process_holds_is_tried_again(monkeypatch):
    def is_held(**_options):
        raise TurnIsHeld("another process has held its turn")

    queue("own", 1)
    monkeypatch.setattr(module, "dispatch", is_held)
    assert take(process=worker("own"), limit=5) == Taken(has_more=True)


@pytest.mark.parametrize("is_taker", [True, False])
def test_what_a_lost_connection_may_have_taken_is_looked_for_before_more_is_taken(monkeypatch, is_taker):
    """Its transaction may be committed: trying the same rows again would find nothing, and say that all is well."""
    lost = iter([True])

    def lose_once(*arguments, **options):
        if next(lost, False):
            raise LostMidway("the connection was lost")
        return mark(*arguments, **options)

    mark = dispatching._mark_dispatched
    monkeypatch.setattr(dispatching, "_mark_dispatched", lose_once)
    queue("own", 1)
    process = worker("own")
    if is_taker:
        with pytest.raises(OperationalError):
            dispatch(workflows=["own"], taker=process)
        assert not Metadata.objects.exists()
    else:
        assert len(dispatch(workflows=["own"]).execution_ids) == 1


def test_rows_that_cannot_be_cancelled_yet_hide_none_behind_them(monkeypatch):
    """A caller's transaction may hold the manifests of a cancelled run for minutes."""
    stuck, free = queue("own", 30), queue("own", 1, first_turn=100)
    cancelled = {row.id for row in stuck}
    monkeypatch.setattr(dispatching, "find_cancelled", cancelled.intersection)
    monkeypatch.setattr(module, "cancel_late", lambda row_ids, *, now: 0)
    taken = take(process=worker("own"), limit=1)
    assert [Metadata.objects.get(id=item.execution_id).work_queue_id for item in taken.claims] == [free[0].id]


def test_a_turn_that_only_cancelled_is_followed_by_another(monkeypatch):
    (row,) = queue("own", 1)
    monkeypatch.setattr(dispatching, "find_cancelled", {row.id}.intersection)
    monkeypatch.setattr(
        module, "cancel_late", lambda row_ids, *, now: WorkQueue.objects.cancel_rows(row_ids, reason="x") and 1
    )
    taken = take(process=worker("own"), limit=1)
    assert taken.cancelled == 1
