"""What must hold and no other test shows: declaring, seeding, managing (B, C, J). The rest has files of its own."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
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

from chainsched import Every, ManifestItem
from chainsched.apps import _seed_after_migrate
from chainsched.db import locks
from chainsched.db.clock import database_now
from chainsched.domain.results import Answer, Cancelled
from chainsched.domain.states import ExecutionState, QueueStatus, Source
from chainsched.exceptions import CycleError, InvalidWorkflow, UnknownManifest
from chainsched.flow.schedule.declare import Schedules, schedules
from chainsched.models import Manifest, ManifestGroup, Metadata, WorkQueue
from chainsched.runtime.process.supervisor import Supervisor
from chainsched.testing import Workbench
from tests.drive import alarm_of, executions_of, manifest
from tests.factories import NOW, make_execution, make_manifest, make_process
from tests.testapp.workflows import Slice, copy, ping

pytestmark = pytest.mark.django_db

FIVE_MINUTES = timedelta(minutes=5)


@pytest.fixture
def declared() -> Iterator[Schedules]:
    """The project's own declarations, which seeding at start and after migrate reads."""
    schedules.schedule(ping, "declared", None, Every.hours(1))
    yield schedules
    schedules.clear()


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

        # One that only sends no heartbeat is watched for one expiry first.
        dead = make_process(heartbeat_at=NOW - timedelta(days=900), lost_at=NOW - timedelta(days=899))
        left = make_manifest("left", state={}, is_declared=False)
        make_execution(left, state=ExecutionState.IN_PROGRESS, process=dead, started_at=NOW)
        monkeypatch.setattr(Supervisor, "run_once", look)
        call_command("run_scheduler", "--once", "--in-process", stdout=StringIO())
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
                for request in wishes:
                    request()
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
