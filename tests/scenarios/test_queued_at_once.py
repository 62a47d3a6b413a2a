"""The worker that records an outcome queues the dependents whose states are free, as the manager would."""

import pytest

from chainsched import Every
from chainsched.domain.outcomes import Finished
from chainsched.domain.states import ExecutionState
from chainsched.flow.maintain.fsck import run_fsck
from chainsched.flow.run.dispatch import dispatch
from chainsched.flow.run.record import record
from chainsched.models import DueNote, Manifest, ManifestGroup, Metadata, WorkQueue
from chainsched.models.manifest_state import ManifestStateQuerySet
from chainsched.registry import registry
from tests.drive import manifest, new_bench
from tests.scenarios.graphs import CANCELLED, DONE, FAILED, GIVEN_UP, GROUP
from tests.scenarios.test_refused_rows import REFUSALS
from tests.testapp.workflows import ping

pytestmark = pytest.mark.django_db


@pytest.fixture
def bench():
    with new_bench() as bench:
        Manifest.objects.schedule(ping, "parent", None, Every.hours(1), **GROUP)
        for name in ("first", "second"):
            Manifest.objects.schedule_dependent(ping, name, None, depends_on="parent", **GROUP)
        bench.manage()
        yield bench


def end_parent(bench, outcome=DONE):
    """Let a worker take the parent and record how it ended."""
    (item,) = dispatch(workflows=registry.names(), now=bench.now, taker=bench.process).claims
    recorded = record([Finished(item.execution_id, outcome)], by=bench.process, now=bench.now, opens=True)
    assert recorded.ended == [item.execution_id]
    return item.execution_id


def queued():
    return set(WorkQueue.objects.queued().values_list("manifest_external_id", flat=True))


def test_dependents_can_be_taken_without_a_turn_of_the_manager(bench):
    parent = end_parent(bench)
    claims = dispatch(workflows=registry.names(), now=bench.now, taker=bench.process).claims
    assert {item.external_id for item in claims} == {"first", "second"}
    rows = Metadata.objects.exclude(id=parent).values_list("parent_execution_id", "root_execution_id", "source")
    assert set(rows) == {(parent, parent, "dependency")}
    ended = [Finished(item.execution_id, DONE) for item in claims]
    assert len(record(ended, by=bench.process, now=bench.now, opens=True).ended) == 2
    bench.manage()
    assert not queued()
    assert not run_fsck(now=bench.now)


def test_one_that_may_not_run_stays_due(bench):
    manifest("first").disable()
    end_parent(bench)
    assert queued() == {"second"}
    manifest("first").enable()
    bench.manage()
    assert queued() == {"first", "second"}
    assert not run_fsck(now=bench.now)


def test_none_is_queued_in_a_disabled_group(bench):
    (item,) = dispatch(workflows=registry.names(), now=bench.now, taker=bench.process).claims
    ManifestGroup.objects.get(name="g").disable()
    record([Finished(item.execution_id, DONE)], by=bench.process, now=bench.now, opens=True)
    assert not queued()


@pytest.mark.parametrize("outcome", [FAILED, GIVEN_UP, CANCELLED])
def test_an_outcome_that_does_not_match_queues_nobody(bench, outcome):
    end_parent(bench, outcome)
    assert not queued() & {"first", "second"}


def test_a_waiting_row_takes_the_newer_outcome_over(bench):
    end_parent(bench)
    WorkQueue.objects.queued().update(put_aside_at=bench.now)
    manifest("parent").trigger()
    newer = end_parent(bench)
    rows = WorkQueue.objects.queued().values_list("parent_execution_id", flat=True)
    assert list(rows) == [newer, newer]


def test_one_whose_state_is_held_gets_a_note(bench, monkeypatch):
    held = manifest("first").id
    lock_free = ManifestStateQuerySet.lock_free
    monkeypatch.setattr(
        ManifestStateQuerySet, "lock_free", lambda states, ids: lock_free(states, [id_ for id_ in ids if id_ != held])
    )
    end_parent(bench)
    assert queued() == {"second"}
    assert DueNote.objects.get().child_id == held


def test_what_a_trigger_with_an_input_asks_for_comes_after_the_outcome(bench):
    manifest("first").trigger(delay=60, input=None)
    end_parent(bench)
    assert queued() == {"first", "second"}
    assert manifest("first").state.trigger_at is not None


def test_one_that_the_database_refuses_is_no_fault_of_what_ended(bench):
    Manifest.objects.schedule_dependent(ping, "bad", None, depends_on="parent", **GROUP)
    REFUSALS[0].begin("chainsched_workqueue")
    parent = end_parent(bench)
    assert Metadata.objects.get(id=parent).state == ExecutionState.COMPLETED
    assert not queued(), "all are due, and the manager finds the one that is refused"
    bench.manage()
    assert queued() == {"first", "second"}
    assert manifest("bad").explain().code == "put_aside"
