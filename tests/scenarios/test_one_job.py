"""One job from its declaration to its record, at a time that the test chooses."""

from datetime import UTC, datetime, timedelta

import pytest

from chainsched import Cron, Every, Once
from chainsched.domain.states import ExecutionState, QueueStatus, Source
from chainsched.models import DeadLetter, Metadata, WorkQueue
from tests.drive import executions_of, manifest
from tests.factories import NOW
from tests.testapp import workflows

pytestmark = pytest.mark.django_db


def test_an_interval_job_runs_at_once_and_leaves_its_whole_story(bench):
    bench.schedules.schedule(workflows.copy, "sync", workflows.Slice("users"), Every.minutes(5), group="etl")
    bench.seed()

    assert bench.drain() == ["sync"]

    execution = Metadata.objects.get()
    row = WorkQueue.objects.get()
    assert execution.state == ExecutionState.COMPLETED
    assert execution.input == {"table": "users", "size": 500}
    assert execution.output == {"table": "users", "rows": 500}
    assert (execution.source, execution.attempt) == (Source.SCHEDULE, 1)
    assert (execution.scheduled_for, execution.started_at, execution.ended_at) == (NOW, NOW, NOW)
    assert execution.process == bench.process
    assert execution.group is not None
    assert execution.group.name == "etl"
    assert (row.status, row.execution_id, execution.work_queue_id) == (QueueStatus.DISPATCHED, execution.id, row.id)
    assert manifest("sync").last_successful_run == NOW


def test_an_interval_counts_from_the_end_of_the_last_run(bench):
    bench.schedules.schedule(workflows.ping, "ping", None, Every.minutes(5))
    bench.seed()
    bench.manage()
    bench.dispatch()
    bench.advance(minutes=2)
    bench.work()

    assert manifest("ping").next_run_at == NOW + timedelta(minutes=7)
    bench.advance(minutes=4, seconds=59)
    assert bench.drain() == []
    bench.advance(seconds=1)
    assert bench.drain() == ["ping"]


def test_a_new_cron_waits_for_its_first_occurrence(bench):
    bench.schedules.schedule(workflows.describe, "daily", None, Cron.daily(hour=12), timezone="Europe/Berlin")
    bench.seed()
    assert bench.drain() == []
    assert manifest("daily").next_run_at == datetime(2026, 3, 2, 11, 0, tzinfo=UTC)

    bench.advance(hours=1)
    assert bench.drain() == ["daily"]
    assert executions_of("daily")[0].output["cron_expression"] == "0 12 * * *"
    assert manifest("daily").next_run_at == datetime(2026, 3, 3, 11, 0, tzinfo=UTC)


def test_a_one_time_job_runs_at_its_time_and_never_again(bench):
    bench.schedules.schedule(workflows.ping, "once", None, Once(at=NOW + timedelta(hours=1)))
    bench.seed()
    assert bench.drain() == []
    bench.advance(hours=1)
    assert bench.drain() == ["once"]
    bench.advance(days=400)
    assert bench.drain() == []
    assert manifest("once").done_at is not None


def test_a_week_of_silence_makes_one_run_not_ten_thousand(bench):
    bench.schedules.schedule(workflows.ping, "often", None, Cron.minutely())
    bench.seed()
    bench.advance(days=7)
    assert bench.drain() == ["often"]


def test_an_async_workflow_runs(bench):
    bench.schedules.schedule(workflows.copy_async, "async", workflows.Slice("users"), Every.minutes(5))
    bench.seed()
    bench.drain()
    assert executions_of("async")[0].output == "users"


def test_a_workflow_sees_its_run(bench):
    bench.schedules.schedule(workflows.describe, "me", None, Every.minutes(5))
    bench.seed()
    bench.drain()
    execution = executions_of("me")[0]
    assert execution.output == {
        "execution_id": execution.id,
        "external_id": "me",
        "attempt": 1,
        "cron_expression": "",
        "parent_execution_id": None,
        "root_execution_id": None,
        "correlation_id": str(execution.external_id),
    }


def test_a_failing_job_is_retried_with_growing_waits_and_then_buried(bench):
    bench.schedules.schedule(workflows.fail, "bad", None, Every.minutes(5), retry_delay=60, retry_multiplier=2)
    bench.seed()
    assert bench.drain() == ["bad"]
    first = WorkQueue.objects.queued().get()
    assert first.source == Source.RETRY
    assert first.not_before is not None
    assert timedelta(seconds=54) <= first.not_before - bench.now <= timedelta(seconds=66)

    bench.travel_to(first.not_before)
    assert bench.drain() == ["bad"]
    second = WorkQueue.objects.queued().get()
    assert second.not_before is not None
    assert timedelta(seconds=108) <= second.not_before - bench.now <= timedelta(seconds=132)

    bench.travel_to(second.not_before)
    assert bench.drain() == ["bad"]
    letter = DeadLetter.objects.get()
    assert [execution.attempt for execution in executions_of("bad")] == [1, 2, 3]
    assert letter.execution_id == executions_of("bad")[-1].id
    assert letter.reason == "Max retries exceeded (3 failures >= 3 max retries): row 17 is broken"
    assert letter.failure_count == 3

    bench.advance(days=1)
    assert bench.drain() == [], "nothing runs while the letter awaits a decision"


def test_a_failure_says_what_where_and_why(bench):
    bench.schedules.schedule(workflows.fail, "bad", None, Every.minutes(5))
    bench.seed()
    bench.drain()
    execution = executions_of("bad")[0]
    assert execution.state == ExecutionState.FAILED
    assert (execution.failure_type, execution.failure_reason) == ("RuntimeError", "row 17 is broken")
    assert "in fail" in execution.failure_traceback
    assert execution.failure_fingerprint


def test_a_job_that_gives_up_goes_to_the_dead_letter_at_once(bench):
    bench.schedules.schedule(workflows.give_up, "hopeless", None, Every.minutes(5))
    bench.seed()
    bench.drain()
    assert DeadLetter.objects.get().failure_count == 1
    assert not WorkQueue.objects.queued().exists()


def test_a_success_forgets_earlier_failures(bench):
    bench.schedules.schedule(workflows.fail, "moody", None, Every.minutes(5))
    bench.seed()
    bench.drain()
    bench.schedules.clear()
    bench.schedules.schedule(workflows.ping, "moody", None, Every.minutes(5))
    bench.seed()
    WorkQueue.objects.queued().update(workflow="testapp.ping")
    bench.advance(hours=1)
    assert bench.drain() == ["moody"]
    assert manifest("moody").consecutive_failures == 0


def test_stored_input_that_no_longer_fits_is_buried_without_retries(bench):
    bench.schedules.schedule(workflows.copy, "sync", workflows.Slice("users"), Every.minutes(5))
    bench.seed()
    manifest("sync")
    type(manifest("sync")).objects.filter(external_id="sync").update(input={"table": 7, "colour": "red"})
    bench.drain()
    execution = executions_of("sync")[0]
    assert execution.failure_type == "bad_input"
    assert "table" in execution.failure_reason
    assert "colour" in execution.failure_reason
    assert DeadLetter.objects.count() == 1
