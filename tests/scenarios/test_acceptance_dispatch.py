"""G of the acceptance list: dispatch, on rows that the engine queued itself."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from chainsched import Every, ManifestItem
from chainsched.domain.states import ExecutionState, QueueStatus
from chainsched.flow.maintain.fsck import run_fsck
from chainsched.flow.run.dispatch import dispatch
from chainsched.models import Manifest, ManifestGroup, Metadata, Process, WorkQueue
from chainsched.registry import registry
from chainsched.runtime.loops.reaper import Reaper
from chainsched.servers import get_server
from chainsched.servers.database import DatabaseServer
from chainsched.testing import Workbench
from tests.drive import executions_of, manifest, run_on, start_running
from tests.factories import make_process, make_queue_row
from tests.testapp.workflows import Slice, copy, fail, ping

pytestmark = pytest.mark.django_db

LONG_AGO = -math.inf


def backlog(
    bench: Workbench, group: str, number: int, *, priority: int = 0, limit: int | None = None, enabled: bool = True
) -> None:
    """Queue so many manifests of a group."""
    items = [ManifestItem(str(member)) for member in range(number)]
    Manifest.objects.schedule_many(
        ping, group, items, Every.hours(9), group_priority=priority, group_max_active_jobs=limit
    )
    bench.manage()
    if not enabled:
        ManifestGroup.objects.get(name=group).disable()


def known_workflows(now: datetime) -> set[str]:
    """The names that live processes can run."""
    return {name for pool in get_server().pools(now=now) for name in pool.workflows}


def started() -> dict[str, int]:
    return dict(Counter(Metadata.objects.values_list("group__name", flat=True)))


# MAX_ACTIVE_JOBS; then each group with its priority, limit and how many are queued; then who starts in one turn.
LIMITS: list[tuple[str, int | None, dict[str, tuple[int, int | None, int]], dict[str, int]]] = [
    ("the example of the list", 5, {"A": (20, 3, 4), "B": (10, 3, 4)}, {"A": 3, "B": 2}),
    ("the example, declared the other way round", 5, {"B": (10, 3, 4), "A": (20, 3, 4)}, {"A": 3, "B": 2}),
    ("one slot is one row", 1, {"A": (0, None, 4)}, {"A": 1}),
    ("no limit, all", None, {"A": (0, None, 120)}, {"A": 120}),
    ("the default is a hundred", 100, {"A": (0, None, 120)}, {"A": 100}),
    ("a group limit alone", None, {"A": (0, 2, 4), "B": (0, None, 4)}, {"A": 2, "B": 4}),
    ("within one priority groups take turns", 6, {"A": (5, None, 9), "B": (5, None, 9)}, {"A": 3, "B": 3}),
    ("lower priorities wait", 4, {"A": (1, None, 9), "B": (2, None, 9)}, {"B": 4}),
    ("a full group lets the others pass", 4, {"A": (31, 1, 9), "B": (0, None, 9)}, {"A": 1, "B": 3}),
    (
        "a bulk group starves nobody",
        22,
        {"bulk": (0, None, 60), **{f"small-{number}": (0, None, 1) for number in range(10)}},
        {"bulk": 12, **{f"small-{number}": 1 for number in range(10)}},
    ),
]


class TestLimits:
    """Who starts in one turn; the turns after it hold the limits."""

    @pytest.mark.parametrize(("total", "groups", "expected"), [pytest.param(*case, id=name) for name, *case in LIMITS])
    def test_one_turn_starts(self, bench, settings, total, groups, expected):
        settings.CHAINSCHED = {"MAX_ACTIVE_JOBS": total}
        for group, (priority, limit, number) in groups.items():
            backlog(bench, group, number, priority=priority, limit=limit)
        bench.dispatch()
        assert started() == expected
        assert [bench.dispatch() for _ in range(3)] == [0, 0, 0]

    @pytest.mark.parametrize("lower", ["the group's limit", "the global limit"])
    def test_a_limit_that_is_lowered_below_what_runs_kills_nothing_and_starts_nothing(self, bench, settings, lower):
        backlog(bench, "A", 9, limit=4)
        assert bench.dispatch() == 4
        start_running(bench)
        if lower == "the group's limit":
            Manifest.objects.schedule(ping, "A-0", None, Every.hours(9), group="A", group_max_active_jobs=2)
        else:
            settings.CHAINSCHED = {"MAX_ACTIVE_JOBS": 2}
        assert bench.dispatch() == 0
        assert Metadata.objects.in_progress().count() == 4
        three = Metadata.objects.in_progress().order_by("id").values_list("id", flat=True)[:3]
        Metadata.objects.filter(id__in=list(three)).update(state=ExecutionState.PENDING, process=None)
        bench.work()
        assert [bench.dispatch(), bench.dispatch()] == [1, 0]

    def test_rows_without_a_manifest_obey_the_global_limit_alone(self, bench, settings):
        settings.CHAINSCHED = {"MAX_ACTIVE_JOBS": 4}
        backlog(bench, "off", 2, priority=31, enabled=False)
        backlog(bench, "full", 3, priority=31, limit=1)
        for _ in range(5):
            make_queue_row(None)
        assert [bench.dispatch(), bench.dispatch()] == [4, 0]
        assert Metadata.objects.filter(manifest=None).count() == 3
        assert len(bench.work().ended) == 4
        assert bench.dispatch() == 3

    def test_a_row_that_moves_to_another_group_counts_against_that_one(self, bench):
        backlog(bench, "A", 2, limit=1)
        Manifest.objects.schedule(ping, "B-0", None, None, group="B", group_max_active_jobs=1)
        Manifest.objects.schedule(ping, "A-1", None, Every.hours(9), group="B")
        assert bench.dispatch() == 2
        assert started() == {"A": 1, "B": 1}


class TestOrder:
    """Priority; within one priority groups take turns, oldest first inside a group."""

    def test_rows_start_in_their_order_one_by_one(self, bench, settings):
        settings.CHAINSCHED = {"MAX_ACTIVE_JOBS": 1}
        backlog(bench, "bulk", 3)
        backlog(bench, "small", 1)
        backlog(bench, "urgent", 2, priority=31)
        assert bench.drain() == ["urgent-0", "urgent-1", "bulk-0", "small-0", "bulk-1", "bulk-2"]

    def test_what_comes_later_does_not_wait_behind_the_backlog_of_another_group(self, bench, settings):
        settings.CHAINSCHED = {"MAX_ACTIVE_JOBS": 2}
        backlog(bench, "bulk", 20)
        for _ in range(3):
            bench.dispatch()
            bench.work()
        backlog(bench, "late", 2)
        bench.dispatch()
        assert started() == {"bulk": 7, "late": 1}

    def test_every_row_gets_one_execution_with_its_time_and_link(self, bench):
        backlog(bench, "A", 3)
        bench.advance(minutes=1)
        assert [bench.dispatch(), bench.dispatch()] == [3, 0]
        for row in WorkQueue.objects.all():
            execution = Metadata.objects.get(work_queue=row)
            assert (row.status, row.execution_id) == (QueueStatus.DISPATCHED, execution.id)
            assert (execution.created_at, execution.state) == (bench.now, ExecutionState.PENDING)

    def test_a_cancelled_row_is_ignored_for_ever(self, bench):
        backlog(bench, "A", 2)
        manifest("A-0").cancel()
        assert bench.dispatch() == 1
        assert WorkQueue.objects.get(manifest_external_id="A-0").status == QueueStatus.CANCELLED
        assert executions_of("A-0") == []


# What keeps the row of "job" from being dispatched. Each is put in the way, named by explain, and lifted again.


def manifest_disabled(bench: Workbench) -> Callable[[], object]:
    manifest("job").disable()
    return manifest("job").enable


def manifest_disabled_until_it_is_triggered(bench: Workbench) -> Callable[[], object]:
    manifest("job").disable()
    return manifest("job").trigger


def group_disabled(bench: Workbench) -> Callable[[], object]:
    ManifestGroup.objects.get(name="job").disable()
    return ManifestGroup.objects.get(name="job").enable


def group_full(bench: Workbench) -> Callable[[], object]:
    Manifest.objects.schedule(ping, "mate", None, Every.hours(9), group="job", group_max_active_jobs=1, priority=31)
    bench.manage()
    assert bench.dispatch() == 1
    return bench.work


def house_full(bench: Workbench) -> Callable[[], object]:
    Manifest.objects.schedule_many(
        ping, "bulk", [ManifestItem(str(number)) for number in range(100)], Every.hours(9), priority=31
    )
    bench.manage()
    assert bench.dispatch() == 100
    start_running(bench)

    def end_one() -> None:
        first = Metadata.objects.in_progress().order_by("id").first()
        assert first is not None
        Metadata.objects.filter(id=first.id).update(state=ExecutionState.PENDING, process=None)
        bench.work()

    return end_one


def time_not_come(bench: Workbench) -> Callable[[], object]:
    WorkQueue.objects.update(not_before=bench.now + timedelta(seconds=9))
    return lambda: bench.advance(seconds=9)


def time_not_come_until_it_is_triggered(bench: Workbench) -> Callable[[], object]:
    WorkQueue.objects.update(not_before=bench.now + timedelta(days=1))
    return manifest("job").trigger


def nobody_can_run_it(bench: Workbench) -> Callable[[], object]:
    knows = registry.names()
    Process.objects.update(workflows=["testapp.fail"])
    return lambda: Process.objects.update(workflows=knows)


def nobody_is_alive(bench: Workbench) -> Callable[[], object]:
    Process.objects.update(heartbeat_at=bench.now - timedelta(minutes=5))
    return lambda: Process.objects.update(heartbeat_at=bench.now)


OBSTACLES: list[tuple[Callable[[Workbench], Callable[[], object]], str]] = [
    (manifest_disabled, "disabled"),
    (manifest_disabled_until_it_is_triggered, "disabled"),
    (group_disabled, "group_disabled"),
    (group_full, "group_full"),
    (house_full, "no_room"),
    (time_not_come, "waits_for_time"),
    (time_not_come_until_it_is_triggered, "waits_for_time"),
    (nobody_can_run_it, "no_capable_worker"),
    (nobody_is_alive, "no_capable_worker"),
]


class TestObstacles:
    """A row that may not start waits, says why, blocks nobody and starts when the obstacle is lifted."""

    @pytest.mark.parametrize(
        ("obstruct", "code"), OBSTACLES, ids=[case[0].__name__.replace("_", " ") for case in OBSTACLES]
    )
    def test_a_row_waits_behind_its_obstacle_and_starts_when_it_is_lifted(self, bench, obstruct, code):
        assert bench.process
        Manifest.objects.schedule(ping, "job", None, Every.hours(9))
        bench.manage()
        lift = obstruct(bench)
        assert manifest("job").explain().code == code
        assert self.turn(bench) == 0
        assert executions_of("job") == []
        lift()
        assert self.turn(bench) == 1
        assert len(executions_of("job")) == 1

    @pytest.mark.parametrize(
        "obstruct",
        [manifest_disabled, group_disabled, group_full, time_not_come, nobody_can_run_it],
        ids=lambda obstruct: obstruct.__name__.replace("_", " "),
    )
    def test_a_row_that_waits_blocks_nobody_and_counts_for_nothing(self, bench, settings, obstruct):
        settings.CHAINSCHED = {"MAX_ACTIVE_JOBS": 2}
        assert bench.process
        Manifest.objects.schedule(ping, "job", None, Every.hours(9), priority=30)
        bench.manage()
        obstruct(bench)
        run_on(bench)
        Manifest.objects.schedule(fail, "other", None, Every.hours(9))
        bench.manage()
        assert self.turn(bench) == 1
        assert (len(executions_of("other")), len(executions_of("job"))) == (1, 0)

    def test_what_was_dispatched_for_workers_that_were_rolled_back_blocks_nobody(self, bench, settings, monkeypatch):
        """A server that is pushed to, and a new worker of it, which alone knows the new code and then goes away."""
        monkeypatch.setattr(DatabaseServer, "recent_workflows", lambda _, *, now: known_workflows(now))
        settings.CHAINSCHED = {"MAX_ACTIVE_JOBS": 5}
        make_process(workflows=["testapp.ping"], heartbeat_at=bench.now + timedelta(hours=1))
        rolled_out = make_process(workflows=["testapp.copy"], heartbeat_at=bench.now)
        items = [ManifestItem(str(number), Slice("t")) for number in range(12)]
        Manifest.objects.schedule_many(copy, "new", items, Every.hours(9))
        bench.manage()
        assert self.turn(bench) == 5
        Process.objects.filter(pk=rolled_out.pk).update(stopped_at=bench.now)
        bench.advance(minutes=1)
        Manifest.objects.schedule_many(ping, "old", [ManifestItem(str(number)) for number in range(7)], Every.hours(9))
        bench.manage()
        assert self.turn(bench) == 0, "the limit is full of what nobody can run"
        assert Reaper(began_at=LONG_AGO).turn(bench.now).did == 5
        told = {manifest(f"new-{number}").explain().code for number in range(12)}
        assert told == {"no_capable_worker"}
        assert self.turn(bench) == 5
        assert started() == {"old": 5}
        assert (self.turn(bench), Reaper(began_at=LONG_AGO).turn(bench.now).did) == (0, 0), "nothing goes to and fro"
        make_process(workflows=["testapp.copy"], heartbeat_at=bench.now)
        assert self.turn(bench) == 0, "and the limit is exact when they come back"
        assert len(bench.drain()) == 7 + 12
        assert {len(executions_of(f"new-{number}")) for number in range(12)} == {1}
        assert run_fsck(now=bench.now) == []

    def turn(self, bench: Workbench) -> int:
        """A turn as the loop takes it, with what live processes can run."""
        return len(dispatch(workflows=known_workflows(bench.now), now=bench.now).execution_ids)

    def test_a_row_under_a_former_name_of_its_workflow_runs(self, bench):
        """Renamed with an alias; the next declaration brings the new name."""
        registry.get("testapp.ping")
        Manifest.objects.schedule("testapp.ping", "job", None, Every.hours(1))
        bench.manage()
        with pytest.MonkeyPatch.context() as patched:
            patched.setitem(registry._index, "testapp.former", registry.get("testapp.ping"))
            Manifest.objects.update(workflow="testapp.former")
            WorkQueue.objects.update(workflow="testapp.former")
            assert bench.drain() == ["job"]
            Manifest.objects.schedule("testapp.former", "job", None, Every.hours(1))
            assert manifest("job").workflow == "testapp.ping"
            bench.advance(hours=1)
            assert bench.drain() == ["job"]
        assert [run.workflow for run in executions_of("job")] == ["testapp.former", "testapp.ping"]
        assert {run.state for run in executions_of("job")} == {ExecutionState.COMPLETED}

    def test_a_row_that_waits_gets_the_workflow_and_the_input_that_are_declared_now(self, bench):
        """A workflow without the input that was made for it could only fail."""
        Manifest.objects.schedule(copy, "job", Slice("t"), Every.hours(1))
        bench.manage()
        Manifest.objects.schedule(ping, "job", None, Every.hours(1))
        assert bench.drain() == ["job"]
        (run,) = executions_of("job")
        assert (run.workflow, run.input, run.state) == ("testapp.ping", None, ExecutionState.COMPLETED)


class TestDispatch:
    """Waiting, free slots and edits."""

    def test_a_backlog_that_waits_for_workers_never_fails_for_waiting(self, bench):
        bench.schedules.schedule_many(ping, "job", [ManifestItem(str(n)) for n in range(20)], Every.minutes(5))
        bench.seed()
        bench.manage()
        for _ in range(30):
            bench.advance(days=1)
            bench.manage()
        assert len(bench.queued()) == 20
        assert bench.dispatch() == 20
        bench.advance(days=30)
        assert bench.manage() == 0
        assert len(bench.work().ended) == 20
        assert set(Metadata.objects.values_list("state", flat=True)) == {ExecutionState.COMPLETED}

    def test_one_free_slot_is_one_row_and_repeated_turns_hold_the_limit(self, bench, settings):
        settings.CHAINSCHED = {"MAX_ACTIVE_JOBS": 3}
        bench.schedules.schedule_many(ping, "job", [ManifestItem(str(n)) for n in range(9)], Every.hours(1))
        bench.seed()
        bench.manage()
        assert [bench.dispatch() for _ in range(4)] == [3, 0, 0, 0]
        start_running(bench)
        assert bench.dispatch() == 0
        first = Metadata.objects.order_by("id").first()
        assert first is not None
        Metadata.objects.filter(id=first.id).update(state=ExecutionState.PENDING, process=None)
        bench.work()
        assert [bench.dispatch() for _ in range(3)] == [1, 0, 0]

    def test_an_edited_priority_re_ranks_the_row_that_waits(self, bench):
        for name in ("first", "second"):
            Manifest.objects.schedule(ping, name, None, Every.hours(1), group="g")
        bench.manage()
        assert bench.queued() == ["first", "second"]
        Manifest.objects.schedule(ping, "second", None, Every.hours(1), group="g", priority=9)
        assert bench.queued() == ["second", "first"]
