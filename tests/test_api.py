"""The run-time API: what it creates, what it answers, and that a rollback takes everything back."""

import math
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from chainsched import Cron, Every, Exclude, ManifestItem, RunCondition, api
from chainsched.domain.results import Answer, Cancelled
from chainsched.domain.states import ExecutionState, QueueStatus, ScheduleType, Source
from chainsched.exceptions import (
    CycleError,
    DeclarationError,
    InvalidInput,
    InvalidSchedule,
    LimitExceeded,
    UnknownExecution,
    UnknownManifest,
    UnknownRow,
)
from chainsched.flow.schedule.declare import Schedules
from chainsched.flow.schedule.seed import seed
from chainsched.models import Manifest, ManifestGroup, ManifestState, Metadata, WorkQueue
from tests.drive import executions_of, manifest, new_bench
from tests.factories import NOW, make_dependent, make_execution, make_group, make_letter, make_manifest, make_queue_row
from tests.testapp import workflows

pytestmark = pytest.mark.django_db

HOURLY = Every.hours(1)
WEEKENDS = Exclude.weekdays("sat", "sun")


@pytest.fixture
def bench():
    with new_bench() as bench:
        yield bench


def state_of(thing):
    return ManifestState.objects.get(manifest=thing)


class TestScheduling:
    def test_a_manifest_is_created_with_its_state_and_alarm(self):
        made = Manifest.objects.schedule(workflows.copy, "sync", workflows.Slice("t"), HOURLY, group="etl", priority=3)
        assert (made.external_id, made.group.name, made.priority) == ("sync", "etl", 3)
        assert (made.is_declared, made.owner) == (False, "tests")
        assert made.next_run_at is not None

    def test_scheduling_again_changes_what_is_stated_and_nothing_else(self):
        Manifest.objects.schedule(workflows.ping, "sync", None, HOURLY, priority=3)
        Manifest.objects.update(timeout_seconds=7)
        made = Manifest.objects.schedule(workflows.ping, "sync", None, Cron.daily(), priority=4)
        assert Manifest.objects.count() == 1
        assert (made.schedule_type, made.interval_seconds, made.priority, made.timeout_seconds) == ("cron", None, 4, 7)

    def test_without_a_schedule_it_runs_only_when_triggered(self):
        made = Manifest.objects.schedule(workflows.ping, "sync", None, None)
        assert (made.schedule_type, made.next_run_at) == (ScheduleType.ON_DEMAND, None)

    def test_a_dependent_is_created_below_its_parent(self):
        Manifest.objects.schedule(workflows.ping, "parent", None, HOURLY)
        made = Manifest.objects.schedule_dependent(
            workflows.ping, "child", None, depends_on="parent", run_condition=RunCondition.FAILURE
        )
        assert (made.depends_on.external_id, made.run_condition, made.depth) == ("parent", 2, 1)

    def test_a_batch_is_created_whole(self):
        made = Manifest.objects.schedule_many(workflows.ping, "sync", [ManifestItem(n) for n in "abc"], HOURLY)
        assert [one.external_id for one in made] == ["sync-a", "sync-b", "sync-c"]
        assert {one.group.name for one in made} == {"sync"}

    def test_one_bad_item_and_none_is_created(self):
        items = [ManifestItem("a", workflows.Slice("t")), ManifestItem("b", {"table": 5})]
        with pytest.raises(DeclarationError, match="sync-b"):
            Manifest.objects.schedule_many(workflows.copy, "sync", items, HOURLY)
        assert not Manifest.objects.exists()

    def test_a_batch_of_dependents_names_each_parent(self):
        Manifest.objects.schedule_many(workflows.ping, "extract", [ManifestItem(n) for n in "ab"], HOURLY)
        made = Manifest.objects.schedule_many_dependent(
            workflows.ping, "load", [ManifestItem(n, depends_on=f"extract-{n}") for n in "ab"]
        )
        assert [one.depends_on.external_id for one in made] == ["extract-a", "extract-b"]
        with pytest.raises(DeclarationError, match="'load-c' lacks depends_on"):
            Manifest.objects.schedule_many_dependent(workflows.ping, "load", [ManifestItem("c")])

    def test_a_pruned_batch_retires_exactly_its_missing_members(self):
        Manifest.objects.schedule_many(workflows.ping, "sync", [ManifestItem(n) for n in "abc"], HOURLY)
        Manifest.objects.schedule_many(workflows.ping, "sync-users", [ManifestItem(n) for n in "abc"], HOURLY)
        Manifest.objects.schedule_many(workflows.ping, "sync", [ManifestItem("a")], HOURLY, prune=True)
        retired = Manifest.objects.filter(retired_at__isnull=False).values_list("external_id", flat=True)
        assert sorted(retired) == ["sync-b", "sync-c"]

    def test_an_empty_batch_retires_nothing(self, caplog):
        Manifest.objects.schedule_many(workflows.ping, "sync", [ManifestItem("a")], HOURLY)
        Manifest.objects.schedule_many(workflows.ping, "sync", [], HOURLY, prune=True)
        assert not Manifest.objects.filter(retired_at__isnull=False).exists()
        assert "came out empty" in caplog.text

    def test_what_is_declared_in_code_is_changed_there(self):
        schedules = Schedules()
        schedules.schedule(workflows.ping, "declared", None, HOURLY)
        seed(schedules, now=NOW)
        with pytest.raises(DeclarationError, match="declared by the code of 'tests'"):
            Manifest.objects.schedule(workflows.ping, "declared", None, Every.minutes(1))

    def test_a_rollback_takes_everything_back(self):
        with transaction.atomic():
            Manifest.objects.schedule(workflows.ping, "sync", None, HOURLY).trigger()
            assert WorkQueue.objects.exists()
            transaction.set_rollback(True)
        assert not Manifest.objects.exists()
        assert not WorkQueue.objects.exists()

    def test_a_manifest_cannot_be_moved_below_its_own_descendant(self):
        Manifest.objects.schedule(workflows.ping, "a", None, HOURLY, group="g")
        Manifest.objects.schedule_dependent(workflows.ping, "b", None, depends_on="a", group="g")
        Manifest.objects.schedule_dependent(workflows.ping, "c", None, depends_on="b", group="g")
        with pytest.raises(CycleError) as caught:
            Manifest.objects.schedule_dependent(workflows.ping, "a", None, depends_on="c", group="g")
        assert set(caught.value.members) == {"a", "b", "c"}
        assert manifest("a").depends_on is None

    def test_groups_cannot_be_made_to_wait_for_each_other(self):
        Manifest.objects.schedule(workflows.ping, "a", None, HOURLY, group="A")
        Manifest.objects.schedule_dependent(workflows.ping, "b", None, depends_on="a", group="B")
        with pytest.raises(CycleError, match=r"\[A, B\]"):
            Manifest.objects.schedule_dependent(workflows.ping, "a2", None, depends_on="b", group="A")

    def test_moving_a_manifest_moves_the_depth_of_all_below(self):
        for name in "ax":
            Manifest.objects.schedule(workflows.ping, name, None, HOURLY, group="g")
        Manifest.objects.schedule_dependent(workflows.ping, "b", None, depends_on="a", group="g")
        Manifest.objects.schedule_dependent(workflows.ping, "c", None, depends_on="b", group="g")
        Manifest.objects.schedule_dependent(workflows.ping, "y", None, depends_on="x", group="g")
        Manifest.objects.schedule_dependent(workflows.ping, "b", None, depends_on="y", group="g")
        assert (manifest("b").depth, manifest("c").depth) == (2, 3)

    def test_a_new_time_lets_a_one_time_job_run_again(self, bench):
        Manifest.objects.schedule_once(workflows.ping, "once", None, bench.now)
        assert bench.drain() == ["once"]
        Manifest.objects.schedule_once(workflows.ping, "once", None, bench.now)
        assert bench.drain() == []
        Manifest.objects.schedule_once(workflows.ping, "once", None, bench.now + timedelta(minutes=1))
        bench.advance(minutes=1)
        assert bench.drain() == ["once"]


class TestChildren:
    def test_a_child_runs_for_the_next_outcome_and_is_done(self, bench):
        Manifest.objects.schedule(workflows.ping, "parent", None, Every.minutes(5))
        assert bench.drain() == ["parent"]
        Manifest.objects.schedule_child(workflows.ping, "child", None, parent="parent")
        assert bench.drain() == [], "what happened before does not count"
        bench.advance(minutes=5)
        assert bench.drain() == ["parent", "child"]
        assert manifest("child").done_at is not None
        bench.advance(minutes=5)
        assert bench.drain() == ["parent"]

    def test_a_child_may_become_an_ordinary_manifest(self, bench):
        Manifest.objects.schedule(workflows.ping, "parent", None, Every.hours(9))
        Manifest.objects.schedule_child(workflows.ping, "child", None, parent="parent")
        bench.drain()
        assert manifest("child").done_at is not None
        Manifest.objects.schedule(workflows.ping, "child", None, Every.minutes(10))
        assert bench.run_for(minutes=25) == ["child", "child"]

    def test_a_child_of_an_unknown_parent_is_refused(self):
        with pytest.raises(UnknownManifest, match="'nobody'"):
            Manifest.objects.schedule_child(workflows.ping, "child", None, parent="nobody")
        assert not Manifest.objects.exists()

    def test_a_manifest_is_no_child_of_its_own(self):
        Manifest.objects.schedule(workflows.ping, "a", None, HOURLY)
        with pytest.raises(CycleError):
            Manifest.objects.schedule_child(workflows.ping, "a", None, parent="a")

    def test_the_eleventh_child_is_refused_and_done_ones_do_not_count(self):
        Manifest.objects.schedule(workflows.ping, "parent", None, HOURLY)
        for number in range(10):
            Manifest.objects.schedule_child(workflows.ping, f"child-{number}", None, parent="parent")
        with pytest.raises(LimitExceeded, match="MAX_FAN_OUT") as caught:
            Manifest.objects.schedule_child(workflows.ping, "one-more", None, parent="parent")
        assert (caught.value.value, caught.value.limit, caught.value.setting) == (11, 10, "MAX_FAN_OUT")
        assert Manifest.objects.count() == 11
        Manifest.objects.filter(external_id="child-3").update(done_at=NOW)
        Manifest.objects.schedule_child(workflows.ping, "one-more", None, parent="parent")

    def test_the_seventh_level_is_refused(self):
        Manifest.objects.schedule(workflows.ping, "0", None, HOURLY)
        for depth in range(1, 6):
            Manifest.objects.schedule_child(workflows.ping, str(depth), None, parent=str(depth - 1))
        with pytest.raises(LimitExceeded, match="MAX_JOB_DEPTH") as caught:
            Manifest.objects.schedule_child(workflows.ping, "6", None, parent="5")
        assert (caught.value.value, caught.value.limit) == (6, 5)
        assert Manifest.objects.count() == 6


class TestOddValues:
    """Each gets the documented error, before anything is written."""

    @pytest.mark.parametrize("year", [1900, 2999])
    def test_the_first_and_the_last_year_are_scheduled_explained_and_enabled(self, bench, year):
        at = datetime(year, 12 if year > 2000 else 1, 31 if year > 2000 else 1, tzinfo=UTC)
        job = Manifest.objects.schedule_once(workflows.ping, "job", None, at, jitter=60, exclusions=[WEEKENDS])
        assert job.explain().external_id == "job"
        assert job.disable()
        assert job.enable()
        assert bench.drain() == (["job"] if year == 1900 else [])

    @pytest.mark.parametrize(
        "at", [datetime(1, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC), NOW.replace(tzinfo=None)]
    )
    def test_a_time_that_cannot_be_scheduled(self, at):
        with pytest.raises(InvalidSchedule, match="Once"):
            Manifest.objects.schedule_once(workflows.ping, "job", None, at)
        assert not Manifest.objects.exists()

    def test_a_stored_time_that_cannot_be_scheduled_is_explained(self, bench):
        job = Manifest.objects.schedule_once(workflows.ping, "job", None, bench.now)
        Manifest.objects.update(once_at=datetime.max.replace(tzinfo=UTC))
        job.disable()
        assert job.enable()
        assert job.explain().code == "unschedulable"
        assert bench.drain() == []

    @pytest.mark.parametrize("limit", [0, -1, 10**6 + 1, 10**12, 1.5, float("nan"), True, "5"])
    def test_a_limit_that_is_none(self, limit):
        with pytest.raises(InvalidInput, match="limit"):
            make_group("g").set_limits(max_active_jobs=limit, priority=1)

    @pytest.mark.parametrize("priority", [-1, 32, 10**20, 1.5, None, True, "5"])
    def test_a_priority_that_is_none(self, priority):
        with pytest.raises(InvalidInput, match="priority"):
            make_group("g").set_limits(max_active_jobs=1, priority=priority)

    @pytest.mark.parametrize("reason", ["a\x00b", "x" * 201, None, 5])
    def test_a_reason_that_is_none(self, reason):
        with pytest.raises(InvalidInput, match="reason"):
            make_manifest(state={}).cancel(reason=reason)

    @pytest.mark.parametrize("note", ["a\x00b", None, 5])
    def test_a_note_that_is_none(self, note):
        letter = make_letter(make_manifest(state={}))
        with pytest.raises(InvalidInput, match="note"):
            letter.retry(note=note)

    @pytest.mark.parametrize(
        ("find", "error"),
        [
            (api.find, UnknownManifest),
            (api.find_group, UnknownRow),
            (api.find_row, UnknownRow),
            (api.find_run, UnknownRow),
            (api.find_letter, UnknownRow),
            (api.find_bulk_decision, UnknownRow),
            (api.find_execution, UnknownExecution),
        ],
    )
    @pytest.mark.parametrize("name", ["a\x00b", "1\x00", "9" * 19, "9" * 40, "9" * 5000, "-1", "", "\u0663", "1.5"])
    def test_a_name_that_no_row_has(self, find, error, name):
        with pytest.raises(error):
            find(name)

    def test_a_parent_that_no_row_can_be(self):
        with pytest.raises(UnknownManifest):
            Manifest.objects.schedule_child(workflows.ping, "child", None, parent="a\x00b")
        with pytest.raises(DeclarationError, match="neither declared nor stored"):
            Manifest.objects.schedule_dependent(workflows.ping, "child", None, depends_on="a\x00b")


HALF = "half \ud800"


@pytest.mark.parametrize("name", [HALF, "nul \x00"])
@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (api.find, UnknownManifest),
        (api.find_group, UnknownRow),
        (lambda name: Manifest.objects.trigger_many([name]), UnknownManifest),
        (lambda name: Manifest.objects.schedule_child(workflows.ping, "child", None, parent=name), UnknownManifest),
        (
            lambda name: Manifest.objects.schedule_dependent(workflows.ping, "child", None, depends_on=name),
            DeclarationError,
        ),
    ],
    ids=["find", "find_group", "trigger_many", "schedule_child", "schedule_dependent"],
)
def test_a_name_that_no_row_can_have_is_unknown(ask, error, name):
    with pytest.raises(error):
        ask(name)


@pytest.mark.parametrize("text", [HALF, "nul \x00"])
def test_a_reason_and_a_note_that_no_row_can_hold_are_refused(text):
    manifest = make_manifest(state={})
    with pytest.raises(InvalidInput, match="reason"):
        manifest.cancel(reason=text)
    with pytest.raises(InvalidInput, match="note"):
        make_letter(manifest).acknowledge(note=text)


class TestTriggeringMany:
    def test_each_gets_its_answer_under_its_external_id(self):
        queued, idle = make_manifest("queued"), make_manifest("idle")
        make_queue_row(queued)
        answers = Manifest.objects.trigger_many([queued, "idle"])
        assert answers == {"queued": Answer.ALREADY_QUEUED, "idle": Answer.QUEUED}
        assert set(WorkQueue.objects.queued().values_list("manifest_id", flat=True)) == {queued.id, idle.id}

    def test_a_mapping_gives_each_an_input(self):
        for name in ("a", "b"):
            Manifest.objects.schedule(workflows.copy, name, workflows.Slice(name), None)
        Manifest.objects.trigger_many({"a": workflows.Slice("other"), "b": {"table": "third"}})
        inputs = dict(WorkQueue.objects.values_list("manifest_external_id", "input"))
        assert [inputs["a"]["table"], inputs["b"]["table"]] == ["other", "third"]

    def test_all_of_them_wait_for_the_delay(self):
        first = make_manifest("a")
        assert Manifest.objects.trigger_many([first], delay=60) == {"a": Answer.DELAYED}
        assert state_of(first).trigger_at is not None

    @pytest.mark.parametrize(
        ("manifests", "error", "sentence"),
        [
            (["a", "gone"], UnknownManifest, "no manifest 'gone'"),
            (["a", "nul\x00"], UnknownManifest, "no manifest"),
            ("a", InvalidInput, "'a' is one text; give a list"),
            (["a", 7], InvalidInput, "7 is no manifest"),
            ({"a": {"table": 3}}, InvalidInput, "table"),
        ],
    )
    def test_one_that_is_wrong_is_named_and_none_is_triggered(self, manifests, error, sentence):
        Manifest.objects.schedule(workflows.copy, "a", workflows.Slice("a"), None)
        with pytest.raises(error, match=sentence):
            Manifest.objects.trigger_many(manifests)
        assert not WorkQueue.objects.exists()

    def test_none_are_no_mistake(self):
        assert Manifest.objects.trigger_many([]) == {}

    def test_more_manifests_take_no_more_statements(self, django_assert_max_num_queries):
        counted = []
        for number in (20, 300):
            names = [make_manifest(f"{number}-{index}").external_id for index in range(number)]
            with django_assert_max_num_queries(100) as captured:
                Manifest.objects.trigger_many(names)
            counted.append(len(captured))
        assert counted[0] == counted[1]

    def test_from_async_code(self):
        make_manifest("a")
        assert async_to_sync(Manifest.objects.atrigger_many)(["a"]) == {"a": Answer.QUEUED}


class TestTriggering:
    def test_a_manifest_without_a_schedule_takes_few_statements(self):
        for name in ("a", "b"):
            made = make_manifest(name, schedule_type=ScheduleType.ON_DEMAND, interval_seconds=None, state={})
            with CaptureQueriesContext(connection) as captured:
                assert made.trigger() is Answer.QUEUED
        statements = [query["sql"] for query in captured if "SAVEPOINT" not in query["sql"]]
        # The clock, the lock, the look, the turns that wait, and the row; its state has nothing that would change.
        assert len(statements) <= 5, statements

    def test_an_idle_manifest_is_queued(self):
        made = make_manifest(state={}, input={"a": 1})
        assert made.trigger() is Answer.QUEUED
        row = WorkQueue.objects.get()
        assert (row.source, row.input) == (Source.TRIGGER, {"a": 1})

    def test_another_input_is_checked_and_used(self):
        made = make_manifest(state={}, workflow="testapp.copy", input={"table": "t", "size": 1})
        with pytest.raises(InvalidInput, match="size"):
            made.trigger(input={"table": "t", "size": "many"})
        made.trigger(input=workflows.Slice("u"))
        assert WorkQueue.objects.get().input == {"table": "u", "size": 500}

    def test_a_queued_manifest_is_brought_forward(self):
        made = make_manifest(state={})
        make_queue_row(made, not_before=NOW + timedelta(days=900), source=Source.RETRY, attempt=2)
        assert made.trigger() is Answer.ALREADY_QUEUED
        row = WorkQueue.objects.get()
        assert (row.not_before, row.attempt) == (None, 2)

    def test_a_hundred_triggers_while_it_runs_make_one_more_run(self, bench):
        Manifest.objects.schedule(workflows.ping, "job", None, HOURLY)
        bench.manage()
        bench.dispatch()
        job = manifest("job")
        for _ in range(100):
            assert job.trigger() is Answer.WILL_RUN_AGAIN
        assert bench.drain() == ["job", "job"]
        assert len(executions_of("job")) == 2

    def test_a_delayed_trigger_waits_and_does_not_suspend_the_schedule(self, bench):
        Manifest.objects.schedule(workflows.ping, "job", None, Every.minutes(5))
        bench.drain()
        assert manifest("job").trigger(timedelta(minutes=8)) is Answer.DELAYED
        bench.advance(minutes=5)
        assert bench.drain() == ["job"]
        bench.advance(minutes=3, seconds=1)
        assert bench.drain() == ["job"]
        assert [execution.source for execution in executions_of("job")] == ["schedule", "schedule", "trigger"]

    def test_a_delayed_trigger_does_not_swallow_an_occurrence_that_has_come(self, bench):
        Manifest.objects.schedule(workflows.ping, "daily", None, Cron.daily(hour=11))
        bench.advance(hours=1, seconds=2)
        manifest("daily").trigger(timedelta(hours=2))
        assert bench.drain() == ["daily"]
        assert executions_of("daily")[0].source == "schedule"

    @pytest.mark.parametrize(
        "delay",
        [-1, timedelta(seconds=-1), math.nan, math.inf, -math.inf, 1e300, 10**400, -(10**400), timedelta.max],
    )
    def test_a_delay_into_the_past_or_out_of_reach_is_refused(self, delay):
        with pytest.raises(InvalidInput, match=r"out of range; give a timedelta or seconds, from 0 to 36,500 days"):
            make_manifest(state={}).trigger(delay)

    @pytest.mark.parametrize("delay", ["5", True, datetime(1, 1, 1, tzinfo=UTC), [1]])
    def test_a_delay_that_is_no_length_of_time_is_refused(self, delay):
        with pytest.raises(InvalidInput, match="is no length of time; give a timedelta or seconds"):
            make_manifest(state={}).trigger(delay)

    @pytest.mark.parametrize("delay", [timedelta(days=36_500), 36_500 * 86_400, 0.5, timedelta(microseconds=1)])
    def test_the_longest_and_the_shortest_delay_are_kept(self, delay):
        assert make_manifest(state={}).trigger(delay) is Answer.DELAYED

    def test_an_awaiting_letter_is_the_answer(self):
        made = make_manifest(state={})
        make_letter(made)
        assert made.trigger() is Answer.AWAITS_DEAD_LETTER
        assert not WorkQueue.objects.exists()
        assert state_of(made).trigger_at is None

    def test_a_trigger_for_a_disabled_group_waits_until_it_is_enabled(self, bench):
        Manifest.objects.schedule(workflows.ping, "job", None, None, group="g", group_enabled=False)
        assert manifest("job").trigger() is Answer.WAITS_FOR_GROUP
        bench.advance(seconds=5)
        assert bench.drain() == []
        ManifestGroup.objects.get().enable()
        assert bench.drain() == ["job"]

    def test_a_disabled_manifest_runs_when_triggered(self, bench):
        Manifest.objects.schedule(workflows.ping, "job", None, HOURLY, enabled=False)
        assert manifest("job").trigger() is Answer.QUEUED
        bench.advance(seconds=5)
        assert bench.drain() == ["job"]

    def test_a_removed_manifest_cannot_be_triggered(self):
        made = make_manifest(state={})
        Manifest.objects.get(pk=made.pk).delete()
        with pytest.raises(UnknownManifest):
            made.trigger()

    def test_a_group_runs_its_enabled_members_that_depend_on_nothing(self):
        group = make_group()
        make_manifest(group=group, state={})
        make_manifest(group=group, state={}, is_enabled=False)
        make_manifest(group=group, state={}, retired_at=NOW)
        make_dependent(make_manifest(group=group, state={}), group=group)
        make_queue_row(make_manifest(group=group, state={}))
        assert group.trigger() == Counter({Answer.QUEUED: 2, Answer.ALREADY_QUEUED: 1})
        assert WorkQueue.objects.queued().count() == 3


class TestSwitching:
    def test_disabling_takes_the_alarm_and_enabling_begins_from_now(self, bench):
        Manifest.objects.schedule(workflows.ping, "job", None, Every.minutes(5))
        bench.drain()
        job = manifest("job")
        assert job.disable() is True
        assert job.disable() is False
        assert state_of(job).next_run_at is None
        assert job.enable() is True
        assert state_of(job).next_run_at == bench.now + timedelta(minutes=5)

    def test_enabling_a_parent_releases_its_dependents(self, bench):
        Manifest.objects.schedule(workflows.ping, "parent", None, HOURLY)
        Manifest.objects.schedule_dependent(workflows.ping, "child", None, depends_on="parent")
        bench.turn()
        manifest("parent").disable()
        assert state_of(manifest("child")).next_run_at is None
        manifest("parent").enable()
        assert bench.drain() == ["child"]

    def test_a_group_is_switched_with_all_its_members(self):
        group = make_group()
        members = [make_manifest(group=group) for _ in range(5)]
        assert group.disable() is True
        assert group.disable() is False
        assert {state_of(member).next_run_at for member in members} == {None}
        assert group.enable() is True
        assert None not in {state_of(member).next_run_at for member in members}


class TestCancelling:
    def test_a_queued_row_never_runs_and_its_occurrence_is_spent(self, bench):
        Manifest.objects.schedule(workflows.ping, "job", None, Every.minutes(5))
        bench.manage()
        assert manifest("job").cancel(reason="not today") == Cancelled(queued=1)
        row = WorkQueue.objects.get()
        assert (row.status, row.cancel_reason) == (QueueStatus.CANCELLED, "not today")
        assert bench.drain() == []
        assert state_of(manifest("job")).next_run_at == bench.now + timedelta(minutes=5)

    def test_a_pending_execution_ends_cancelled_without_running(self, bench):
        Manifest.objects.schedule(workflows.ping, "job", None, Every.minutes(5))
        bench.manage()
        bench.dispatch()
        assert manifest("job").cancel() == Cancelled(pending=1)
        execution = Metadata.objects.get()
        assert (execution.state, execution.started_at) == (ExecutionState.CANCELLED, None)
        assert bench.drain() == []
        assert not WorkQueue.objects.queued().exists()

    def test_a_run_that_is_told_to_stop_and_fails_ends_cancelled(self, bench):
        Manifest.objects.schedule(workflows.fail, "job", None, Every.minutes(5))
        bench.manage()
        bench.dispatch()
        make_running(bench)
        assert manifest("job").cancel() == Cancelled(running=1)
        assert manifest("job").cancel() == Cancelled()
        Metadata.objects.update(state=ExecutionState.PENDING, process=None)
        bench.work()
        assert Metadata.objects.get().state == ExecutionState.CANCELLED
        assert not WorkQueue.objects.queued().exists()

    def test_triggers_for_more_are_dropped(self, bench):
        Manifest.objects.schedule(workflows.ping, "job", None, None)
        manifest("job").trigger()
        bench.dispatch()
        manifest("job").trigger()
        manifest("job").cancel()
        assert bench.drain() == []

    def test_a_dependent_that_waits_for_completion_runs_after_a_cancelled_run(self, bench):
        Manifest.objects.schedule(workflows.ping, "parent", None, HOURLY)
        for condition in (RunCondition.SUCCESS, RunCondition.FAILURE, RunCondition.COMPLETION):
            Manifest.objects.schedule_dependent(
                workflows.ping, condition.name, None, depends_on="parent", run_condition=condition
            )
        bench.manage()
        bench.dispatch()
        manifest("parent").cancel()
        assert bench.drain() == ["COMPLETION"]

    def test_a_one_time_job_that_is_cancelled_in_the_queue_is_done(self, bench):
        Manifest.objects.schedule_once(workflows.ping, "once", None, bench.now)
        Manifest.objects.schedule(workflows.ping, "parent", None, Every.minutes(5))
        Manifest.objects.schedule_child(workflows.ping, "child", None, parent="parent")
        bench.turn()
        bench.manage()
        manifest("once").cancel()
        manifest("child").cancel()
        bench.advance(minutes=5)
        assert "child" not in bench.drain()
        assert manifest("child").done_at is not None

    def test_a_delayed_trigger_is_cancelled_with_its_alarm(self, bench):
        Manifest.objects.schedule(workflows.ping, "job", None, Every.hours(5))
        bench.drain()
        manifest("job").trigger(60)
        manifest("job").cancel()
        bench.advance(minutes=2)
        assert bench.drain() == []
        assert manifest("job").next_run_at is not None

    def test_a_group_is_cancelled_whole(self):
        group = make_group()
        make_queue_row(make_manifest(group=group, state={}))
        make_execution(make_manifest(group=group, state={}))
        make_execution(make_manifest(group=group, state={}), state=ExecutionState.IN_PROGRESS)
        make_queue_row(make_manifest(state={}))
        assert group.cancel() == Cancelled(queued=1, pending=1, running=1)
        assert WorkQueue.objects.queued().count() == 1


def make_running(bench):
    Metadata.objects.update(state=ExecutionState.IN_PROGRESS, process=bench.process)


@pytest.mark.django_db(transaction=True)
def test_the_async_twins_do_the_same():
    async def story():
        made = await Manifest.objects.aschedule(workflows.ping, "job", None, HOURLY)
        await Manifest.objects.aschedule_dependent(workflows.ping, "after", None, depends_on="job")
        await Manifest.objects.aschedule_child(workflows.ping, "child", None, parent="job")
        await Manifest.objects.aschedule_once(workflows.ping, "once", None, NOW)
        answers = [await made.adisable(), await made.aenable(), await made.atrigger(), await made.acancel()]
        group = await sync_to_async(lambda: made.group)()
        return [*answers, await group.atrigger()]

    answers = async_to_sync(story)()
    assert answers == [True, True, Answer.QUEUED, Cancelled(queued=1), Counter({Answer.QUEUED: 1})]
    assert Manifest.objects.count() == 4


class TestQueueRows:
    def test_a_row_is_cancelled_and_its_occurrence_consumed(self, bench):
        thing = make_manifest(state={})
        row = make_queue_row(thing)
        assert row.cancel(reason="not today") is True
        row.refresh_from_db()
        assert (row.status, row.cancel_reason) == (QueueStatus.CANCELLED, "not today")
        assert state_of(thing).next_run_at == NOW + timedelta(minutes=5)
        assert row.cancel() is False

    def test_cancelling_a_row_leaves_a_trigger_for_another_run(self, bench):
        thing = make_manifest(state={"trigger_at": NOW + timedelta(seconds=1)})
        make_queue_row(thing).cancel()
        assert state_of(thing).trigger_at == NOW + timedelta(seconds=1)

    def test_a_row_without_a_manifest_is_cancelled_too(self, bench):
        row = make_queue_row()
        assert row.cancel() is True
        bench.assert_queued()

    def test_a_row_is_brought_before_all_others_of_its_priority(self, bench):
        first, last, higher = make_manifest("first"), make_manifest("last"), make_manifest("higher")
        make_queue_row(first, turn=1)
        row = make_queue_row(last, turn=9, not_before=NOW + timedelta(hours=1), source=Source.RETRY, attempt=2)
        make_queue_row(higher, priority=5, turn=9)
        assert row.bring_forward() is True
        assert bench.queued() == ["higher", "last", "first"]
        row.refresh_from_db()
        assert (row.not_before, row.attempt) == (None, 2)

    def test_a_row_that_left_the_queue_cannot_be_brought_forward(self, bench):
        assert make_queue_row(make_manifest(), status=QueueStatus.CANCELLED).bring_forward() is False

    def test_a_row_says_what_it_waits_for(self, bench):
        thing = make_manifest()
        row = make_queue_row(thing, not_before=NOW + timedelta(hours=1))
        assert row.explain().code == "waits_for_time"
        row.bring_forward()
        row.refresh_from_db()
        assert row.explain().code == "no_capable_worker"
        assert bench.process
        assert row.explain().reason == "it is queued and 0 rows are ahead of it"
        thing.group.disable()
        assert row.explain().code == "group_disabled"

    @pytest.mark.parametrize(
        ("columns", "code"),
        [({}, "queued"), ({"manifest_id": 987_654}, "manifest_gone"), ({"status": "cancelled"}, "cancelled")],
    )
    def test_a_row_without_its_manifest_says_what_it_waits_for(self, bench, columns, code):
        assert bench.process
        assert make_queue_row(**columns).explain().code == code

    def test_a_row_of_a_disabled_group_without_a_manifest_waits_for_it(self, bench):
        assert bench.process
        assert make_queue_row(group=make_group(is_enabled=False)).explain().code == "group_disabled"


class TestLimits:
    def test_rows_that_wait_move_with_the_priority_of_their_group(self):
        thing = make_manifest()
        row = make_queue_row(thing)
        assert thing.group.set_limits(max_active_jobs=3, priority=7) is True
        thing.group.refresh_from_db()
        row.refresh_from_db()
        assert (thing.group.max_active_jobs, thing.group.priority, row.priority) == (3, 7, 7)
        assert thing.group.set_limits(max_active_jobs=3, priority=7) is False

    @pytest.mark.parametrize("wrong", [{"max_active_jobs": 0, "priority": 0}, {"max_active_jobs": 1, "priority": 32}])
    def test_limits_that_make_no_sense_are_refused(self, wrong):
        with pytest.raises(InvalidInput):
            make_group().set_limits(**wrong)


class TestRunningAgain:
    def test_the_run_gets_the_input_of_the_execution(self, bench):
        thing = make_manifest("sync", workflow="testapp.copy", input={"table": "a", "size": 1})
        execution = make_execution(thing, state=ExecutionState.COMPLETED, input={"table": "b", "size": 2})
        assert execution.run_again() is Answer.QUEUED
        assert WorkQueue.objects.get().input == {"table": "b", "size": 2}

    def test_an_execution_whose_manifest_is_gone_is_refused(self):
        with pytest.raises(UnknownManifest):
            make_execution(state=ExecutionState.COMPLETED).run_again()
