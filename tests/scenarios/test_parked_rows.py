"""Rows that may not start are out of the line, whatever their number; whatever lifts the reason lets them in."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from chainsched import Every, ManifestItem
from chainsched.domain import outcomes
from chainsched.domain.outcomes import Finished
from chainsched.domain.parking import KEPT, ParkedFor
from chainsched.domain.states import QueueStatus
from chainsched.flow.maintain.fsck import reconcile, run_fsck
from chainsched.flow.operate.take import take
from chainsched.flow.run import park as parking
from chainsched.flow.run.dispatch import TurnIsHeld
from chainsched.flow.run.record import record
from chainsched.flow.schedule.declare import schedules
from chainsched.flow.schedule.seed import seed
from chainsched.models import Manifest, ManifestGroup, Metadata, Process, WorkQueue
from chainsched.registry import registry
from chainsched.runtime.loops.dispatcher import PARK_SECONDS, Dispatcher
from tests.drive import executions_of, manifest
from tests.factories import make_process
from tests.testapp import workflows

pytestmark = pytest.mark.django_db

HOURLY = Every.hours(1)


@pytest.fixture(autouse=True)
def worker(bench) -> Process:
    """A worker that runs two jobs at once and knows all workflows."""
    return make_process(workflows=registry.names(), slots=2, heartbeat_at=bench.now)


@pytest.fixture
def declared():
    yield schedules
    schedules.clear()


def queue(bench, name="job", **options) -> WorkQueue:
    options = {"group": "g", **options}
    Manifest.objects.schedule(workflows.ping, name, None, HOURLY, **options)
    bench.manage()
    return row_of(name)


def row_of(name="job") -> WorkQueue:
    return WorkQueue.objects.queued().get(manifest_external_id=name)


def group() -> ManifestGroup:
    return ManifestGroup.objects.get(name="g")


def turn(bench):
    return Dispatcher().turn(bench.now)


def take_by(process) -> list[str]:
    ids = [item.execution_id for item in take(process=process, limit=50).claims]
    names = dict(Metadata.objects.filter(id__in=ids).values_list("id", "manifest_external_id"))
    return [names[id_] for id_ in ids]


def end(*names) -> None:
    """Their runs end one after the other; each next one has been taken by then."""
    for name in names:
        take_by(Process.objects.get())
        (execution,) = executions_of(name)
        record([Finished(execution.id, outcomes.completed(None))], now=execution.started_at)


def end_one_and_cancel_the_other(_bench) -> None:
    end("busy")
    manifest("next").cancel()


# What parks the row of "job", and each way in which that ends.


def disabled(bench):
    queue(bench)
    manifest("job").disable()


def in_a_disabled_group(bench):
    queue(bench)
    group().disable()


def in_a_full_group(bench):
    """Two rows of a group with one place, which another job has: the second one leaves the line."""
    worker = Process.objects.get()
    queue(bench, "busy", group_max_active_jobs=1)
    assert take_by(worker) == ["busy"]
    queue(bench, "next")
    queue(bench)


def of_a_workflow_that_no_process_knows(bench):
    queue(bench)
    Process.objects.update(workflows=["testapp.fail"])


def in_a_queue_that_no_process_takes(bench):
    queue(bench, queue="heavy")
    Process.objects.update(queues=["default"])


def waiting_for_its_next_attempt(bench):
    queue(bench, max_retries=3)
    assert take_by(Process.objects.get()) == ["job"]
    (execution,) = executions_of("job")
    record([Finished(execution.id, outcomes.raised(RuntimeError("broken")))], now=bench.now)


def with_one_more_process(**columns):
    return make_process(
        **{"workflows": registry.names(), "slots": 2, "heartbeat_at": Process.objects.get().heartbeat_at, **columns}
    )


WAYS: dict[tuple[Callable[..., None], ParkedFor], dict[str, Callable[..., object]]] = {
    (disabled, ParkedFor.DISABLED): {
        "enabling it": lambda bench: manifest("job").enable(),
        "a trigger": lambda bench: manifest("job").trigger(),
        "bringing its row forward": lambda bench: row_of().bring_forward(),
        "a declaration that enables it": lambda bench: queue(bench, enabled=True),
    },
    (in_a_disabled_group, ParkedFor.DISABLED): {
        "enabling the group": lambda bench: group().enable(),
        "a declaration that enables the group": lambda bench: queue(bench, group_enabled=True),
        "a declaration that moves it to another group": lambda bench: queue(bench, group="other"),
    },
    (in_a_full_group, ParkedFor.GROUP_FULL): {
        "the end of two runs": lambda bench: end("busy", "next"),
        "a higher limit": lambda bench: group().set_limits(max_active_jobs=3, priority=0),
        "no limit any more": lambda bench: ManifestGroup.objects.update(max_active_jobs=None),
        "a declaration of a higher limit": lambda bench: queue(bench, "more", group_max_active_jobs=3),
        "a declaration that moves it to another group": lambda bench: queue(bench, group="other"),
        "the end of one and cancelling the other": end_one_and_cancel_the_other,
    },
    (of_a_workflow_that_no_process_knows, ParkedFor.NO_WORKER): {
        "a process that knows it": lambda bench: with_one_more_process(),
        "a declaration of another workflow": lambda bench: Manifest.objects.schedule(
            workflows.fail, "job", None, HOURLY, group="g"
        ),
    },
    (in_a_queue_that_no_process_takes, ParkedFor.NO_WORKER): {
        "a process that takes all queues": lambda bench: with_one_more_process(),
        "a process that takes this queue": lambda bench: with_one_more_process(queues=["heavy"]),
        "a declaration of another queue": lambda bench: queue(bench, queue="default"),
    },
    (waiting_for_its_next_attempt, ParkedFor.TIME): {
        "its time": lambda bench: bench.advance(hours=1),
        "a trigger": lambda bench: manifest("job").trigger(),
        "bringing its row forward": lambda bench: row_of().bring_forward(),
    },
}
CASES = [
    pytest.param(park, reason, lift, id=f"{park.__name__.replace('_', ' ')}: {name}")
    for (park, reason), lifts in WAYS.items()
    for name, lift in lifts.items()
]
PARKED = [pytest.param(park, reason, id=park.__name__.replace("_", " ")) for park, reason in WAYS]


@pytest.mark.parametrize(("park", "reason"), PARKED)
def test_a_row_that_may_not_start_leaves_the_line_and_says_why(bench, worker, park, reason):
    park(bench)
    before = manifest("job").explain()
    turn(bench)
    assert row_of().parked_for == reason
    assert manifest("job").explain() == before, "the explanation is the same as before it was parked"
    assert not WorkQueue.objects.in_line().filter(manifest_external_id="job").exists()
    turn(bench)
    assert row_of().parked_for == reason, "it stays parked"
    assert run_fsck(now=bench.now) == []
    assert "job" not in take_by(Process.objects.get())


@pytest.mark.parametrize("has_dispatcher", [True, False], ids=["with a dispatcher", "with workers alone"])
@pytest.mark.parametrize(("park", "reason", "lift"), CASES)
def test_a_parked_row_is_let_in_by(bench, park, reason, lift, has_dispatcher):
    park(bench)
    turn(bench)
    assert row_of().parked_for == reason
    lift(bench)
    if has_dispatcher:
        turn(bench)
        turn(bench)
    # A worker that takes the last row of its group that was in line lets the next one in.
    names = [name for _ in range(2) for process in Process.objects.order_by("-id") for name in take_by(process)]
    assert "job" in names
    assert not WorkQueue.objects.queued().filter(manifest_external_id="job").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda bench: group().set_limits(max_active_jobs=9, priority=3),
        lambda bench: queue(bench, priority=7, max_retries=3),
        lambda bench: Manifest.objects.schedule(workflows.fail, "job", None, HOURLY, group="g", max_retries=3),
    ],
    ids=["a limit", "a priority", "a workflow"],
)
def test_a_row_that_waits_for_its_time_keeps_it_when_its_place_changes(bench, change):
    """The dispatcher sleeps until the first of these times."""
    waiting_for_its_next_attempt(bench)
    before = row_of()
    change(bench)
    assert (row_of().parked_for, row_of().not_before) == ("time", before.not_before)
    assert WorkQueue.objects.next_not_before(after=bench.now, until=before.not_before) == before.not_before


def test_a_page_of_rows_whose_time_has_come_is_followed_by_the_next(bench, worker, monkeypatch):
    monkeypatch.setattr("chainsched.runtime.loops.dispatcher.PAGE", 1)
    waiting_for_its_next_attempt(bench)
    bench.advance(hours=1)
    assert turn(bench).has_more


def test_for_limited_groups_with_room_no_lock_is_taken(bench, worker, monkeypatch):
    def fail(*_arguments, **_options):
        raise AssertionError("nothing is parked")

    monkeypatch.setattr(parking, "hold_turn", fail)
    queue(bench, group_max_active_jobs=5)
    assert turn(bench).did == 1


def test_seeding_a_declaration_that_enables_lets_a_row_in(bench, worker, declared):
    disabled(bench)
    turn(bench)
    declared.schedule(workflows.ping, "job", None, HOURLY, group="g", enabled=True)
    seed(declared, now=bench.now)
    assert take_by(worker) == ["job"]


def test_what_cannot_start_costs_a_turn_no_look(bench, worker):
    """A thousand rows of a disabled group; then a turn reads as few rows as with none."""
    Manifest.objects.schedule_many(
        workflows.ping, "bulk", [ManifestItem(str(number)) for number in range(1200)], HOURLY
    )
    bench.manage()
    ManifestGroup.objects.get(name="bulk").disable()
    dispatcher = Dispatcher()
    turns = 0
    while dispatcher.turn(bench.now).has_more:
        turns += 1
    assert turns == 2, "page by page"
    assert not WorkQueue.objects.in_line().exists()
    assert WorkQueue.objects.parked(ParkedFor.DISABLED).count() == 1200
    ManifestGroup.objects.get(name="bulk").enable()
    assert WorkQueue.objects.in_line().count() == 1200


def test_of_a_full_group_a_few_stay_in_line_and_as_many_follow_as_are_taken(bench, worker):
    Manifest.objects.schedule_many(
        workflows.ping,
        "bulk",
        [ManifestItem(str(number)) for number in range(8)],
        HOURLY,
        group_max_active_jobs=2,
    )
    bench.manage()
    assert len(take_by(worker)) == 2
    turn(bench)
    assert (WorkQueue.objects.in_line().count(), WorkQueue.objects.parked(ParkedFor.GROUP_FULL).count()) == (2, 4)
    ran = []
    for _ in range(4):
        running = Metadata.objects.in_progress().order_by("id").first()
        record([Finished(running.id, outcomes.completed(None))], now=bench.now)
        ran += take_by(worker)
        assert WorkQueue.objects.in_line().count() <= min(2, KEPT)
    assert ran == ["bulk-2", "bulk-3", "bulk-4", "bulk-5"], "in the order that they had"


def test_the_line_is_searched_once_a_second_and_again_after_a_page_with_parked_rows(bench, worker, monkeypatch):
    searched = []

    def note(_pools, *, now):
        searched.append(now)
        return 0

    monkeypatch.setattr("chainsched.runtime.loops.dispatcher.park", note)
    dispatcher = Dispatcher()
    queue(bench)
    for _ in range(3):
        found = dispatcher.turn(bench.now)
    assert searched == [bench.now]
    assert found.next_at == bench.now + timedelta(seconds=PARK_SECONDS), "a row came into line since"
    bench.advance(seconds=PARK_SECONDS)
    dispatcher.turn(bench.now)
    assert len(searched) == 2


def test_without_a_process_that_takes_rows_none_is_parked(bench, worker):
    """They are read by nobody, and would all have to come back when the only worker starts again."""
    queue(bench)
    Process.objects.update(stopped_at=bench.now)
    turn(bench)
    assert row_of().parked_for == ""


def test_a_dispatcher_that_cannot_get_its_turn_parks_nothing(bench, worker, monkeypatch):
    def is_held(_now):
        raise TurnIsHeld("another process has held its turn")

    disabled(bench)
    monkeypatch.setattr(parking, "hold_turn", is_held)
    assert turn(bench).has_more is False
    assert row_of().parked_for == ""


def test_it_says_which_jobs_no_process_takes(bench, worker, caplog):
    in_a_queue_that_no_process_takes(bench)
    turn(bench)
    (line,) = [record.getMessage() for record in caplog.records if "No live process" in record.getMessage()]
    assert line == (
        "No live process takes jobs of workflow testapp.ping from queue heavy: 1 queue rows wait until one does."
    )


def lift_by_hand_from_a_disabled_manifest():
    Manifest.objects.update(is_enabled=True)


def lift_by_hand_from_a_full_group():
    WorkQueue.objects.in_line().filter(manifest_external_id="next").update(status=QueueStatus.CANCELLED)
    ManifestGroup.objects.update(max_active_jobs=5)


@pytest.mark.parametrize(
    ("park", "lift", "moment"),
    [
        (disabled, lift_by_hand_from_a_disabled_manifest, timedelta(0)),
        (in_a_full_group, lift_by_hand_from_a_full_group, timedelta(0)),
        (of_a_workflow_that_no_process_knows, lambda: Process.objects.update(workflows=registry.names()), timedelta(0)),
        (waiting_for_its_next_attempt, lambda: None, timedelta(hours=1)),
    ],
    ids=lambda case: getattr(case, "__name__", "").replace("_", " "),
)
@pytest.mark.parametrize("repairs", [run_fsck, reconcile])
def test_fsck_finds_a_row_that_is_parked_without_its_reason(bench, park, lift, moment, repairs):
    Process.objects.update(started_at=bench.now - timedelta(hours=1))
    park(bench)
    turn(bench)
    lift()
    bench.advance(seconds=moment.total_seconds())
    Process.objects.update(heartbeat_at=bench.now)
    found = run_fsck(now=bench.now, checks=["parked"])
    assert [finding.subject for finding in found] == [f"queue row {row_of().id} of job"]
    assert "and the reason is gone" in found[0].evidence
    if repairs is reconcile:
        assert reconcile(now=bench.now) >= 1
    else:
        assert [finding.is_repaired for finding in run_fsck(now=bench.now, repair=True, checks=["parked"])] == [True]
    assert row_of().parked_for == ""
    assert run_fsck(now=bench.now, checks=["parked"]) == []


def test_a_take_with_no_parked_rows_asks_as_little_as_before(bench, worker):
    with CaptureQueriesContext(connection) as captured:
        assert take(process=worker, limit=5).claims == []
    assert len(captured) <= 5
