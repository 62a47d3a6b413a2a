"""Execution trees and runs: found in one query, cancelled as a whole, and nothing comes of a cancelled one."""

import pytest
from django.db.models import F

from chainsched import Every, RunCondition
from chainsched.domain import outcomes
from chainsched.domain.outcomes import Finished
from chainsched.domain.results import Cancelled
from chainsched.domain.states import ExecutionState, QueueStatus, Source
from chainsched.exceptions import InvalidInput
from chainsched.flow.maintain.fsck import run_fsck
from chainsched.flow.run.claim import claim
from chainsched.flow.run.fold_notes import settle
from chainsched.flow.run.record import record
from chainsched.models import DeadLetter, GraphRun, JoinState, Manifest, Metadata, WorkQueue
from chainsched.models.near import RUN_END
from chainsched.registry import registry
from tests.drive import executions_of, manifest
from tests.factories import make_execution, make_queue_row
from tests.testapp import workflows

pytestmark = [pytest.mark.django_db, pytest.mark.slow_on_postgres]

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
    bench.dispatch()
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


def stamp(execution, *, now, reason="just now"):
    """Mark the run of an execution alone, as a cancel does before it looks for work to stop."""
    GraphRun.objects.mark_cancelled(execution.run_id, reason=reason, now=now)


def item_in_run_of(root):
    """The columns of an item below this execution that leads to the end of its run, and is counted there."""
    ends = JoinState.objects.filter(run=root.run_id, join_id=RUN_END)
    ends.update(open=F("open") + 1)
    item = {"run_id": root.run_id, "tokens": [ends.get().id], "has_tokens": True}
    return {"parent_execution": root, "root_execution": root, **item}


class TestCancellingTheRunOfAHead:
    def test_what_waits_never_runs_and_what_runs_is_told(self, family):
        ran(family, "root")
        start(family)
        end(family, "always")
        cancelled = executions_of("root")[0].cancel(tree=True, reason="wrong source")
        assert cancelled == Cancelled(running=1)
        end(family, "middle")
        assert family.drain() == []
        assert executions_of("middle")[0].state == ExecutionState.COMPLETED
        assert executions_of("leaf") == []
        run = GraphRun.objects.get()
        assert (run.cancelled_at, run.cancel_reason) == (family.now, "wrong source")
        assert run.closed_at == family.now

    def test_the_run_itself_can_be_cancelled(self, family):
        ran(family, "root")
        family.manage()
        run = GraphRun.objects.get()
        assert run.cancel(reason="wrong source") == Cancelled(queued=2)
        run.refresh_from_db()
        assert (run.cancelled_at, run.cancel_reason) == (family.now, "wrong source")
        assert family.drain() == []
        assert run_fsck(now=family.now) == []

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

    def test_the_next_run_of_the_same_manifests_runs_whole(self, family):
        ran(family, "root")
        executions_of("root")[0].cancel(tree=True)
        ran_later = family.run_for(hours=1)
        assert sorted(ran_later) == ["always", "leaf", "middle", "root"]

    def test_an_item_that_stands_for_another_run_too_keeps_that(self, family):
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
        assert GraphRun.objects.get().cancel_reason == "first"

    def test_the_alarm_of_everything_touched_is_right(self, family):
        ran(family, "root")
        start(family)
        executions_of("root")[0].cancel(tree=True)
        end(family, "middle")
        end(family, "always")
        assert run_fsck(now=family.now) == []

    def test_a_row_that_was_opened_without_seeing_the_mark_meets_it_at_dispatch(self, family):
        root = ran(family, "root")
        stamp(root, now=family.now)
        row = make_queue_row(manifest("leaf"), source=Source.DEPENDENCY, **item_in_run_of(root))
        assert family.dispatch() == 0
        row.refresh_from_db()
        assert (row.status, row.cancel_reason) == (QueueStatus.CANCELLED, "just now")
        family.drain()
        assert run_fsck(now=family.now) == []

    def test_so_does_one_without_a_manifest(self, family):
        root = ran(family, "root")
        stamp(root, now=family.now)
        row = make_queue_row(None, source=Source.TASK, **item_in_run_of(root))
        assert family.dispatch() == 0
        row.refresh_from_db()
        assert row.status == QueueStatus.CANCELLED

    def test_active_ones_without_a_manifest_are_stopped_too(self, family):
        root = ran(family, "root")
        execution = make_execution(None, source=Source.TASK, **item_in_run_of(root))
        assert root.cancel(tree=True) == Cancelled(pending=1)
        execution.refresh_from_db()
        assert execution.state == ExecutionState.CANCELLED

    def test_a_due_dependent_is_not_queued_for_a_stamped_run(self, family):
        root = ran(family, "root")
        stamp(root, now=family.now)
        assert family.drain() == []
        assert run_fsck(now=family.now) == []

    def test_rows_of_other_runs_are_dispatched_all_the_same(self, family):
        root = ran(family, "root")
        stamp(root, now=family.now)
        make_queue_row(manifest("leaf"), source=Source.DEPENDENCY, **item_in_run_of(root))
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
        stamp(root, now=bench.now)
        bench.work()
        assert executions_of("waker")[0].output is False
        assert bench.queued() == []

    def test_a_letter_of_a_cancelled_run_can_only_be_acknowledged(self, bench):
        bench.schedules.schedule(workflows.ping, "root", None, Every.hours(1), **GROUP).include(
            workflows.give_up, "child", **GROUP
        )
        bench.seed()
        bench.drain()
        executions_of("root")[0].cancel(tree=True)
        letter = DeadLetter.objects.get()
        refused = letter.retry()
        assert refused.done == ()
        assert "its run was cancelled" in refused.skipped[letter.id]
        assert letter.acknowledge().done == (letter.id,)

    def test_a_continuation_of_a_cancelled_run_does_not_run_and_that_of_the_next_does(self, bench):
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

    def test_a_one_time_child_of_a_cancelled_run_is_done(self, family):
        Manifest.objects.schedule_child(workflows.ping, "once", None, parent="root")
        ran(family, "root")
        executions_of("root")[0].cancel(tree=True)
        assert manifest("once").done_at == family.now
        assert "once" not in family.run_for(hours=2)


@pytest.fixture
def fan(bench):
    """A root with two chains of two below it, and a continuation of all of it."""
    root = bench.schedules.schedule(workflows.ping, "root", None, Every.hours(1), **GROUP)
    for name in "ab":
        root.then_include(workflows.ping, name, **GROUP).then_include(workflows.ping, f"below {name}", **GROUP)
    root.include(workflows.ping, "join", fan_in="tree", **GROUP)
    bench.seed()
    return bench


class TestCancellingWhatHangsBelowAnInnerExecution:
    def test_its_siblings_go_on_and_its_run_is_not_cancelled(self, fan):
        ran(fan, "root")
        start(fan)
        assert executions_of("a")[0].cancel(tree=True) == Cancelled(running=1)
        end(fan, "a")
        end(fan, "b")
        assert fan.drain() == ["below b", "join"]
        assert GraphRun.objects.get().cancelled_at is None
        assert run_fsck(now=fan.now) == []

    def test_what_runs_below_it_is_told_and_what_waits_is_cancelled_with_the_reason(self, fan):
        ran(fan, "root")
        first = ran(fan, "a")
        fan.manage()
        assert "below a" in fan.queued()
        assert first.cancel(tree=True, reason="wrong source") == Cancelled(queued=1)
        row = WorkQueue.objects.get(manifest_external_id="below a")
        assert (row.status, row.cancel_reason) == (QueueStatus.CANCELLED, "wrong source")
        end(fan, "b")
        assert fan.drain() == ["below b", "join"]
        assert run_fsck(now=fan.now) == []

    def test_what_is_due_for_it_and_not_yet_queued_is_spent(self, fan):
        ran(fan, "root")
        first = ran(fan, "a")
        assert first.cancel(tree=True).queued == 1
        end(fan, "b")
        assert "below a" not in fan.drain()
        assert run_fsck(now=fan.now) == []

    def test_a_pending_one_ends_and_none_of_its_plain_dependents_runs_not_even_on_completion(self, bench):
        root = bench.schedules.schedule(workflows.ping, "root", None, Every.hours(1), **GROUP)
        root.then_include(workflows.ping, "child", **GROUP).then_include(
            workflows.ping, "always", run_condition=RunCondition.COMPLETION, **GROUP
        )
        bench.seed()
        ran(bench, "root")
        bench.manage()
        bench.dispatch()
        assert executions_of("child")[0].cancel(tree=True) == Cancelled(pending=1)
        assert bench.drain() == []
        assert GraphRun.objects.get().closed_at == bench.now

    def test_a_join_counts_it_as_cancelled(self, bench):
        """On completion it arrives; a join that asks for its success is short."""
        root = bench.schedules.schedule(workflows.ping, "root", None, Every.hours(1), **GROUP)
        for name in "ab":
            root.include(workflows.ping, name, **GROUP)
        both = {"depends_on": ["a", "b"], **GROUP}
        root.include(workflows.ping, "whatever", run_condition=RunCondition.COMPLETION, **both)
        root.include(workflows.ping, "success", **both)
        bench.seed()
        ran(bench, "root")
        bench.manage()
        bench.dispatch()
        assert executions_of("a")[0].cancel(tree=True) == Cancelled(pending=1)
        assert sorted(bench.drain()) == ["b", "whatever"]
        states = JoinState.objects.exclude(join_id=RUN_END).order_by("join_id")
        by_name = {Manifest.objects.get(id=state.join_id).external_id: state.outcome for state in states}
        assert by_name == {"whatever": "fired", "success": "short"}

    def test_one_that_fails_after_it_was_told_is_not_retried(self, fan):
        ran(fan, "root")
        start(fan)
        executions_of("a")[0].cancel(tree=True)
        end(fan, "a", outcomes.raised(RuntimeError("broken")))
        assert "a" not in fan.queued()
        end(fan, "b")
        assert fan.drain() == ["below b", "join"]

    @pytest.mark.parametrize("is_queued", [True, False], ids=["queued", "due"])
    def test_a_join_that_was_decided_goes_on_though_its_newest_arrival_was_cancelled(self, fan, is_queued):
        """It stands for all that arrived, not for the execution that it is named after."""
        ran(fan, "root")
        for names in (("a", "b"), ("below a", "below b")):
            start(fan)
            for name in names:
                end(fan, name)
        fan.manage() if is_queued else settle(now=fan.now)
        assert fan.queued() == (["join"] if is_queued else [])
        newest = max(executions_of("below a") + executions_of("below b"), key=lambda row: row.id)
        assert newest.cancel(tree=True) == Cancelled()
        assert fan.drain() == ["join"]
        assert executions_of("join")[0].parent_execution_id == newest.id
