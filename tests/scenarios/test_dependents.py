"""Dependents: what makes them run, once, for which execution of their parent."""

import pytest

from chainsched import Every, RunCondition
from chainsched.domain.states import ExecutionState, QueueStatus
from chainsched.models import DeadLetter, Manifest, Metadata, WorkQueue
from chainsched.testing import Workbench
from tests.drive import executions_of, manifest
from tests.testapp import workflows

pytestmark = pytest.mark.django_db


@pytest.fixture
def pair(bench):
    """A parent that runs every five minutes and a dependent."""
    bench.schedules.schedule(workflows.ping, "parent", None, Every.minutes(5)).then_include(workflows.ping, "child")
    bench.seed()
    return bench


def run_parent(bench: Workbench) -> Metadata:
    """Run the parent alone, so that the dependent is due but not yet looked at."""
    bench.advance(minutes=5)
    bench.manage()
    bench.dispatch()
    bench.work()
    return executions_of("parent")[-1]


def test_a_chain_runs_in_order_and_each_execution_names_its_parent_and_root(bench):
    (
        bench.schedules.schedule(workflows.ping, "a", None, Every.hours(1))
        .then_include(workflows.ping, "b")
        .then_include(workflows.ping, "c")
    )
    bench.seed()
    assert bench.drain() == ["a", "b", "c"]
    a, b, c = (executions_of(name)[0] for name in "abc")
    assert (a.parent_execution_id, a.root_execution_id) == (None, None)
    assert (b.parent_execution_id, b.root_execution_id) == (a.id, a.id)
    assert (c.parent_execution_id, c.root_execution_id) == (b.id, a.id)
    assert a.root_correlation_id == b.root_correlation_id == c.root_correlation_id == str(a.external_id)
    assert (b.causation_id, c.causation_id) == (str(a.external_id), str(b.external_id))


def test_branches_of_a_root_all_run(bench):
    chain = bench.schedules.schedule(workflows.ping, "root", None, Every.hours(1))
    chain = chain.include(workflows.ping, "left").then_include(workflows.ping, "left-end")
    chain.include(workflows.ping, "right")
    bench.seed()
    assert sorted(bench.drain()) == ["left", "left-end", "right", "root"]


def test_a_dependent_that_ran_for_a_success_does_not_run_for_it_again(pair):
    pair.drain()
    assert pair.drain() == []
    assert len(executions_of("child")) == 1


def test_a_dependent_waits_for_the_first_success_of_its_parent(bench):
    bench.schedules.schedule(workflows.fail, "parent", None, Every.minutes(5)).then_include(workflows.ping, "child")
    bench.seed()
    assert bench.drain() == ["parent"]
    assert executions_of("child") == []


def test_a_waiting_row_is_moved_to_the_newest_success_and_makes_one_run(pair):
    run_parent(pair)
    pair.manage()
    assert WorkQueue.objects.filter(status=QueueStatus.QUEUED, manifest_external_id="child").exists()
    Manifest.objects.filter(external_id="child").update(is_enabled=False)
    newest = run_parent(pair)
    Manifest.objects.filter(external_id="child").update(is_enabled=True)
    pair.drain()
    (child,) = executions_of("child")
    assert child.parent_execution_id == newest.id


def test_successes_while_a_dependent_runs_make_one_more_run_for_the_newest(pair):
    first = run_parent(pair)
    pair.manage()
    pair.dispatch()
    running = executions_of("child")[0]
    type(running).objects.filter(id=running.id).update(state=ExecutionState.IN_PROGRESS, process=pair.process)
    run_parent(pair)
    newest = run_parent(pair)
    type(running).objects.filter(id=running.id).update(state=ExecutionState.PENDING, process=None)
    pair.drain()
    assert [child.parent_execution_id for child in executions_of("child")] == [first.id, newest.id]


def test_a_disabled_parent_stops_its_dependents(pair):
    run_parent(pair)
    Manifest.objects.filter(external_id="parent").update(is_enabled=False)
    assert pair.drain() == []
    assert manifest("child").next_run_at is None


def test_a_removed_parent_leaves_its_dependents_idle(pair):
    run_parent(pair)
    manifest("parent").delete()
    assert pair.drain() == []
    assert manifest("child").depends_on is None


def test_a_dead_letter_in_the_middle_keeps_the_rest_idle(bench):
    (
        bench.schedules.schedule(workflows.ping, "a", None, Every.hours(1))
        .then_include(workflows.fail, "b", max_retries=1)
        .then_include(workflows.ping, "c")
    )
    bench.seed()
    assert bench.drain() == ["a", "b"]
    assert DeadLetter.objects.get().manifest == manifest("b")


@pytest.mark.parametrize(
    ("condition", "workflow", "fires"),
    [
        (RunCondition.SUCCESS, workflows.ping, True),
        (RunCondition.SUCCESS, workflows.fail, False),
        (RunCondition.FAILURE, workflows.ping, False),
        (RunCondition.FAILURE, workflows.fail, True),
        (RunCondition.COMPLETION, workflows.ping, True),
        (RunCondition.COMPLETION, workflows.fail, True),
    ],
)
def test_a_dependent_runs_for_the_outcomes_it_asks_for(bench, condition, workflow, fires):
    chain = bench.schedules.schedule(workflow, "parent", None, Every.hours(1), max_retries=1)
    chain.then_include(workflows.ping, "child", run_condition=condition)
    bench.seed()
    assert ("child" in bench.drain()) is fires


def test_an_attempt_with_retries_left_is_no_outcome(bench):
    chain = bench.schedules.schedule(workflows.fail, "parent", None, Every.hours(1), max_retries=2, retry_delay=10)
    chain.then_include(workflows.ping, "child", run_condition=RunCondition.COMPLETION)
    bench.seed()
    assert bench.drain() == ["parent"]
    bench.advance(seconds=12)
    assert bench.drain() == ["parent", "child"]


def test_a_dependent_that_is_declared_after_its_parent_succeeded_is_queued(bench):
    bench.schedules.schedule(workflows.ping, "parent", None, Every.hours(1))
    bench.seed()
    bench.drain()
    bench.schedules.clear()
    bench.schedules.schedule(workflows.ping, "parent", None, Every.hours(1)).then_include(workflows.ping, "late")
    bench.seed()
    assert bench.drain() == ["late"]
    assert executions_of("late")[0].parent_execution_id == executions_of("parent")[0].id


def test_only_the_dependent_of_the_item_that_ran_runs(bench):
    from chainsched import ManifestItem  # noqa: PLC0415

    bench.schedules.schedule_many(
        workflows.ping, "extract", [ManifestItem(str(n)) for n in range(50)], Every.hours(1), enabled=False
    ).include_many(workflows.ping, "load", [ManifestItem(str(n), depends_on=f"extract-{n}") for n in range(50)])
    bench.seed()
    Manifest.objects.filter(external_id="extract-42").update(is_enabled=True)
    from chainsched.flow.run.alarm import arm  # noqa: PLC0415

    arm([manifest("extract-42").id], now=bench.now)
    assert bench.drain() == ["extract-42", "load-42"]


def test_a_dependent_is_dispatched_before_work_that_nobody_waits_for(pair):
    run_parent(pair)
    pair.manage()
    row = WorkQueue.objects.queued().get(manifest_external_id="child")
    assert row.priority == 16


@pytest.mark.parametrize(("own", "expected"), [(None, 16), (5, 21), (20, 31)])
def test_the_boost_is_added_to_the_priority_and_clamped(bench, own, expected):
    chain = bench.schedules.schedule(workflows.ping, "parent", None, Every.hours(1))
    chain.then_include(workflows.ping, "child", priority=own)
    bench.seed()
    bench.turn()
    bench.manage()
    assert WorkQueue.objects.queued().get().priority == expected


def test_a_boost_of_zero_turns_it_off(bench, settings):
    settings.CHAINSCHED = {"DEPENDENT_PRIORITY_BOOST": 0}
    bench.schedules.schedule(workflows.ping, "parent", None, Every.hours(1)).then_include(workflows.ping, "child")
    bench.seed()
    bench.turn()
    bench.manage()
    assert WorkQueue.objects.queued().get().priority == 0


def test_another_condition_does_not_make_it_run_again_for_what_it_ran_for(bench):
    def declare(condition):
        bench.schedules.clear()
        chain = bench.schedules.schedule(workflows.ping, "parent", None, Every.hours(1))
        chain.then_include(workflows.ping, "child", run_condition=condition)
        bench.seed()

    declare(RunCondition.SUCCESS)
    assert bench.drain() == ["parent", "child"]
    declare(RunCondition.COMPLETION)
    assert bench.drain() == []
    bench.advance(hours=1)
    assert bench.drain() == ["parent", "child"]
