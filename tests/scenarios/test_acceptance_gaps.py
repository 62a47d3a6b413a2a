"""What must hold and no other test shows: schedules, declaring, seeding, the manager, dependents, dispatch, wishes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.apps import apps
from django.core import mail
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.db.migrations import Migration
from django.db.migrations.recorder import MigrationRecorder
from django.db.models.signals import post_migrate
from django.forms import modelform_factory

from chainsched import Cron, Every, Exclude, ManifestItem, Once
from chainsched.apps import _seed_after_migrate
from chainsched.domain.answers import Answer, Cancelled
from chainsched.domain.due import IN_WORDS, Reason
from chainsched.domain.states import ExecutionState, QueueStatus, RunCondition, ScheduleType, Source
from chainsched.exceptions import CycleError, InvalidWorkflow, UnknownManifest
from chainsched.flow import enqueue
from chainsched.flow.declare import Schedules, schedules
from chainsched.flow.evaluate import evaluate
from chainsched.flow.reap import reap
from chainsched.models import DeadLetter, Manifest, ManifestGroup, ManifestState, Metadata, WorkQueue, guard, locks
from chainsched.models.clock import database_now
from chainsched.registry import registry
from chainsched.runtime.supervisor import Supervisor
from chainsched.testing import Workbench
from tests.drive import executions_of, manifest
from tests.factories import (
    NOW,
    make_dependent,
    make_execution,
    make_group,
    make_letter,
    make_manifest,
    make_process,
    make_queue_row,
)
from tests.testapp.workflows import Slice, copy, fail, ping

pytestmark = pytest.mark.django_db

FIVE_MINUTES = timedelta(minutes=5)


@pytest.fixture
def declared() -> Iterator[Schedules]:
    """The project's own declarations, which seeding at start and after migrate reads."""
    schedules.schedule(ping, "declared", None, Every.hours(1))
    yield schedules
    schedules.clear()


def alarm_of(external_id: str) -> datetime | None:
    return manifest(external_id).next_run_at


def start_running(bench: Workbench) -> None:
    """Let a worker have taken what is pending."""
    pending = Metadata.objects.filter(state=ExecutionState.PENDING)
    pending.update(state=ExecutionState.IN_PROGRESS, process=bench.process, started_at=bench.now)


class TestSchedules:
    """A, through the whole flow."""

    @pytest.mark.parametrize(
        ("back_at", "runs_at_once"),
        [
            (datetime(2026, 3, 2, 13, 2, 0, tzinfo=UTC), False),
            (datetime(2026, 3, 2, 13, 0, 30, tzinfo=UTC), True),
        ],
    )
    def test_a_skipped_misfire_waits_for_the_next_boundary(self, bench, back_at, runs_at_once):
        bench.schedules.schedule(
            ping, "job", None, Cron.expression("*/5 * * * *"), misfire="skip", misfire_threshold=60
        )
        bench.seed()
        bench.travel_to(back_at)
        assert bench.drain() == (["job"] if runs_at_once else [])
        assert alarm_of("job") == datetime(2026, 3, 2, 13, 5, tzinfo=UTC)

    def test_an_excluded_cron_occurrence_is_dropped_and_an_interval_waits_for_the_end(self, bench):
        """NOW is a Monday, ten o'clock."""
        monday = [Exclude.weekdays("mon")]
        bench.schedules.schedule(ping, "cron", None, Cron.daily(hour=12), exclusions=monday)
        bench.schedules.schedule(ping, "interval", None, Every.hours(1), exclusions=monday)
        bench.seed()
        assert alarm_of("cron") == datetime(2026, 3, 3, 12, tzinfo=UTC)
        assert alarm_of("interval") == datetime(2026, 3, 3, tzinfo=UTC)

    def test_jitter_moves_a_run_later_and_never_earlier(self, bench):
        items = [ManifestItem(str(number)) for number in range(30)]
        bench.schedules.schedule_many(ping, "job", items, Cron.daily(hour=12), jitter=600)
        bench.seed()
        noon = datetime(2026, 3, 2, 12, tzinfo=UTC)
        alarms = [alarm - noon for alarm in ManifestState.objects.values_list("next_run_at", flat=True) if alarm]
        assert len(alarms) == 30
        assert timedelta(0) <= min(alarms) < max(alarms) <= timedelta(seconds=600)

    def test_a_one_time_job_that_fails_follows_the_normal_retries_and_is_not_done(self, bench):
        bench.schedules.schedule(fail, "once", None, Once(at=NOW + timedelta(hours=1)), retry_delay=60)
        bench.seed()
        assert bench.drain() == []
        assert bench.run_for(hours=3) == ["once", "once", "once"]
        assert DeadLetter.objects.get().manifest == manifest("once")
        assert manifest("once").done_at is None


def three_groups(start: Schedules) -> None:
    (
        start.schedule(ping, "a", None, Every.hours(1), group="A")
        .then_include(ping, "b", group="B")
        .then_include(ping, "c", group="C")
        .then_include(ping, "a2", group="A")
    )


def through_default_groups(start: Schedules) -> None:
    """The group of "b" is "b", for it names none."""
    chain = start.schedule(ping, "a", None, Every.hours(1)).then_include(ping, "b")
    chain.then_include(ping, "c", group="a")


def itself(start: Schedules) -> None:
    chain = start.schedule(ping, "root", None, Every.hours(1))
    chain.include_many(ping, None, [ManifestItem("a", depends_on="a")])


def its_descendant(start: Schedules) -> None:
    chain = start.schedule(ping, "root", None, Every.hours(1))
    edges = {"a": "c", "b": "a", "c": "b"}
    chain.include_many(ping, None, [ManifestItem(own, depends_on=parent) for own, parent in edges.items()], group="g")


class TestDeclaring:
    """B."""

    @pytest.mark.parametrize(
        ("declare", "members"),
        [
            (three_groups, {"A", "B", "C"}),
            (through_default_groups, {"a", "b"}),
            (itself, {"a"}),
            (its_descendant, {"a", "b", "c"}),
        ],
    )
    def test_a_circle_is_refused_naming_its_members_before_anything_is_written(self, bench, declare, members):
        declare(bench.schedules)
        with pytest.raises(CycleError) as caught:
            bench.seed()
        assert set(caught.value.members) == members
        assert all(member in str(caught.value) for member in members)
        assert not ManifestGroup.objects.exists()

    def test_a_diamond_of_groups_with_edges_inside_a_group_is_fine(self, bench):
        chain = bench.schedules.schedule(ping, "top", None, Every.hours(1), group="top")
        chain.include(ping, "left", group="left").then_include(ping, "left-end", group="bottom")
        chain.include(ping, "right", group="right").then_include(ping, "right-end", group="bottom")
        chain.include(ping, "beside", group="top")
        bench.seed()
        assert sorted(bench.drain()) == ["beside", "left", "left-end", "right", "right-end", "top"]


class TestSeedingAfterMigrate:
    """C: never in a test run, never on half a schema, only for our own app and alias; a failure is a warning."""

    @pytest.fixture(autouse=True)
    def _no_test_run(self, monkeypatch: pytest.MonkeyPatch, declared: Schedules) -> None:
        """Take away what Django's test environment leaves behind, so that this looks like a real migrate."""
        monkeypatch.delattr(mail, "outbox")

    def send(self, *, app: str = "chainsched", plan: Any = ()) -> None:
        config = apps.get_app_config(app)
        post_migrate.send(
            sender=config,
            app_config=config,
            verbosity=0,
            interactive=False,
            using="default",
            plan=list(plan),
            apps=apps,
        )

    def test_a_full_schema_is_seeded(self):
        self.send()
        assert Manifest.objects.get().external_id == "declared"

    def test_a_test_run_is_not_seeded(self, monkeypatch):
        monkeypatch.setattr(mail, "outbox", [], raising=False)
        self.send()
        assert not Manifest.objects.exists()

    def test_a_half_migrated_schema_is_not_seeded(self):
        newest = max(MigrationRecorder(connection).applied_migrations(), key=lambda key: (key[0] == "chainsched", key))
        MigrationRecorder(connection).record_unapplied(*newest)
        self.send()
        assert not Manifest.objects.exists()

    def test_migrating_backwards_does_not_seed(self):
        self.send(plan=[(Migration("0001_initial", "chainsched"), True)])
        assert not Manifest.objects.exists()

    def test_another_app_does_not_make_us_seed(self):
        self.send(app="auth")
        assert not Manifest.objects.exists()

    def test_another_alias_does_not_make_us_seed(self):
        _seed_after_migrate(using="replica", plan=[])
        assert not Manifest.objects.exists()

    def test_it_can_be_turned_off(self, settings):
        settings.CHAINSCHED = {"SEED": {"post_migrate": False}}
        self.send()
        assert not Manifest.objects.exists()

    def test_a_declaration_that_cannot_be_is_a_warning_and_migrate_goes_on(self, declared, caplog):
        declared.schedule(ping, "declared", None, Every.hours(2))
        self.send()
        assert "not seeded after migrate" in caplog.text
        assert "'declared' is declared twice" in caplog.text
        assert not Manifest.objects.exists()

    @pytest.mark.parametrize(
        "cause",
        [
            pytest.param(InvalidWorkflow("it takes two inputs")),
            UnknownManifest("nobody"),
        ],
        ids=lambda cause: type(cause).__name__,
    )
    def test_whatever_of_ours_is_raised_while_seeding_is_a_warning(self, declared, caplog, cause):
        def items() -> list[ManifestItem]:
            raise cause

        declared.schedule_many(ping, "sync", items, Every.hours(1))
        self.send()
        assert str(cause) in caplog.text


class TestOrderOfWriting:
    """C: who writes the same rows at once writes them in the same order, or they block each other."""

    @pytest.mark.parametrize("model", [ManifestGroup, Manifest])
    def test_new_rows_are_written_in_the_order_of_their_names(self, model):
        items = [ManifestItem(name, group=name) for name in "cab"]
        Manifest.objects.schedule_many(ping, "batch", items, Every.hours(1))
        written = [str(row) for row in model.objects.order_by("id")]
        assert written == sorted(written)


class TestStarting:
    """C: startup recovery and seeding are complete before the loops start."""

    def test_declarations_are_seeded_and_the_dead_are_buried_before_the_loops_start(self, declared, monkeypatch):
        seen: dict[str, Any] = {}

        def look(self: Supervisor) -> None:
            seen["manifests"] = list(Manifest.objects.values_list("external_id", flat=True))
            seen["lost"] = Metadata.objects.get().state

        dead = make_process(heartbeat_at=NOW - timedelta(days=900))
        left = make_manifest("left", state={}, is_declared=False)
        make_execution(left, state=ExecutionState.IN_PROGRESS, process=dead, started_at=NOW)
        monkeypatch.setattr(Supervisor, "run_once", look)
        call_command("run_scheduler", "--once", stdout=StringIO())
        assert seen == {"manifests": ["declared", "left"], "lost": ExecutionState.FAILED}


class TestPlanning:
    """C: plan exits non-zero on any drift when asked to, and on none otherwise."""

    @pytest.mark.parametrize(
        "drift",
        [
            pytest.param(lambda: Manifest.objects.all().delete(), id="a manifest is missing"),
            pytest.param(lambda: Manifest.objects.update(interval_seconds=60), id="a column differs"),
            pytest.param(lambda: ManifestGroup.objects.update(priority=9), id="a stated group setting differs"),
            pytest.param(lambda: make_manifest("gone", is_declared=True, owner="tests"), id="one is to be retired"),
            pytest.param(lambda: Manifest.objects.update(retired_at=NOW), id="one is to be revived"),
        ],
    )
    def test_plan_exits_non_zero_on_drift_when_asked_to(self, declared, drift):
        declared.schedule(ping, "other", None, Every.hours(1), group="g", group_priority=3)
        call_command("chainsched", "seed", stdout=StringIO())
        call_command("chainsched", "plan", "--check", stdout=StringIO())
        drift()
        before = list(Manifest.objects.order_by("id").values())
        call_command("chainsched", "plan", stdout=StringIO())
        with pytest.raises(SystemExit) as caught:
            call_command("chainsched", "plan", "--check", stdout=StringIO())
        assert caught.value.code == 1
        assert list(Manifest.objects.order_by("id").values()) == before


# D. Each way leaves one manifest named "job" behind and says when its alarm should be.


def success(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "job", None, Every.minutes(5))
    bench.drain()
    return bench.now + FIVE_MINUTES


def failure_with_retries_left(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(fail, "job", None, Every.minutes(5))
    bench.drain()
    assert WorkQueue.objects.queued().get().attempt == 2
    return None


def failure_into_a_dead_letter(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(fail, "job", None, Every.minutes(5), max_retries=1)
    bench.drain()
    assert DeadLetter.objects.awaiting().exists()
    return None


def success_after_a_retry(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(fail, "job", None, Every.minutes(5), retry_delay=60)
    bench.drain()
    Manifest.objects.schedule(ping, "job", None, Every.minutes(5))
    bench.advance(seconds=90)
    assert bench.drain() == ["job"]
    return bench.now + FIVE_MINUTES


def queue_row_cancelled(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "job", None, Every.minutes(5))
    bench.manage()
    bench.advance(seconds=30)
    assert manifest("job").cancel() == Cancelled(queued=1)
    return bench.now + FIVE_MINUTES


def retry_in_the_queue_cancelled(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(fail, "job", None, Every.minutes(5))
    bench.drain()
    bench.advance(seconds=30)
    assert manifest("job").cancel() == Cancelled(queued=1)
    return bench.now + FIVE_MINUTES


def pending_cancelled(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "job", None, Every.minutes(5))
    bench.manage()
    bench.dispatch()
    bench.advance(seconds=30)
    assert manifest("job").cancel() == Cancelled(pending=1)
    return bench.now + FIVE_MINUTES


def running_cancelled(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(fail, "job", None, Every.minutes(5))
    bench.manage()
    bench.dispatch()
    Metadata.objects.update(cancel_requested=True)
    bench.advance(seconds=30)
    bench.work()
    assert executions_of("job")[0].state == ExecutionState.CANCELLED
    return bench.now + FIVE_MINUTES


def lost_with_its_process(bench: Workbench) -> datetime | None:
    """It is retried at once; when that succeeds the interval begins anew."""
    Manifest.objects.schedule(ping, "job", None, Every.minutes(5))
    bench.manage()
    bench.dispatch()
    dead = make_process(heartbeat_at=bench.now - timedelta(hours=1))
    Metadata.objects.update(state=ExecutionState.IN_PROGRESS, process=dead, started_at=bench.now)
    assert reap(now=bench.now).lost == 1
    assert alarm_of("job") is None
    assert bench.drain() == ["job"]
    return bench.now + FIVE_MINUTES


def lost_with_its_process_for_good(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "job", None, Every.minutes(5), max_retries=1)
    bench.manage()
    bench.dispatch()
    dead = make_process(heartbeat_at=bench.now - timedelta(hours=1))
    Metadata.objects.update(state=ExecutionState.IN_PROGRESS, process=dead, started_at=bench.now)
    reap(now=bench.now)
    assert DeadLetter.objects.awaiting().exists()
    return None


def manifest_enabled(bench: Workbench) -> datetime | None:
    success(bench)
    manifest("job").disable()
    bench.advance(hours=3)
    assert bench.drain() == []
    manifest("job").enable()
    return bench.now + FIVE_MINUTES


def manifest_enabled_while_it_waits_in_the_queue(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "job", None, Every.minutes(5))
    bench.manage()
    manifest("job").disable()
    assert bench.drain() == []
    manifest("job").enable()
    bench.assert_queued("job")
    return None


def group_enabled(bench: Workbench) -> datetime | None:
    success(bench)
    ManifestGroup.objects.get().disable()
    bench.advance(hours=3)
    assert bench.drain() == []
    ManifestGroup.objects.get().enable()
    return bench.now + FIVE_MINUTES


def parent_enabled(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "parent", None, Every.hours(9))
    Manifest.objects.schedule_dependent(ping, "job", None, depends_on="parent")
    bench.turn()
    manifest("parent").disable()
    assert bench.drain() == []
    bench.advance(hours=1)
    manifest("parent").enable()
    return bench.now


def reparented(bench: Workbench) -> datetime | None:
    """To a parent that has succeeded, from one that never did."""
    Manifest.objects.schedule(fail, "idle", None, None)
    Manifest.objects.schedule_dependent(ping, "job", None, depends_on="idle")
    Manifest.objects.schedule(ping, "busy", None, Every.hours(9))
    bench.drain()
    assert alarm_of("job") is None
    Manifest.objects.schedule_dependent(ping, "job", None, depends_on="busy")
    return bench.now


def reparented_to_one_that_never_ran(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "busy", None, Every.hours(9))
    Manifest.objects.schedule(ping, "idle", None, None)
    bench.drain()
    Manifest.objects.schedule_dependent(ping, "job", None, depends_on="busy")
    assert alarm_of("job") == bench.now
    Manifest.objects.schedule_dependent(ping, "job", None, depends_on="idle")
    return None


def edited(bench: Workbench) -> datetime | None:
    success(bench)
    bench.advance(minutes=2)
    Manifest.objects.schedule(ping, "job", None, Every.minutes(7))
    return bench.now + timedelta(minutes=7)


def edited_into_a_cron(bench: Workbench) -> datetime | None:
    success(bench)
    bench.advance(minutes=2)
    Manifest.objects.schedule(ping, "job", None, Cron.hourly())
    return NOW + timedelta(hours=1)


def edited_while_it_runs(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "job", None, Every.minutes(5))
    bench.manage()
    bench.dispatch()
    Manifest.objects.schedule(ping, "job", None, Every.minutes(7))
    assert alarm_of("job") is None
    bench.work()
    return bench.now + timedelta(minutes=7)


def edited_to_stop(bench: Workbench) -> datetime | None:
    success(bench)
    Manifest.objects.schedule(ping, "job", None, None)
    return None


def revived(bench: Workbench) -> datetime | None:
    anchor = Schedules()
    anchor.schedule(ping, "anchor", None, Every.hours(9))
    bench.schedules.schedule(ping, "anchor", None, Every.hours(9))
    bench.schedules.schedule(ping, "job", None, Every.minutes(5))
    bench.seed()
    bench.drain()
    declarations, bench.schedules = bench.schedules, anchor
    bench.seed()
    assert alarm_of("job") is None
    bench.advance(hours=3)
    bench.schedules = declarations
    bench.seed()
    return bench.now + FIVE_MINUTES


WAYS = [
    success,
    failure_with_retries_left,
    failure_into_a_dead_letter,
    success_after_a_retry,
    queue_row_cancelled,
    retry_in_the_queue_cancelled,
    pending_cancelled,
    running_cancelled,
    lost_with_its_process,
    lost_with_its_process_for_good,
    manifest_enabled,
    manifest_enabled_while_it_waits_in_the_queue,
    group_enabled,
    parent_enabled,
    reparented,
    reparented_to_one_that_never_ran,
    edited,
    edited_into_a_cron,
    edited_while_it_runs,
    edited_to_stop,
    revived,
]


class TestAlarms:
    """D: after every way in which open work can end or an obstacle be lifted the alarm is right."""

    @pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.replace("_", " "))
    def test_the_alarm_is_right_after(self, bench, way):
        assert way(bench) == alarm_of("job")

    @pytest.mark.parametrize(
        "way", [queue_row_cancelled, retry_in_the_queue_cancelled, pending_cancelled, running_cancelled]
    )
    def test_a_cancelled_five_minute_interval_waits_five_minutes(self, bench, way):
        way(bench)
        Manifest.objects.update(workflow="testapp.ping")
        bench.advance(seconds=299)
        assert bench.drain() == []
        bench.advance(seconds=1)
        assert bench.drain() == ["job"]

    def test_the_manifests_of_a_disabled_group_cost_the_next_turns_nothing(self, bench):
        items = [ManifestItem(str(number)) for number in range(300)]
        bench.schedules.schedule_many(ping, "many", items, Every.minutes(5))
        bench.seed()
        ManifestGroup.objects.get().disable()
        for _ in range(3):
            assert evaluate(now=bench.advance(hours=1)).seen == 0
        ManifestGroup.objects.get().enable()
        assert evaluate(now=bench.now).queued == 300

    def test_a_group_that_was_switched_off_by_hand_costs_one_look(self, bench):
        items = [ManifestItem(str(number)) for number in range(300)]
        bench.schedules.schedule_many(ping, "many", items, Every.minutes(5))
        bench.seed()
        ManifestGroup.objects.update(is_enabled=False)
        assert evaluate(now=bench.now).passed_over == {Reason.GROUP_DISABLED: 300}
        assert evaluate(now=bench.advance(hours=1)).seen == 0

    def test_a_form_that_is_saved_during_a_run_changes_nothing_of_its_state(self, bench):
        Manifest.objects.schedule(copy, "job", Slice("t"), Every.minutes(5))
        before_the_run = manifest("job")
        Form = modelform_factory(Manifest, fields=["priority", "group", "is_enabled", "timeout_seconds"])  # noqa: N806
        form = Form(
            {"priority": 7, "group": before_the_run.group_id, "is_enabled": "on", "timeout_seconds": 9},
            instance=before_the_run,
        )
        bench.manage()
        bench.dispatch()
        during = ManifestState.objects.values().get()
        assert form.is_valid(), form.errors
        form.save()
        assert ManifestState.objects.values().get() == during
        bench.work()
        before_the_run.save()
        row = manifest("job")
        assert (row.last_successful_run, row.next_run_at) == (bench.now, bench.now + FIVE_MINUTES)
        assert (row.priority, row.timeout_seconds) == (7, 9)


def disabled() -> None:
    make_manifest("job", is_enabled=False)


def in_a_disabled_group() -> None:
    make_manifest("job", group=make_group(is_enabled=False))


def retired() -> None:
    make_manifest("job", retired_at=NOW)


def awaiting_a_letter() -> None:
    make_letter(make_manifest("job"))


def queued() -> None:
    make_queue_row(make_manifest("job"))


def pending() -> None:
    make_execution(make_manifest("job"))


def running() -> None:
    make_execution(make_manifest("job"), state=ExecutionState.IN_PROGRESS)


def on_demand() -> None:
    make_manifest("job", schedule_type=ScheduleType.ON_DEMAND)


def dormant() -> None:
    parent = make_manifest(state={})
    kind: dict[str, Any] = {"schedule_type": ScheduleType.DORMANT_DEPENDENT, "run_condition": RunCondition.SUCCESS}
    make_manifest("job", depends_on=parent, **kind)


def done() -> None:
    make_manifest("job", schedule_type=ScheduleType.ONCE, once_at=NOW, done_at=NOW)


def below_a_disabled_parent() -> None:
    parent = make_manifest(state={}, is_enabled=False)
    make_dependent(parent, "job", state={"due_execution": 5, "next_run_at": NOW})


def without_its_parent() -> None:
    kind: dict[str, Any] = {"schedule_type": ScheduleType.DEPENDENT, "run_condition": RunCondition.SUCCESS}
    make_manifest("job", state={"due_execution": 5, "next_run_at": NOW}, **kind)


def behind_no_success() -> None:
    make_dependent(make_manifest(state={}), "job", state={"next_run_at": NOW})


def found_too_late() -> None:
    make_manifest("job", misfire_policy="skip", state={"next_run_at": NOW - timedelta(minutes=2)})


def with_a_broken_zone() -> None:
    cron: dict[str, Any] = {"schedule_type": ScheduleType.CRON, "cron_expression": "* * * * *"}
    make_manifest("job", timezone="Mars/Olympus", misfire_policy="skip", **cron)


CASES: list[tuple[Callable[[], None], Reason]] = [
    (disabled, Reason.DISABLED),
    (in_a_disabled_group, Reason.GROUP_DISABLED),
    (retired, Reason.RETIRED),
    (awaiting_a_letter, Reason.AWAITING_DEAD_LETTER),
    (queued, Reason.QUEUED),
    (pending, Reason.PENDING),
    (running, Reason.RUNNING),
    (on_demand, Reason.ON_DEMAND),
    (dormant, Reason.DORMANT),
    (done, Reason.DONE),
    (below_a_disabled_parent, Reason.PARENT_DISABLED),
    (without_its_parent, Reason.PARENT_MISSING),
    (behind_no_success, Reason.PARENT_NOT_AHEAD),
    (found_too_late, Reason.MISFIRE_SKIPPED),
    (with_a_broken_zone, Reason.UNSCHEDULABLE),
]


class TestExplaining:
    """D: explain gives the reason, in words and as a code, the same one that the turn used."""

    @pytest.fixture(autouse=True)
    def _somebody_can_run_it(self, bench: Workbench) -> None:
        assert bench.process.workflows

    @pytest.mark.parametrize(("prepare", "reason"), CASES)
    def test_explain_says_what_the_turn_says(self, prepare, reason):
        prepare()
        explanation = manifest("job").explain()
        turned = evaluate(now=NOW)
        assert (explanation.code, dict(turned.passed_over)) == (reason, {reason: 1})
        if reason is not Reason.QUEUED:
            assert explanation.reason.startswith(IN_WORDS[reason])
        assert explanation.reason

    @pytest.mark.parametrize(("prepare", "reason"), [case for case in CASES if case[0] is not found_too_late])
    def test_explain_says_the_same_after_the_turn_has_disarmed_it(self, prepare, reason):
        prepare()
        evaluate(now=NOW)
        assert manifest("job").explain().code == reason

    def test_what_is_not_due_is_told_with_its_time(self):
        make_manifest("job", state={"next_run_at": NOW + FIVE_MINUTES})
        explanation = manifest("job").explain()
        assert (explanation.code, explanation.next_run_at) == (Reason.NOT_DUE, NOW + FIVE_MINUTES)
        assert evaluate(now=NOW).seen == 0

    def test_what_is_due_is_told_as_due(self):
        make_manifest("job")
        assert manifest("job").explain().code == Reason.DUE
        assert evaluate(now=NOW).queued == 1

    def test_a_row_that_was_put_aside_does_not_claim_to_wait_for_its_time(self, monkeypatch):
        """Its alarm is gone and nothing will look at it: "its next run is not due yet" would be untrue."""
        row = enqueue._row
        monkeypatch.setattr(enqueue, "_row", lambda *args, **rest: row(*args, **rest) | {"priority": 99})
        make_manifest("job")
        evaluate(now=NOW)
        assert alarm_of("job") is None
        assert manifest("job").explain().code != Reason.NOT_DUE


class TestDependents:
    """E."""

    @pytest.fixture
    def pair(self, bench: Workbench) -> Workbench:
        bench.schedules.schedule(ping, "parent", None, Every.hours(1)).then_include(ping, "child")
        bench.seed()
        return bench

    @pytest.mark.parametrize("stage", ["queued", "pending", "running"])
    def test_a_success_whose_run_was_cancelled_is_spent(self, pair, stage, monkeypatch):
        pair.turn()
        pair.manage()
        if stage != "queued":
            pair.dispatch()
        if stage == "running":
            start_running(pair)
        assert manifest("child").cancel().total == 1
        if stage == "running":
            Metadata.objects.filter(manifest_external_id="child").update(state=ExecutionState.PENDING, process=None)
            with monkeypatch.context() as patched:
                patched.setattr(registry.get("testapp.ping"), "function", fail)
                pair.work()
        assert pair.drain() == []
        assert manifest("child").explain().code == Reason.PARENT_NOT_AHEAD
        pair.advance(hours=1)
        assert pair.drain() == ["parent", "child"]

    def test_pruned_history_changes_nothing(self, pair):
        pair.drain()
        pair.advance(hours=1)
        pair.turn()
        forget_history()
        assert pair.drain() == ["child"]
        assert pair.drain() == []
        forget_history()
        pair.seed()
        assert pair.drain() == []
        pair.advance(hours=1)
        assert pair.drain() == ["parent", "child"]


def forget_history() -> None:
    """What retention does to ended executions, through its door."""
    with transaction.atomic(), connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(f"SELECT set_config('{guard.RETENTION_DOOR}', 'on', true)")
        cursor.execute("DELETE FROM chainsched_metadata WHERE ended_at IS NOT NULL")


class TestDispatch:
    """G."""

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


class TestManaging:
    """J."""

    def test_a_group_trigger_says_how_many_were_queued_already(self, bench):
        bench.schedules.schedule_many(ping, "job", [ManifestItem(n) for n in "abc"], Every.hours(1))
        bench.seed()
        manifest("job-a").trigger()
        group = ManifestGroup.objects.get()
        assert group.trigger() == Counter({Answer.QUEUED: 2, Answer.ALREADY_QUEUED: 1})
        out = StringIO()
        call_command("chainsched", "trigger", "--group", "job", stdout=out)
        assert out.getvalue() == "job: 3 already queued; it was brought forward.\n"

    @pytest.mark.parametrize(
        "verb",
        [
            "trigger",
            "enable",
            "disable",
            "cancel",
            "explain",
        ],
    )
    def test_what_is_asked_of_a_manifest_that_is_gone_is_a_clear_error(self, verb):
        made = make_manifest("job", state={})
        Manifest.objects.get(pk=made.pk).delete()
        with pytest.raises(UnknownManifest, match="There is no manifest 'job'"):
            getattr(made, verb)()

    def test_a_trigger_now_does_not_use_the_input_of_a_delayed_one(self, bench):
        Manifest.objects.schedule(copy, "job", Slice("own"), None)
        assert manifest("job").trigger(timedelta(hours=1), input=Slice("later")) is Answer.DELAYED
        assert manifest("job").trigger() is Answer.QUEUED
        assert bench.drain() == ["job"]
        bench.advance(hours=1)
        assert bench.drain() == ["job"]
        assert [execution.input["table"] for execution in executions_of("job")] == ["own", "later"]

    def test_a_delayed_trigger_while_queued_leaves_the_queued_row_alone_and_runs_once_more(self, bench):
        Manifest.objects.schedule(ping, "job", None, None)
        manifest("job").trigger()
        assert manifest("job").trigger(timedelta(minutes=10)) is Answer.DELAYED
        assert bench.drain() == ["job"]
        assert alarm_of("job") == bench.now + timedelta(minutes=10)
        assert bench.run_for(minutes=10) == ["job"]

    def test_a_removed_manifests_queued_row_is_cancelled(self, bench):
        """DESIGN 6: otherwise it waits for ever and counts as backlog."""
        Manifest.objects.schedule(ping, "job", None, None)
        manifest("job").trigger()
        manifest("job").delete()
        bench.drain()
        assert WorkQueue.objects.get().status == QueueStatus.CANCELLED


@contextmanager
def a_users_transaction(*wishes: Callable[[], Any]) -> Iterator[None]:
    """Make the calls in a transaction on a connection of its own, which stays open for the length of the block."""
    asked, may_end = threading.Event(), threading.Event()

    def user() -> None:
        try:
            with transaction.atomic():
                for wish in wishes:
                    wish()
                asked.set()
                assert may_end.wait(30)
        finally:
            asked.set()
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(user)
        try:
            assert asked.wait(30)
            yield
        finally:
            may_end.set()
        future.result()


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
class TestTriggersInsideAUsersTransaction:
    """J: they delay that manifest and nobody else. A wait of ours would end with an error after 300 ms."""

    @pytest.fixture(autouse=True)
    def _impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(locks, "LOCK_TIMEOUT", "300ms")

    @pytest.fixture
    def jobs(self, bench: Workbench) -> Workbench:
        for name in ("asked", "other"):
            Manifest.objects.schedule(ping, name, None, Every.minutes(5), group="g", group_max_active_jobs=5)
        assert bench.process
        return bench

    def test_another_manifest_is_evaluated_dispatched_run_and_recorded(self, jobs):
        with a_users_transaction(manifest("asked").trigger):
            assert jobs.manage() == 1
            assert jobs.dispatch() == 1
            assert len(jobs.work().ended) == 1
            assert len(executions_of("other")) == 1
        assert jobs.drain() == ["asked"]

    def test_another_manifest_is_triggered_cancelled_and_switched(self, jobs):
        other = manifest("other")
        with a_users_transaction(manifest("asked").trigger):
            assert other.trigger() is Answer.QUEUED
            assert other.cancel() == Cancelled(queued=1)
            assert (other.disable(), other.enable()) == (True, True)

    def test_others_are_dispatched_while_a_queued_row_is_brought_forward(self, jobs):
        jobs.manage()
        with a_users_transaction(manifest("asked").trigger):
            assert jobs.dispatch() == 1
            assert Metadata.objects.get().manifest == manifest("other")

    def test_a_run_that_is_asked_to_run_again_does_not_hold_up_the_results_of_others(self, jobs):
        """Results are recorded in batches: the one whose manifest is held comes later, the others now."""
        jobs.manage()
        jobs.dispatch()
        with a_users_transaction(manifest("asked").trigger):
            jobs.work()
            assert executions_of("other")[0].state == ExecutionState.COMPLETED
        jobs.drain()
        assert executions_of("asked")[0].state == ExecutionState.COMPLETED

    def test_a_rollback_leaves_no_trace(self, jobs):
        def ask_and_fail() -> None:
            manifest("asked").trigger()
            raise RuntimeError("the view failed")

        with pytest.raises(RuntimeError, match="the view failed"), a_users_transaction(ask_and_fail):
            pass
        assert not WorkQueue.objects.filter(source=Source.TRIGGER).exists()
        assert database_now() == jobs.now
