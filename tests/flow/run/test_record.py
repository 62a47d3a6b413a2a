"""Recording: what one result costs the others, who may still write, and what the numbers say afterwards."""

from datetime import timedelta

import pytest
from django.db import InterfaceError, OperationalError, connection
from django.test.utils import CaptureQueriesContext

from chainsched.domain import outcomes
from chainsched.domain.outcomes import FailureType, Finished, Outcome
from chainsched.domain.states import ExecutionState, Source
from chainsched.flow.run import record as stage
from chainsched.flow.run.end_rows import closed_rows
from chainsched.flow.run.record import record
from chainsched.models import DeadLetter, Manifest, ManifestState, Metadata, Process, WorkQueue
from tests.factories import NOW, make_dependent, make_execution, make_manifest, make_process, store_input

pytestmark = pytest.mark.django_db

LATER = NOW + timedelta(minutes=1)


@pytest.fixture
def process():
    return make_process()


def running(process, manifest=None, **columns):
    return make_execution(
        manifest or make_manifest(state={}), state=ExecutionState.IN_PROGRESS, process=process, **columns
    )


def success(execution, output=None):
    return Finished(execution.id, outcomes.completed(output))


def failure(execution, error=None):
    return Finished(execution.id, outcomes.raised(error or RuntimeError("broken")))


def test_a_success_closes_the_execution_and_arms_the_manifest(process):
    execution = running(process)
    assert record([success(execution, {"rows": 3})], by=process, now=LATER).ended == [execution.id]
    execution.refresh_from_db()
    state = ManifestState.objects.get()
    assert (execution.state, execution.output, execution.ended_at) == (ExecutionState.COMPLETED, {"rows": 3}, LATER)
    assert (state.last_successful_run, state.last_finished_run) == (LATER, LATER)
    assert (state.succeeded_execution, state.finished_execution) == (execution.id, execution.id)
    assert state.next_run_at == LATER + timedelta(minutes=5)


def test_a_second_record_of_the_same_execution_changes_nothing(process, caplog):
    execution = running(process)
    record([success(execution)], by=process, now=NOW)
    again = record([failure(execution)], by=process, now=LATER)
    assert (again.ended, again.late) == ([], [execution.id])
    execution.refresh_from_db()
    assert execution.state == ExecutionState.COMPLETED
    assert "came too late" in caplog.text


def test_a_process_that_was_declared_lost_writes_nothing(process):
    execution = running(process)
    Process.objects.update(lost_at=NOW)
    assert record([success(execution)], by=process, now=LATER).late == [execution.id]
    execution.refresh_from_db()
    assert execution.state == ExecutionState.IN_PROGRESS


def test_a_process_cannot_finish_what_another_one_runs(process):
    execution = running(make_process())
    assert record([success(execution)], by=process, now=LATER).late == [execution.id]


def test_one_bad_result_among_a_hundred_costs_the_others_nothing(process, caplog):
    executions = [running(process) for _ in range(100)]
    results = [success(execution) for execution in executions]
    # A result that no database takes, as if the checks on outputs had let it pass.
    results[37] = Finished(
        executions[37].id, Outcome(ExecutionState.FAILED, failure_type="x" * 500, failure_reason="a\0b")
    )
    if connection.vendor == "sqlite":
        results[37] = Finished(executions[37].id, Outcome(ExecutionState.COMPLETED, output=object()))
    recorded = record(results, by=process, now=LATER)
    assert len(recorded.ended) == 100
    assert Metadata.objects.filter(state=ExecutionState.COMPLETED).count() == 99
    bad = Metadata.objects.get(id=executions[37].id)
    assert (bad.state, bad.failure_type) == (ExecutionState.FAILED, FailureType.BAD_OUTPUT)
    assert bad.failure_reason.startswith("The result could not be stored")


def test_a_broken_cron_does_not_keep_its_own_result_or_others_from_being_written(process, caplog):
    broken = make_manifest(
        schedule_type="cron", interval_seconds=None, cron_expression="not a cron", state={"next_run_at": None}
    )
    executions = [running(process, broken), running(process)]
    assert len(record([success(execution) for execution in executions], by=process, now=LATER).ended) == 2
    assert ManifestState.objects.get(manifest=broken).next_run_at is None
    assert "its schedule cannot be computed" in caplog.text


def test_a_second_letter_of_one_manifest_is_not_made(process):
    manifest = make_manifest(state={}, max_retries=1)
    DeadLetter.objects.create(manifest=manifest, reason="earlier", dead_lettered_at=NOW)
    execution = running(process, manifest)
    assert record([failure(execution)], by=process, now=LATER).ended == [execution.id]
    assert DeadLetter.objects.count() == 1


def test_a_lost_attempt_is_made_again_at_once_the_first_time_only(process):
    manifest = make_manifest(state={})
    lost = outcomes.failed(FailureType.LOST, "gone")
    record([Finished(running(process, manifest).id, lost)], now=NOW)
    first = WorkQueue.objects.queued().get()
    assert first.not_before == NOW
    WorkQueue.objects.all().delete()
    record([Finished(running(process, manifest).id, lost)], now=NOW)
    second = WorkQueue.objects.queued().get()
    assert second.not_before is not None
    assert second.not_before > NOW + timedelta(minutes=5)


def test_a_lost_attempt_whose_input_cannot_be_read_is_not_made_again(process):
    bad, good = running(process), running(process)
    store_input(bad, "[1" + "0" * 5_000 + "]")
    lost = outcomes.failed(FailureType.LOST, "gone")
    recorded = record([Finished(bad.id, lost), Finished(good.id, lost)], now=NOW)
    assert (sorted(recorded.ended), recorded.retried, recorded.unwritten) == ([bad.id, good.id], [good.id], [])
    bad.refresh_from_db()
    assert (bad.state, bad.failure_type) == (ExecutionState.FAILED, FailureType.BAD_INPUT)
    assert DeadLetter.objects.get().execution_id == bad.id


def test_a_retry_keeps_input_time_parent_and_root(process):
    execution = running(
        process,
        input={"a": 1},
        scheduled_for=NOW - timedelta(hours=1),
        parent_execution_id=11,
        root_execution_id=7,
        causation_id="cause",
        root_correlation_id="root",
    )
    record([failure(execution)], by=process, now=LATER)
    retry = WorkQueue.objects.get()
    assert (retry.source, retry.attempt, retry.input) == (Source.RETRY, 2, {"a": 1})
    assert retry.scheduled_for == NOW - timedelta(hours=1)
    assert (retry.parent_execution_id, retry.root_execution_id) == (11, 7)
    assert (retry.causation_id, retry.root_correlation_id) == ("cause", "root")


def test_a_dependent_that_came_due_during_a_retry_stays_due(process):
    parent = make_manifest(state={})
    child = make_dependent(parent, state={"due_execution": 9, "covered_execution": 5})
    record([failure(running(process, child))], by=process, now=LATER)
    state = ManifestState.objects.get(manifest=child)
    assert (state.due_execution, state.covered_execution) == (9, 5)


def test_zero_retries_still_need_one_failure(process):
    record([failure(running(process, make_manifest(state={}, max_retries=0)))], by=process, now=LATER)
    assert DeadLetter.objects.get().failure_count == 1


def test_a_cancelled_run_is_spent_without_retry_or_letter(process):
    execution = running(process)
    record([Finished(execution.id, Outcome(ExecutionState.CANCELLED))], by=process, now=LATER)
    state = ManifestState.objects.get()
    assert state.next_run_at == LATER + timedelta(minutes=5)
    assert state.last_successful_run is None
    assert not WorkQueue.objects.exists()
    assert not DeadLetter.objects.exists()


def test_a_run_whose_manifest_was_removed_ends_without_retry_or_letter(process):
    manifest = make_manifest(state={})
    execution = running(process, manifest)
    manifest.delete()
    assert record([failure(execution)], by=process, now=LATER).ended == [execution.id]
    assert not WorkQueue.objects.exists()
    assert not DeadLetter.objects.exists()


def test_any_number_of_results_takes_the_same_statements(process):
    def statements(number):
        parents = [make_manifest(state={}) for _ in range(number)]
        for parent in parents:
            make_dependent(parent)
        failing = [running(process, make_manifest(state={}, max_retries=index % 2 + 1)) for index in range(number * 2)]
        results = [success(running(process, parent)) for parent in parents] + [failure(row) for row in failing]
        with CaptureQueriesContext(connection) as captured:
            record(results, by=process, now=LATER)
        return len(captured.captured_queries)

    assert statements(1) < statements(10) == statements(40)
    assert Manifest.objects.filter(state__due_execution__gt=0).count() == 51


def test_the_state_of_a_manifest_is_written_once_with_its_result_and_its_alarm(process):
    executions = [running(process) for _ in range(3)]
    with CaptureQueriesContext(connection) as captured:
        record([success(execution) for execution in executions], by=process, now=LATER)
    written = [query["sql"] for query in captured if query["sql"].startswith('UPDATE "chainsched_manifeststate"')]
    assert len(written) == 1
    assert ManifestState.objects.filter(last_finished_run=LATER, next_run_at__gt=LATER).count() == 3


def test_a_dependent_that_ends_with_its_parent_keeps_its_own_result_and_becomes_due(process):
    parent = make_manifest(state={})
    child = make_dependent(parent)
    runs = [running(process, manifest) for manifest in (parent, child)]
    record([success(run) for run in runs], by=process, now=LATER)
    state = ManifestState.objects.get(manifest=child)
    assert (state.last_successful_run, state.finished_execution) == (LATER, runs[1].id)
    assert (state.due_execution, state.next_run_at) == (runs[0].id, LATER)


def failing(times, error):
    """A write that fails a number of times, as a busy database lets it."""
    calls = []

    def wrap(write):
        def wrapped(*args, **kwargs):
            calls.append(1)
            if len(calls) <= times:
                raise error
            return write(*args, **kwargs)

        return wrapped

    return wrap


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("error", [OperationalError("deadlock detected"), InterfaceError("connection is closed")])
def test_trouble_with_the_database_says_nothing_about_the_result(process, monkeypatch, error):
    execution = running(process)
    monkeypatch.setattr(stage, "_record_once", failing(2, error)(stage._record_once))
    assert record([success(execution)], by=process, now=LATER).ended == [execution.id]
    execution.refresh_from_db()
    assert execution.state == ExecutionState.COMPLETED


@pytest.mark.django_db(transaction=True)
def test_lasting_trouble_is_raised_so_that_the_result_is_kept(process, monkeypatch):
    execution = running(process)
    monkeypatch.setattr(stage, "_record_once", failing(99, OperationalError("no connection"))(stage._record_once))
    with pytest.raises(OperationalError):
        record([success(execution)], by=process, now=LATER)
    execution.refresh_from_db()
    assert execution.state == ExecutionState.IN_PROGRESS


def test_a_result_that_cannot_be_closed_is_named(process, monkeypatch, caplog):
    execution, other = running(process), running(process)

    def broken(verdicts, **rest):
        if execution.id in {verdict.execution.id for verdict in verdicts}:
            raise KeyError("broken")
        return closed_rows(verdicts, **rest)

    monkeypatch.setattr(stage, "closed_rows", broken)
    recorded = record([success(execution), success(other)], by=process, now=LATER)
    assert (recorded.ended, recorded.unwritten) == ([other.id], [execution.id])


def test_a_manifest_whose_state_is_gone_costs_the_others_nothing(process):
    broken, good = running(process), running(process)
    ManifestState.objects.filter(manifest=broken.manifest_id).delete()
    assert len(record([success(broken), failure(good)], by=process, now=LATER).ended) == 2


@pytest.mark.parametrize("source", [Source.TRIGGER, Source.DEAD_LETTER])
def test_a_retry_of_what_a_person_asked_for_stays_theirs(process, source):
    record([failure(running(process, source=source))], by=process, now=LATER)
    assert WorkQueue.objects.get().source == source
