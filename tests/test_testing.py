"""The workbench that projects test with."""

import uuid
from dataclasses import fields
from datetime import UTC, datetime, timedelta

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import Group
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection
from django.db.backends.signals import connection_created

from chainsched import Cron, Every, RunContext
from chainsched.conf import get_config
from chainsched.db.clock import database_now
from chainsched.domain.joins import JoinOutcome
from chainsched.domain.results import JoinReport, ParentRun
from chainsched.domain.run_context import RunFacts
from chainsched.domain.states import ExecutionState
from chainsched.exceptions import ActivationError, InvalidInput
from chainsched.flow.run.claim import claim
from chainsched.flow.run.execute import execute_here
from chainsched.flow.schedule.declare import Schedules, schedules
from chainsched.models import Manifest, ManifestGroup, Metadata, Process
from chainsched.registry import registry
from chainsched.servers.inline import InlineServer
from chainsched.testing import Workbench
from tests.drive import executions_of
from tests.factories import make_execution, make_group, make_manifest
from tests.testapp import misdeeds, workflows

pytestmark = pytest.mark.django_db

START = datetime(2026, 3, 28, 0, 0, tzinfo=UTC)


@pytest.fixture
def bench():
    with Workbench(START, declared=Schedules()) as bench:
        yield bench


def test_the_clock_stands_still_inside_and_runs_again_outside():
    with Workbench(START):
        assert database_now() == START
    assert database_now() != START


def test_time_passes_only_when_told(bench):
    bench.advance(minutes=5)
    assert database_now() == bench.now == START + timedelta(minutes=5)
    bench.travel_to(START)
    assert database_now() == START


def test_two_days_over_a_night_with_a_changing_clock_take_no_time(bench):
    """In Berlin 02:30 does not exist on 29 March 2026; the run comes at 03:00, which is 01:00 UTC."""
    bench.schedules.schedule(workflows.ping, "night", None, Cron.daily(hour=2, minute=30), timezone="Europe/Berlin")
    bench.seed()
    assert bench.run_for(days=2) == ["night", "night"]
    ended = [execution.ended_at for execution in Manifest.objects.get().executions.order_by("id")]
    assert ended == [datetime(2026, 3, 28, 1, 30, tzinfo=UTC), datetime(2026, 3, 29, 1, 0, tzinfo=UTC)]
    assert bench.now == START + timedelta(days=2)


def test_retries_are_reached_by_travelling(bench):
    bench.schedules.schedule(workflows.fail, "bad", None, Every.days(1), max_retries=3)
    bench.seed()
    assert bench.run_for(hours=1) == ["bad", "bad", "bad"]


def test_what_waits_can_be_asserted(bench):
    bench.schedules.schedule(workflows.ping, "a", None, Every.hours(1))
    bench.seed()
    bench.assert_queued()
    bench.manage()
    bench.assert_queued("a")
    with pytest.raises(AssertionError, match=r"Queued are \['a'\], not \['b'\]"):
        bench.assert_queued("b")


def test_what_a_view_triggers_runs_when_drained(bench):
    Manifest.objects.schedule(workflows.copy, "sync", workflows.Slice("t"), None).trigger()
    assert bench.queued() == ["sync"]
    assert bench.drain() == ["sync"]


def test_a_job_that_never_comes_to_rest_is_reported(bench, monkeypatch):
    monkeypatch.setattr("chainsched.testing.MAX_ROUNDS", 5)
    monkeypatch.setattr(bench, "turn", lambda: ["restless"])
    with pytest.raises(AssertionError, match="Still running after 5 turns"):
        bench.drain()


def test_by_default_it_seeds_what_the_project_declares():
    schedules.schedule(workflows.ping, "declared", None, Every.hours(1))
    try:
        with Workbench(START) as bench:
            bench.seed()
            assert bench.drain() == ["declared"]
    finally:
        schedules.clear()
    assert Process.objects.get().kind == "test"


class TestAsync:
    """Workflows that await: their queries run in the test's thread and transaction."""

    def schedule(self, bench, workflow, **options):
        bench.schedules.schedule(workflow, "job", None, Every.days(1), group="stored before", **options)
        bench.seed()

    def test_an_async_workflow_sees_the_rows_of_the_test_and_writes_into_its_transaction(self, bench):
        self.schedule(bench, workflows.count_jobs)
        assert bench.drain() == ["job"]
        execution = executions_of("job")[0]
        assert execution.state == ExecutionState.COMPLETED, execution.failure_reason
        assert execution.output == ["made by job", "stored before"]
        assert ManifestGroup.objects.filter(name="made by job").exists()

    def test_nothing_of_it_is_left_in_the_database(self):
        assert ManifestGroup.objects.count() == 0

    def test_it_opens_no_other_connection(self, bench):
        opened = []

        def note(connection, **_):
            opened.append(connection)

        connection_created.connect(note)
        try:
            self.schedule(bench, workflows.count_jobs)
            bench.drain()
        finally:
            connection_created.disconnect(note)
        assert opened == []

    def test_it_reports_progress_and_asks_whether_to_stop(self, bench):
        self.schedule(bench, workflows.report_async)
        bench.drain()
        execution = executions_of("job")[0]
        assert execution.state == ExecutionState.COMPLETED, execution.failure_reason
        assert (execution.output, execution.progress["done"]) == (False, 2)

    def test_one_that_was_asked_to_stop_before_it_began_sees_that(self, bench):
        self.schedule(bench, workflows.report_async)
        bench.manage()
        bench.dispatch()
        Metadata.objects.update(cancel_requested=True)
        (item,) = claim(process=bench.process, workflows=registry.names(), limit=1, now=bench.now)
        assert execute_here(item).output is True

    def test_an_exit_of_an_async_workflow_is_a_failure(self, bench):
        self.schedule(bench, workflows.exit_async, max_retries=1)
        bench.drain()
        assert executions_of("job")[0].failure_type == "SystemExit"

    def test_from_an_async_test_the_bench_is_called_in_a_thread_for_sync_code(self, bench):
        self.schedule(bench, workflows.count_jobs)

        async def test():
            return await sync_to_async(bench.drain)()

        assert async_to_sync(test)() == ["job"]
        assert executions_of("job")[0].output == ["made by job", "stored before"]

    def test_straight_from_async_code_it_is_refused(self, bench):
        async def test():
            bench.drain()

        with pytest.raises(SynchronousOnlyOperation):
            async_to_sync(test)()

    def test_the_inline_server_runs_it_in_its_thread(self, bench):
        execution = make_execution(make_manifest("job"), workflow="testapp.count_jobs")
        InlineServer().submit([execution.id])
        assert executions_of("job")[0].state == ExecutionState.COMPLETED


class TestLeftOpen:
    """A job that leaves a transaction open has failed, as in a worker, and what it wrote there is gone."""

    def run(self, bench, workflow, value=None):
        bench.schedules.schedule(workflow, "job", value, Every.days(1), max_retries=1)
        bench.schedules.schedule(workflows.ping, "next", None, Every.days(1))
        bench.seed()
        ran = bench.drain()
        assert sorted(ran) == ["job", "next"]
        assert executions_of("next")[0].state == ExecutionState.COMPLETED
        return executions_of("job")[0]

    def test_a_block_that_is_left_open_in_the_transaction_of_the_test(self, bench):
        execution = self.run(bench, misdeeds.write_in_an_open_block, "lost")
        assert execution.failure_type == "open_transaction"
        assert "It left a transaction open (database default)" in execution.failure_reason
        assert not Group.objects.exists()

    def test_one_of_an_async_workflow(self, bench):
        assert self.run(bench, misdeeds.write_in_an_open_block_async, "lost").failure_type == "open_transaction"
        assert not Group.objects.exists()

    def test_two_in_each_other_without_savepoints(self, bench):
        assert self.run(bench, misdeeds.leave_two_blocks_open).failure_type == "open_transaction"

    def test_a_job_that_fails_keeps_its_own_reason(self, bench):
        assert self.run(bench, misdeeds.fail_in_an_open_block).failure_type == "RuntimeError"

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize(
        ("workflow", "is_lost"),
        [
            (misdeeds.write_in_an_open_block, True),
            (misdeeds.write_in_an_open_block_async, True),
            (misdeeds.write_without_commit, True),
            (misdeeds.write_without_commit_async, True),
            (misdeeds.begin_by_hand, True),
            (misdeeds.commit_by_hand, False),
        ],
        ids=lambda it: getattr(it, "__name__", ""),
    )
    def test_outside_of_a_transaction(self, bench, workflow, is_lost):
        execution = self.run(bench, workflow, "name")
        assert execution.failure_type == ("open_transaction" if is_lost else "")
        assert Group.objects.exists() is not is_lost
        assert (connection.autocommit, connection.in_atomic_block) == (True, False)


class TestContext:
    """A run's context for a test that calls the function."""

    def test_it_has_facts_without_being_told_any(self, bench):
        run = bench.context()
        assert isinstance(run, RunContext)
        described = workflows.describe(run)
        assert (described["external_id"], described["attempt"]) == ("job", 1)
        assert (run.scheduled_for, run.timeout_seconds, run.run_id) == (START, get_config().job_timeout, None)
        assert (run.join, run.parents, run.is_cancelled()) == (None, [], False)
        assert run.root_correlation_id == str(run.correlation_id)
        assert Manifest.objects.count() == 0, "it asks for no row and makes none"

    def test_every_fact_can_be_stated(self, bench):
        at, own_id = START - timedelta(days=1), uuid.uuid4()
        facts = {
            "workflow": "shop.load",
            "scheduled_for": at,
            "attempt": 3,
            "execution_id": 77,
            "correlation_id": own_id,
            "cron_expression": "0 2 * * *",
            "parent_manifest_id": 5,
            "parent_execution_id": 6,
            "root_execution_id": 4,
            "run_id": 9,
            "causation_id": "message-1",
            "root_correlation_id": "root-1",
        }
        run = bench.context("load-eu", timeout=60, **facts)
        assert {name: getattr(run, name) for name in facts} == facts
        assert (run.external_id, run.timeout_seconds) == ("load-eu", 60)
        assert {field.name for field in fields(RunFacts)} == {*facts, "external_id", "timeout_seconds"}

    def test_parents_and_join_are_those_of_the_test(self, bench):
        parents = [ParentRun(7, "extract", ExecutionState.COMPLETED, {"rows": 3})]
        join = JoinReport("load", 1, JoinOutcome.FIRED, needed=1, expected=2, arrived=1, open=0)
        run = bench.context(parents=parents, join=join)
        assert (run.parents, run.join) == (parents, join)
        assert (run.parent_execution_id, run.root_execution_id) == (7, 7)

    def test_activations_and_progress_are_kept(self, bench):
        run = bench.context(parents=[ParentRun(7, "extract", ExecutionState.COMPLETED, "out")])
        assert workflows.activate_slowly(run) == "True ['other'] ['out'] None"
        assert run.activated == [("child", {"table": "runtime", "size": 7}), ("other", None)]
        assert [report["done"] for report in run.reported] == [0, 1, 2]
        assert "swordfish" not in str(run.reported)
        assert run.activate("child") is False, "it counts as queued"

    def test_a_child_twice_in_one_call_is_refused_as_in_a_worker(self, bench):
        run = bench.context()
        with pytest.raises(ActivationError, match="named twice"):
            run.activate_many([("child", 1), ("child", 2)])
        assert run.activated == []

    def test_an_input_that_no_row_can_hold_is_refused_as_in_a_worker(self, bench):
        with pytest.raises(InvalidInput, match="The input of child has no JSON form"):
            bench.context().activate("child", object())

    def test_it_can_be_asked_to_stop(self, bench):
        assert workflows.activate_slowly(bench.context(is_cancelled=True)) == "stopped"
        run = bench.context()
        run.ask_to_stop()
        assert run.is_cancelled() is True
        assert workflows.activate_slowly(run) == "stopped"

    def test_an_unknown_fact_is_refused(self, bench):
        with pytest.raises(TypeError, match="colour"):
            bench.context(colour="red")


class TestBrokenTransactions:
    """A job runs in the test's transaction; what breaks that there would be the end of one statement in a worker."""

    def run(self, bench, workflow):
        make_group(name="taken")
        bench.schedules.schedule(workflow, "job", None, Every.days(1), max_retries=1, group="g")
        bench.seed()
        assert bench.drain() == ["job"]
        return executions_of("job")[0]

    @pytest.mark.parametrize("workflow", [workflows.violate, workflows.violate_async])
    def test_a_job_that_raises_an_error_of_the_database_has_failed_with_it(self, bench, workflow):
        assert self.run(bench, workflow).failure_type == "IntegrityError"
        assert ManifestGroup.objects.filter(name="taken").exists()

    @pytest.mark.parametrize("workflow", [workflows.swallow_a_violation, workflows.roll_back])
    def test_one_that_goes_on_has_failed_because_its_writes_are_gone(self, bench, workflow):
        execution = self.run(bench, workflow)
        assert execution.failure_type == "BrokenTransaction"
        assert "transaction.atomic()" in execution.failure_reason
        assert set(ManifestGroup.objects.values_list("name", flat=True)) == {"taken", "g"}

    def test_one_that_secures_what_may_fail_goes_on(self, bench):
        assert self.run(bench, workflows.secure_a_violation).state == ExecutionState.COMPLETED
        assert ManifestGroup.objects.filter(name="by the job").exists()


@pytest.mark.parametrize("wrong", [None, 7, "ab", ["child"], [("child",)], [(5, None)], [("child", 1, 2)], [None]])
def test_activations_that_are_no_pairs_are_refused_as_in_a_worker(wrong):
    context = Workbench(START).context()
    with pytest.raises((ActivationError, TypeError)):
        context.activate_many(wrong)
    assert context.activated == []


def test_an_activation_needs_a_text():
    with pytest.raises(ActivationError, match="no pair of an external id and an input"):
        Workbench(START).context().activate(5)
