"""What one job does to the process that runs it is not felt by those that come after it."""

import pytest
from django.contrib.auth.models import Group

from chainsched.domain.states import ExecutionState
from chainsched.models import Manifest, Metadata
from tests.processes import ticks
from tests.processes.command import stop
from tests.testapp import misdeeds
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

# The timeout of what takes a moment, and would never end if the job before it were felt.
SOON = 40
# So long that between an interruption and the kill, half a grace later, also a slow process hears of the first.
LONG_GRACE = 12


def run(launch, *jobs, threads=1):
    """Run jobs one after the other in one child; returns how the last attempt of each ended."""
    process = launch("run_scheduler", "--processes", "1", "--threads", str(threads), settings={"KILL_GRACE": 1})
    for number, (workflow, value, timeout) in enumerate(jobs):
        name = f"{number}-{workflow.__name__}"
        Manifest.objects.schedule(workflow, name, value, None, max_retries=1, timeout=timeout).trigger()
        wait_until(_ended(name).exists)
    code, output = stop(process)
    assert code == 0, output
    return list(Metadata.objects.order_by("manifest_external_id")), output


def test_progress_that_cannot_be_stored_holds_nothing_up(launch):
    (first,), output = run(launch, (misdeeds.boast, None, None))
    assert (first.state, first.output) == (ExecutionState.COMPLETED, "boasted")
    assert first.progress == {"done": None, "total": None, "message": "a\ufffdb\ufffd"}
    assert "failed" not in output


def test_what_is_redacted_inside_of_json_can_be_stored(launch):
    (first,), output = run(launch, (misdeeds.boast_in_json, None, None))
    assert first.state == ExecutionState.COMPLETED, first.failure_reason
    assert first.output == first.progress["message"] == '{"password": "[redacted]", "a": "\\ud800"}'
    assert "failed" not in output


def test_an_async_job_that_leaves_takes_no_event_loop_along(launch):
    (first, second), _ = run(launch, (misdeeds.leave_async, None, None), (misdeeds.tell_loop, None, SOON))
    assert first.failure_type == "SystemExit"
    assert second.state == ExecutionState.COMPLETED


def test_an_async_job_that_blocks_is_ended_and_holds_up_no_other(launch):
    (first, second), _ = run(launch, (misdeeds.block_the_loop, None, 1), (misdeeds.tell_loop, None, SOON))
    assert first.failure_type == "timeout"
    assert second.state == ExecutionState.COMPLETED


def test_a_copy_of_the_process_speaks_for_no_job(launch):
    (first,), _ = run(launch, (misdeeds.part_ways, None, None))
    assert (first.state, first.output) == (ExecutionState.COMPLETED, "whole"), first.failure_reason


def test_a_transaction_that_was_left_open_swallows_nothing_of_others(launch):
    (first, second), _ = run(launch, (misdeeds.leave_a_transaction_open, None, None), (misdeeds.write_down, "x", None))
    assert first.state == ExecutionState.FAILED
    assert "transaction" in first.failure_reason
    assert second.state == ExecutionState.COMPLETED
    assert Group.objects.filter(name="x").exists()


@pytest.mark.parametrize(
    "misdeed", [misdeeds.write_without_commit, misdeeds.write_without_commit_async, misdeeds.begin_by_hand]
)
def test_what_was_written_and_not_committed_is_no_success(launch, misdeed):
    (first, second), _ = run(launch, (misdeed, "x", None), (misdeeds.write_down, "y", None))
    assert first.failure_type == "open_transaction"
    assert second.state == ExecutionState.COMPLETED
    assert list(Group.objects.values_list("name", flat=True)) == ["y"]


def test_a_job_that_commits_by_itself_is_a_success(launch):
    (first, second), _ = run(launch, (misdeeds.commit_by_hand, "x", None), (misdeeds.write_down, "y", None))
    assert (first.state, first.output) == (ExecutionState.COMPLETED, 1), first.failure_reason
    assert second.state == ExecutionState.COMPLETED
    assert Group.objects.count() == 2


def test_the_alarms_and_handlers_of_a_job_end_with_it(launch):
    Manifest.objects.schedule(misdeeds.set_an_alarm, "first", None, None, group="one by one").trigger()
    Manifest.objects.schedule(misdeeds.stay, "second", 2, None, group="one by one", max_retries=1).trigger()
    Manifest.objects.schedule(misdeeds.oversleep, "third", None, None, max_retries=1, timeout=1).trigger()
    process = launch("run_scheduler", "--processes", "1", settings={"KILL_GRACE": LONG_GRACE})
    wait_until(lambda: Metadata.objects.filter(ended_at__isnull=False).count() == 3)
    assert stop(process)[0] == 0
    assert _ended("second").get().output == "stayed"
    assert _ended("third").get().failure_reason == "It ran longer than its timeout of 1 s."


def test_asynchronous_queries_get_over_a_lost_connection(launch):
    (_, second), _ = run(launch, (misdeeds.break_connection_async, None, None), (misdeeds.count_async, None, None))
    assert second.state == ExecutionState.COMPLETED, second.failure_reason


def test_a_job_that_closes_everything_beside_others_fails_at_once(launch):
    (first, second), _ = run(
        launch, (misdeeds.close_everything, None, None), (misdeeds.tell_pid, None, SOON), threads=2
    )
    assert first.failure_type == "killed"
    assert second.state == ExecutionState.COMPLETED


def test_an_async_job_in_a_thread_is_interrupted_and_its_neighbour_goes_on(launch, witness):
    Manifest.objects.schedule(misdeeds.tick, "beside", None, None, max_retries=1).trigger()
    Manifest.objects.schedule(misdeeds.oversleep_async, "overdue", None, None, max_retries=1, timeout=1).trigger()
    process = launch("run_scheduler", "--processes", "1", "--threads", "2", settings={"KILL_GRACE": 4})
    wait_until(_ended("overdue").exists)
    assert not _ended("beside").exists()
    ticks.end(witness, "beside")
    wait_until(_ended("beside").exists)
    assert stop(process)[0] == 0
    assert _ended("overdue").get().failure_reason == "It ran longer than its timeout of 1 s."
    assert _ended("beside").get().state == ExecutionState.COMPLETED


def _ended(name):
    return Metadata.objects.filter(manifest_external_id=name, ended_at__isnull=False)
