"""Execution trees: found in one query, cancelled as a whole, and nothing comes of a cancelled one."""

import pytest

from chainsched import Every, RunCondition
from chainsched.domain import outcomes
from chainsched.domain.outcomes import Finished
from chainsched.domain.results import Cancelled
from chainsched.domain.states import ExecutionState, QueueStatus, Source
from chainsched.exceptions import InvalidInput
from chainsched.flow.maintain.fsck import run_fsck
from chainsched.flow.operate.cancel_tree import LATE_FOR_TREE
from chainsched.flow.run.claim import claim
from chainsched.flow.run.dispatch import dispatch
from chainsched.flow.run.record import record
from chainsched.models import CancelledTree, DeadLetter, Manifest, Metadata, WorkQueue
from chainsched.registry import registry
from tests.drive import executions_of, manifest
from tests.factories import make_execution, make_queue_row
from tests.testapp import workflows

pytestmark = pytest.mark.django_db

GROUP = {"group": "g"}


@pytest.fixture
def family(bench):
    """A root with a chain of two below it, and one that runs whatever becomes of the root."""
    root = bench.schedules.schedule(workflows.ping, "root", None, Every.hours(1), **GROUP)
    root.include(workflows.ping, "always", run_condition=RunCondition.COMPLETION, **GROUP)
    root.then_include(workflows.ping, "middle", **GROUP).then_include(workflows.ping, "leaf", **GROUP)
    bench.seed()
    return bench


def start(bench):
    """Let everything that may start be claimed."""
    bench.manage()
    dispatch(workflows=registry.names(), now=bench.now)
    claim(process=bench.process, workflows=registry.names(), limit=100, now=bench.now)


def end(bench, name, outcome=None):
    execution = Metadata.objects.in_progress().get(manifest_external_id=name)
    record([Finished(execution.id, outcome or outcomes.completed(None))], by=bench.process, now=bench.now)
    return execution


def ran(bench, name):
    start(bench)
    return end(bench, name)


class TestTheTree:
    def test_it_is_the_root_and_all_it_led_to_in_one_query(self, family, django_assert_num_queries):
        family.drain()
        family.run_for(hours=1)
        first = executions_of("root")[0]
        leaf = executions_of("leaf")[0]
        with django_assert_num_queries(1):
            names = [row.manifest_external_id for row in leaf.tree()]
        assert sorted(names) == ["always", "leaf", "middle", "root"]
        assert names[0] == "root"
        assert list(first.tree()) == list(leaf.tree())

    def test_of_an_execution_that_led_to_nothing_it_is_that_execution(self, bench):
        alone = make_execution(state=ExecutionState.COMPLETED)
        make_execution(state=ExecutionState.COMPLETED)
        assert list(alone.tree()) == [alone]

    def test_a_retry_of_a_member_belongs_to_the_tree(self, bench):
        bench.schedules.schedule(workflows.ping, "root", None, Every.hours(1), **GROUP).include(
            workflows.fail, "child", **GROUP
        )
        bench.seed()
        bench.run_for(minutes=30)
        root = executions_of("root")[0]
        attempts = executions_of("child")
        assert len(attempts) == 3
        assert {(row.parent_execution_id, row.root_execution_id) for row in attempts} == {(root.id, root.id)}
        assert list(root.tree()) == [root, *attempts]


class TestCancellingOneExecution:
    def test_a_pending_one_ends_without_running(self, family):
        family.manage()
        family.dispatch()
        execution = executions_of("root")[0]
        assert execution.cancel() == Cancelled(pending=1)
        execution.refresh_from_db()
        assert execution.state == ExecutionState.CANCELLED
        assert family.work().ended == []

    def test_a_running_one_is_told_once_and_why(self, family):
        start(family)
        execution = executions_of("root")[0]
        assert execution.cancel(reason="wrong source") == Cancelled(running=1)
        assert execution.cancel(reason="again") == Cancelled()
        execution.refresh_from_db()
        assert (execution.cancel_requested, execution.cancel_reason) == (True, "wrong source")

    @pytest.mark.parametrize("tree", [True, False])
    @pytest.mark.parametrize("reason", ["x" * 201, "a\x00b"])
    def test_a_reason_that_cannot_be_kept_is_refused_before_anything_is_stopped(self, family, tree, reason):
        start(family)
        with pytest.raises(InvalidInput, match="200 characters"):
            executions_of("root")[0].cancel(tree=tree, reason=reason)
        assert not executions_of("root")[0].cancel_requested

    def test_one_that_has_ended_stays_as_it_is(self, family):
        family.drain()
        assert executions_of("root")[0].cancel() == Cancelled()
        assert executions_of("root")[0].state == ExecutionState.COMPLETED

    def test_triggers_and_other_runs_of_the_manifest_stay(self, family):
        start(family)
        manifest("root").trigger()
        executions_of("root")[0].cancel()
        end(family, "root", outcomes.raised(RuntimeError("told to stop")))
        assert "root" in family.drain()

    def test_one_without_a_manifest_can_be_cancelled(self, bench):
        execution = make_execution(None)
        assert execution.cancel() == Cancelled(pending=1)

    def test_it_fires_completion_dependents_when_only_it_is_cancelled(self, family):
        family.manage()
        family.dispatch()
        executions_of("root")[0].cancel()
        assert family.drain() == ["always"]


class TestCancellingATree:
    def test_what_waits_never_runs_and_what_runs_is_told(self, family):
        ran(family, "root")
        start(family)
        end(family, "always")
        cancelled = executions_of("middle")[0].cancel(tree=True, reason="wrong source")
        assert cancelled == Cancelled(running=1)
        end(family, "middle")
        assert family.drain() == []
        assert executions_of("middle")[0].state == ExecutionState.COMPLETED
        assert executions_of("leaf") == []
        assert CancelledTree.objects.get().reason == "wrong source"

    def test_queued_rows_are_cancelled_with_the_reason(self, family):
        ran(family, "root")
        family.manage()
        assert sorted(family.queued()) == ["always", "middle"]
        assert executions_of("root")[0].cancel(tree=True, reason="why not") == Cancelled(queued=2)
        rows = WorkQueue.objects.filter(status=QueueStatus.CANCELLED)
        assert {row.cancel_reason for row in rows} == {"why not"}
        assert family.drain() == []

    def test_pending_ones_end_and_fire_nothing_not_even_completion(self, bench):
        root = bench.schedules.schedule(workflows.ping, "root", None, Every.hours(1), **GROUP)
        root.then_include(workflows.ping, "child", **GROUP).then_include(
            workflows.ping, "always", run_condition=RunCondition.COMPLETION, **GROUP
        )
        bench.seed()
        ran(bench, "root")
        bench.manage()
        bench.dispatch()
        assert executions_of("root")[0].cancel(tree=True) == Cancelled(pending=1)
        assert executions_of("child")[0].state == ExecutionState.CANCELLED
        assert bench.drain() == []

    def test_what_was_due_and_not_yet_queued_is_spent(self, family):
        ran(family, "root")
        root = executions_of("root")[0]
        root.cancel(tree=True)
        assert family.drain() == []
        for name in ("middle", "always"):
            state = manifest(name).state
            assert state.due_execution == state.covered_execution == root.id
            assert state.next_run_at is None

    def test_a_member_that_fails_afterwards_is_not_retried(self, family):
        ran(family, "root")
        start(family)
        executions_of("root")[0].cancel(tree=True)
        end(family, "middle", outcomes.raised(RuntimeError("broken")))
        assert executions_of("middle")[0].state == ExecutionState.CANCELLED
        assert not WorkQueue.objects.queued().exists()

    def test_a_retry_that_waits_is_cancelled(self, family):
        ran(family, "root")
        start(family)
        end(family, "middle", outcomes.raised(RuntimeError("broken")))
        assert family.queued() == ["middle"]
        executions_of("root")[0].cancel(tree=True)
        assert family.run_for(minutes=59) == []

    def test_the_next_tree_of_the_same_manifests_runs_whole(self, family):
        ran(family, "root")
        executions_of("root")[0].cancel(tree=True)
        ran_later = family.run_for(hours=1)
        assert sorted(ran_later) == ["always", "leaf", "middle", "root"]

    def test_a_dependent_that_is_due_for_another_tree_keeps_that(self, family):
        ran(family, "root")
        first = executions_of("root")[0]
        manifest("middle").disable()
        manifest("root").trigger()
        ran(family, "root")
        first.cancel(tree=True)
        manifest("middle").enable()
        assert "middle" in family.drain()
        assert executions_of("middle")[-1].root_execution_id == executions_of("root")[1].id

    def test_doing_it_twice_does_no_harm(self, family):
        ran(family, "root")
        root = executions_of("root")[0]
        assert root.cancel(tree=True, reason="first") == Cancelled()
        assert root.cancel(tree=True, reason="second") == Cancelled()
        assert CancelledTree.objects.get().reason == "first"

    def test_the_alarm_of_everything_touched_is_right(self, family):
        ran(family, "root")
        start(family)
        executions_of("root")[0].cancel(tree=True)
        end(family, "middle")
        end(family, "always")
        assert run_fsck(now=family.now) == []

    def test_a_row_that_was_opened_without_seeing_the_stamp_meets_it_at_dispatch(self, family):
        root = ran(family, "root")
        CancelledTree.objects.mark(root.id, reason="just now", now=family.now)
        row = make_queue_row(manifest("leaf"), source=Source.DEPENDENCY, parent_execution=root, root_execution=root)
        assert family.dispatch() == 0
        row.refresh_from_db()
        assert (row.status, row.cancel_reason) == (QueueStatus.CANCELLED, LATE_FOR_TREE)

    def test_so_does_one_without_a_manifest(self, bench):
        root = make_execution(None, state=ExecutionState.COMPLETED)
        CancelledTree.objects.mark(root.id, reason="just now", now=bench.now)
        row = make_queue_row(None, source=Source.TASK, parent_execution=root, root_execution=root)
        assert bench.dispatch() == 0
        row.refresh_from_db()
        assert row.status == QueueStatus.CANCELLED

    def test_a_due_dependent_is_not_queued_for_a_stamped_tree(self, family):
        root = ran(family, "root")
        CancelledTree.objects.mark(root.id, reason="just now", now=family.now)
        assert family.drain() == []
        assert run_fsck(now=family.now) == []

    def test_rows_of_other_trees_are_dispatched_all_the_same(self, family):
        root = ran(family, "root")
        CancelledTree.objects.mark(root.id, reason="just now", now=family.now)
        make_queue_row(manifest("leaf"), source=Source.DEPENDENCY, parent_execution=root, root_execution=root)
        make_queue_row(manifest("middle"), source=Source.TRIGGER)
        assert family.dispatch() == 1

    def test_a_run_that_was_told_to_stop_activates_nothing(self, bench):
        chain = bench.schedules.schedule(workflows.ping, "root", None, Every.hours(1), **GROUP)
        chain.then_include(workflows.activate_copy, "waker", **GROUP).then_include(
            workflows.copy, "child", workflows.Slice("declared"), dormant=True, **GROUP
        )
        bench.seed()
        root = ran(bench, "root")
        bench.manage()
        bench.dispatch()
        CancelledTree.objects.mark(root.id, reason="just now", now=bench.now)
        bench.work()
        assert executions_of("waker")[0].output is False
        assert bench.queued() == []

    def test_a_letter_of_a_cancelled_tree_can_only_be_acknowledged(self, bench):
        bench.schedules.schedule(workflows.ping, "root", None, Every.hours(1), **GROUP).include(
            workflows.give_up, "child", **GROUP
        )
        bench.seed()
        bench.drain()
        executions_of("root")[0].cancel(tree=True)
        letter = DeadLetter.objects.get()
        refused = letter.retry()
        assert refused.done == ()
        assert "tree was cancelled" in refused.skipped[letter.id]
        assert letter.acknowledge().done == (letter.id,)

    def test_a_continuation_waits_no_longer_for_a_cancelled_part(self, bench):
        chain = bench.schedules.schedule(workflows.ping, "root", None, Every.hours(1), **GROUP)
        for name in "ab":
            chain = chain.include(workflows.ping, name, **GROUP)
        chain.include(workflows.ping, "join", fan_in=True, **GROUP)
        bench.seed()
        ran(bench, "root")
        start(bench)
        executions_of("root")[0].cancel(tree=True)
        end(bench, "a")
        end(bench, "b")
        assert bench.drain() == []
        assert sorted(bench.run_for(hours=1)) == ["a", "b", "join", "root"]
        assert run_fsck(now=bench.now) == []

    def test_a_one_time_child_of_a_cancelled_tree_is_done(self, family):
        Manifest.objects.schedule_child(workflows.ping, "once", None, parent="root")
        ran(family, "root")
        executions_of("root")[0].cancel(tree=True)
        assert manifest("once").done_at == family.now
        assert "once" not in family.run_for(hours=2)
