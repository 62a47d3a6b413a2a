"""E of the acceptance list: dependents. The tables can be read beside the list and DESIGN 6."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from chainsched import Every, ManifestItem, RunCondition
from chainsched.db import audit_guard
from chainsched.domain.due import Reason
from chainsched.domain.outcomes import FailureType, Finished, failed
from chainsched.domain.states import ExecutionState, Source
from chainsched.flow.run.record import record
from chainsched.models import DeadLetter, Manifest, ManifestGroup, Metadata, WorkQueue
from chainsched.registry import registry
from chainsched.testing import Workbench
from tests.drive import executions_of, manifest, reap_silent, run_on, start_running
from tests.factories import NOW, make_process
from tests.testapp.workflows import Slice, activate_copy, copy, fail, give_up, ping

pytestmark = pytest.mark.django_db


def parent_runs(bench: Workbench) -> int:
    """Run the parent alone; the dependent is not looked at yet."""
    manifest("parent").trigger()
    bench.dispatch()
    bench.work()
    return executions_of("parent")[-1].id


def hold(bench: Workbench) -> None:
    """Take the row that waits to a worker that does not end."""
    bench.manage()
    bench.dispatch()
    start_running(bench)


# The situations. Each plays on a parent that only runs when asked and its dependent, and answers with the executions
# of the parent that the dependent should then run for, in order; "skipped" is an empty list.


def parent_succeeds_and_dependent_never_ran(bench: Workbench) -> list[int]:
    return [parent_runs(bench)]


def dependent_already_ran_for_that_success(bench: Workbench) -> list[int]:
    parent_runs(bench)
    assert bench.drain() == ["child"]
    return []


def parent_never_succeeded(bench: Workbench) -> list[int]:
    Manifest.objects.schedule(fail, "parent", None, None, max_retries=1)
    parent_runs(bench)
    return []


def parent_disabled(bench: Workbench) -> list[int]:
    parent_runs(bench)
    manifest("parent").disable()
    return []


def parent_disabled_and_enabled_again(bench: Workbench) -> list[int]:
    """It ran twice meanwhile, by hand; that is one run, for the newest."""
    parent_runs(bench)
    manifest("parent").disable()
    newest = parent_runs(bench)
    assert bench.drain() == []
    bench.advance(days=1)
    manifest("parent").enable()
    return [newest]


def dependent_with_an_awaiting_letter(bench: Workbench) -> list[int]:
    give_the_dependent_up(bench)
    parent_runs(bench)
    return []


def letter_resolved_by_a_retry_after_the_parent_ran_again(bench: Workbench) -> list[int]:
    """The retry is for the success that it failed for, and then the newer one has its turn."""
    first = give_the_dependent_up(bench)
    newest = parent_runs(bench)
    assert bench.drain() == []
    DeadLetter.objects.get().retry()
    return [first, newest]


def letter_acknowledged_after_the_parent_ran_again(bench: Workbench) -> list[int]:
    give_the_dependent_up(bench)
    newest = parent_runs(bench)
    DeadLetter.objects.get().acknowledge()
    return [newest]


def dependent_queued_for_its_first_attempt(bench: Workbench) -> list[int]:
    parent_runs(bench)
    bench.manage()
    ManifestGroup.objects.get(name="child").disable()
    parent_runs(bench)
    newest = parent_runs(bench)
    bench.assert_queued("child")
    ManifestGroup.objects.get(name="child").enable()
    return [newest]


def dependent_queued_for_its_second_attempt(bench: Workbench) -> list[int]:
    """The retry goes on with what it failed for; then the newest has its turn."""
    Manifest.objects.schedule_dependent(fail, "child", None, depends_on="parent", retry_delay=60)
    first = parent_runs(bench)
    assert bench.drain() == ["child"]
    Manifest.objects.schedule_dependent(ping, "child", None, depends_on="parent")
    newest = parent_runs(bench)
    assert bench.drain() == []
    bench.advance(seconds=90)
    return [first, newest]


def dependent_pending(bench: Workbench) -> list[int]:
    first = parent_runs(bench)
    bench.manage()
    bench.dispatch()
    Metadata.objects.pending().update(workflow="nobody.knows")
    parent_runs(bench)
    newest = parent_runs(bench)
    Metadata.objects.pending().update(workflow="testapp.ping")
    return [first, newest]


def dependent_running(bench: Workbench) -> list[int]:
    first = parent_runs(bench)
    hold(bench)
    newest = [parent_runs(bench) for _ in range(3)][-1]
    run_on(bench)
    return [first, newest]


def dependent_lost_with_its_process(bench: Workbench) -> list[int]:
    """It is made again for what it ran for."""
    first = parent_runs(bench)
    hold(bench)
    newest = parent_runs(bench)
    Metadata.objects.in_progress().update(process=make_process(heartbeat_at=NOW - timedelta(hours=1)))
    assert reap_silent(now=bench.now).lost == 1
    return [first, newest]


def dependents_queue_row_cancelled(bench: Workbench) -> list[int]:
    parent_runs(bench)
    bench.manage()
    assert manifest("child").cancel().queued == 1
    return []


def dependents_pending_execution_cancelled(bench: Workbench) -> list[int]:
    parent_runs(bench)
    bench.manage()
    bench.dispatch()
    assert manifest("child").cancel().pending == 1
    return []


def dependents_run_cancelled_while_the_parent_ran_again(bench: Workbench) -> list[int]:
    """What it ran for is spent; what came meanwhile is not."""
    parent_runs(bench)
    hold(bench)
    newest = parent_runs(bench)
    assert manifest("child").cancel().running == 1
    running = Metadata.objects.in_progress().get()
    ended = record([Finished(running.id, failed(FailureType.KILLED, "told"))], by=bench.process, now=bench.now)
    assert ended.ended == [running.id]
    running.refresh_from_db()
    assert running.state == ExecutionState.CANCELLED
    return [newest]


def dependents_letter_acknowledged(bench: Workbench) -> list[int]:
    give_the_dependent_up(bench)
    DeadLetter.objects.get().acknowledge()
    return []


def parent_deleted(bench: Workbench) -> list[int]:
    parent_runs(bench)
    manifest("parent").delete()
    assert manifest("child").depends_on is None
    assert manifest("child").explain().code == Reason.PARENT_MISSING
    return []


def parent_deleted_while_the_dependent_is_queued(bench: Workbench) -> list[int]:
    """What was queued before runs; nothing follows."""
    first = parent_runs(bench)
    bench.manage()
    manifest("parent").delete()
    return [first]


def parent_deleted_and_declared_again(bench: Workbench) -> list[int]:
    """The new one has not run."""
    parent_runs(bench)
    manifest("parent").delete()
    Manifest.objects.schedule(ping, "parent", None, None)
    Manifest.objects.schedule_dependent(ping, "child", None, depends_on="parent")
    return []


def parent_retired(bench: Workbench) -> list[int]:
    parent_runs(bench)
    Manifest.objects.filter(external_id="parent").update(retired_at=NOW)
    return []


def parents_group_disabled(bench: Workbench) -> list[int]:
    """A group stops its own members only."""
    newest = parent_runs(bench)
    ManifestGroup.objects.get(name="parent").disable()
    return [newest]


def parent_moved_to_another_group(bench: Workbench) -> list[int]:
    parent_runs(bench)
    assert bench.drain() == ["child"]
    Manifest.objects.schedule(ping, "parent", None, None, group="elsewhere")
    return []


def dependent_in_a_disabled_group(bench: Workbench) -> list[int]:
    ManifestGroup.objects.get(name="child").disable()
    parent_runs(bench)
    return []


def dependents_group_enabled_again(bench: Workbench) -> list[int]:
    ManifestGroup.objects.get(name="child").disable()
    parent_runs(bench)
    newest = parent_runs(bench)
    assert bench.drain() == []
    ManifestGroup.objects.get(name="child").enable()
    return [newest]


def dependent_disabled_and_enabled_again(bench: Workbench) -> list[int]:
    manifest("child").disable()
    parent_runs(bench)
    newest = parent_runs(bench)
    assert bench.drain() == []
    manifest("child").enable()
    return [newest]


def dependent_triggered_while_it_is_due(bench: Workbench) -> list[int]:
    """The run that somebody asked for is the run for that success."""
    newest = parent_runs(bench)
    manifest("child").trigger()
    return [newest]


def dependent_made_dormant_and_awake_again(bench: Workbench) -> list[int]:
    """It ran for that success."""
    parent_runs(bench)
    assert bench.drain() == ["child"]
    Manifest.objects.schedule_dependent(ping, "child", None, depends_on="parent", dormant=True)
    assert bench.drain() == []
    Manifest.objects.schedule_dependent(ping, "child", None, depends_on="parent")
    return []


def dependent_made_independent_and_back(bench: Workbench) -> list[int]:
    parent_runs(bench)
    assert bench.drain() == ["child"]
    Manifest.objects.schedule(ping, "child", None, None)
    Manifest.objects.schedule_dependent(ping, "child", None, depends_on="parent")
    return []


def give_the_dependent_up(bench: Workbench) -> int:
    """A letter for the first success; a later run would succeed."""
    Manifest.objects.schedule_dependent(give_up, "child", None, depends_on="parent")
    first = parent_runs(bench)
    assert bench.drain() == ["child"]
    assert DeadLetter.objects.awaiting().exists()
    Manifest.objects.schedule_dependent(ping, "child", None, depends_on="parent")
    return first


SITUATIONS: list[Callable[[Workbench], list[int]]] = [
    parent_succeeds_and_dependent_never_ran,
    dependent_already_ran_for_that_success,
    parent_never_succeeded,
    parent_disabled,
    parent_disabled_and_enabled_again,
    dependent_with_an_awaiting_letter,
    letter_resolved_by_a_retry_after_the_parent_ran_again,
    letter_acknowledged_after_the_parent_ran_again,
    dependent_queued_for_its_first_attempt,
    dependent_queued_for_its_second_attempt,
    dependent_pending,
    dependent_running,
    dependent_lost_with_its_process,
    dependents_queue_row_cancelled,
    dependents_pending_execution_cancelled,
    dependents_run_cancelled_while_the_parent_ran_again,
    dependents_letter_acknowledged,
    parent_deleted,
    parent_deleted_while_the_dependent_is_queued,
    parent_deleted_and_declared_again,
    parent_retired,
    parents_group_disabled,
    parent_moved_to_another_group,
    dependent_in_a_disabled_group,
    dependents_group_enabled_again,
    dependent_disabled_and_enabled_again,
    dependent_triggered_while_it_is_due,
    dependent_made_dormant_and_awake_again,
    dependent_made_independent_and_back,
]


class TestSituations:
    """The table of E, and what lies between its rows."""

    @pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.__name__.replace("_", " "))
    def test_the_dependent_runs_as_the_table_says_and_then_no_more(self, bench, situation):
        Manifest.objects.schedule(ping, "parent", None, None)
        Manifest.objects.schedule_dependent(ping, "child", None, depends_on="parent")
        runs_for = situation(bench)
        before = {run.id for run in executions_of("child") if ExecutionState(run.state).is_terminal}
        bench.drain()
        ran = [run for run in executions_of("child") if run.id not in before]
        assert [run.parent_execution_id for run in ran] == runs_for
        assert bench.run_for(hours=1) == []


# The ways in which a run of the parent can end; each leaves exactly one outcome behind.


def completed(bench: Workbench) -> None:
    bench.drain()


def dead_lettered_by_failure(bench: Workbench) -> None:
    run_with(bench, fail)


def dead_lettered_by_giving_up(bench: Workbench) -> None:
    run_with(bench, give_up)


def dead_lettered_by_timeout(bench: Workbench) -> None:
    end_with(bench, FailureType.TIMEOUT)


def dead_lettered_by_loss(bench: Workbench) -> None:
    hold(bench)
    Metadata.objects.in_progress().update(process=make_process(heartbeat_at=NOW - timedelta(hours=1)))
    assert reap_silent(now=bench.now).lost == 1


def cancelled_while_pending(bench: Workbench) -> None:
    bench.manage()
    bench.dispatch()
    assert manifest("parent").cancel().pending == 1


def cancelled_while_running(bench: Workbench) -> None:
    hold(bench)
    assert manifest("parent").cancel().running == 1
    end_with(bench, FailureType.KILLED)


def run_with(bench: Workbench, function: Callable[..., Any]) -> None:
    Manifest.objects.schedule(function, "parent", None, Every.hours(9))
    bench.turn()
    assert DeadLetter.objects.awaiting().exists()


def end_with(bench: Workbench, failure_type: FailureType) -> None:
    hold(bench)
    running = Metadata.objects.in_progress().get()
    record([Finished(running.id, failed(failure_type, "it took too long"))], by=bench.process, now=bench.now)


CONDITIONS = (RunCondition.SUCCESS, RunCondition.FAILURE, RunCondition.COMPLETION)
# DESIGN 6. The columns are the conditions in this order.
OUTCOMES: list[tuple[Callable[[Workbench], None], tuple[bool, bool, bool]]] = [
    (completed, (True, False, True)),
    (dead_lettered_by_failure, (False, True, True)),
    (dead_lettered_by_giving_up, (False, True, True)),
    (dead_lettered_by_timeout, (False, True, True)),
    (dead_lettered_by_loss, (False, True, True)),
    (cancelled_while_pending, (False, False, True)),
    (cancelled_while_running, (False, False, True)),
]


class TestConditions:
    """Conditions against outcomes, each cell."""

    @pytest.mark.parametrize(
        ("condition", "outcome", "fires"),
        [
            pytest.param(condition, outcome, fires, id=f"{condition.name.lower()}, {outcome.__name__}")
            for outcome, row in OUTCOMES
            for condition, fires in zip(CONDITIONS, row, strict=True)
        ],
    )
    def test_a_dependent_fires_for(self, bench, condition, outcome, fires):
        Manifest.objects.schedule(ping, "parent", None, Every.hours(9), max_retries=1)
        Manifest.objects.schedule_dependent(ping, "child", None, depends_on="parent", run_condition=condition)
        outcome(bench)
        bench.drain()
        (ended,) = executions_of("parent")
        assert [run.parent_execution_id for run in executions_of("child")] == [ended.id] * fires

    @pytest.mark.parametrize("condition", CONDITIONS)
    def test_an_attempt_with_retries_left_is_no_outcome(self, bench, condition):
        Manifest.objects.schedule(fail, "parent", None, Every.hours(9), max_retries=2, retry_delay=60)
        Manifest.objects.schedule_dependent(ping, "child", None, depends_on="parent", run_condition=condition)
        assert bench.drain() == ["parent"]
        ran = bench.run_for(minutes=2)
        assert ran == ["parent", *(["child"] if condition is not RunCondition.SUCCESS else [])]

    @pytest.mark.parametrize(
        ("condition", "runs"),
        [(RunCondition.SUCCESS, [1]), (RunCondition.FAILURE, [0]), (RunCondition.COMPLETION, [0, 1])],
    )
    def test_a_retried_letter_that_succeeds_is_an_outcome_of_its_own(self, bench, condition, runs):
        Manifest.objects.schedule(give_up, "parent", None, Every.hours(9))
        Manifest.objects.schedule_dependent(ping, "child", None, depends_on="parent", run_condition=condition)
        bench.drain()
        Manifest.objects.schedule(ping, "parent", None, Every.hours(9))
        DeadLetter.objects.get().retry()
        bench.drain()
        outcomes = [run.id for run in executions_of("parent")]
        assert [run.parent_execution_id for run in executions_of("child")] == [outcomes[run] for run in runs]

    @pytest.mark.parametrize("condition", CONDITIONS)
    def test_a_row_that_is_cancelled_in_the_queue_never_ran_and_is_no_outcome(self, bench, condition):
        Manifest.objects.schedule(ping, "parent", None, Every.hours(9))
        Manifest.objects.schedule_dependent(ping, "child", None, depends_on="parent", run_condition=condition)
        bench.manage()
        assert manifest("parent").cancel().queued == 1
        assert bench.drain() == []


class TestChains:
    """A, then B, then C: order, parents and roots, and a letter in the middle."""

    @pytest.fixture
    def chain(self, bench: Workbench) -> Workbench:
        Manifest.objects.schedule(ping, "a", None, Every.hours(1))
        Manifest.objects.schedule_dependent(give_up, "b", None, depends_on="a")
        Manifest.objects.schedule_dependent(ping, "c", None, depends_on="b")
        assert bench.drain() == ["a", "b"]
        return bench

    def test_a_letter_in_the_middle_keeps_the_rest_idle_however_often_the_root_runs(self, chain):
        assert chain.run_for(hours=3) == ["a", "a", "a"]
        assert manifest("c").explain().code == Reason.PARENT_NOT_AHEAD

    def test_retrying_the_letter_lets_the_rest_run_in_the_tree_of_the_failed_run(self, chain):
        Manifest.objects.schedule_dependent(ping, "b", None, depends_on="a")
        DeadLetter.objects.get().retry()
        assert chain.drain() == ["b", "c"]
        a, (failed_b, b), c = executions_of("a")[0], executions_of("b"), executions_of("c")[0]
        assert (b.parent_execution_id, b.root_execution_id) == (a.id, a.id)
        assert (failed_b.parent_execution_id, failed_b.root_execution_id) == (a.id, a.id)
        assert (c.parent_execution_id, c.root_execution_id) == (b.id, a.id)

    def test_acknowledging_it_lets_the_rest_run_after_the_next_success(self, chain):
        DeadLetter.objects.get().acknowledge()
        assert chain.drain() == []
        Manifest.objects.schedule_dependent(ping, "b", None, depends_on="a")
        chain.advance(hours=1)
        assert chain.drain() == ["a", "b", "c"]

    @pytest.mark.parametrize("kind", ["once", "dormant", "one-time child"])
    def test_a_dependent_may_hang_below_anything_that_runs(self, bench, kind):
        Manifest.objects.schedule(activate_copy, "root", None, Every.hours(9), enabled=kind != "once")
        if kind == "once":
            Manifest.objects.schedule_once(copy, "child", Slice("t"), NOW)
        elif kind == "dormant":
            Manifest.objects.schedule_dependent(copy, "child", Slice("t"), depends_on="root", dormant=True)
        else:
            Manifest.objects.schedule(ping, "root", None, Every.hours(9))
            Manifest.objects.schedule_child(copy, "child", Slice("t"), parent="root")
        Manifest.objects.schedule_dependent(ping, "below", None, depends_on="child")
        assert bench.drain() == [*(["root"] if kind != "once" else []), "child", "below"]
        child, below = executions_of("child")[0], executions_of("below")[0]
        assert (below.parent_execution_id, below.root_execution_id) == (
            child.id,
            child.root_execution_id or child.id,
        )

    def test_a_dependent_that_is_declared_after_its_one_time_parent_is_done_is_queued(self, bench):
        Manifest.objects.schedule_once(ping, "parent", None, NOW)
        assert bench.drain() == ["parent"]
        Manifest.objects.schedule_dependent(ping, "late", None, depends_on="parent")
        assert bench.drain() == ["late"]

    def test_in_a_fan_out_of_batches_only_the_counterpart_runs(self, bench):
        names = [str(number) for number in range(50)]
        Manifest.objects.schedule_many(ping, "extract", [ManifestItem(name) for name in names], None)
        loads = [ManifestItem(name, depends_on=f"extract-{name}") for name in names]
        Manifest.objects.schedule_many_dependent(ping, "load", loads)
        manifest("extract-42").trigger()
        assert bench.drain() == ["extract-42", "load-42"]


class TestBoost:
    """Dependents get the boost, clamped to 31; a boost of 0 turns it off. Activations get it too."""

    @pytest.mark.parametrize(
        ("boost", "own", "group", "expected"),
        [
            (16, None, 0, 16),
            (16, None, 9, 25),
            (16, 0, 9, 16),
            (16, 15, 0, 31),
            (16, 16, 0, 31),
            (16, 31, 31, 31),
            (0, None, 0, 0),
        ],
    )
    @pytest.mark.parametrize("dormant", [False, True], ids=["dependent", "dormant"])
    def test_the_rank_of_a_caused_row(  # noqa: PLR0917
        self, bench, settings, dormant, boost, own, group, expected
    ):
        settings.CHAINSCHED = {"DEPENDENT_PRIORITY_BOOST": boost}
        Manifest.objects.schedule(activate_copy if dormant else ping, "parent", None, Every.hours(1), priority=31)
        Manifest.objects.schedule_dependent(
            copy, "child", Slice("t"), depends_on="parent", priority=own, group_priority=group, dormant=dormant
        )
        bench.turn()
        bench.manage()
        row = WorkQueue.objects.queued().get()
        assert (row.priority, row.source) == (expected, Source.ACTIVATION if dormant else Source.DEPENDENCY)

    def test_an_edited_priority_keeps_the_boost(self, bench):
        Manifest.objects.schedule(ping, "parent", None, Every.hours(1))
        Manifest.objects.schedule_dependent(ping, "child", None, depends_on="parent", group="g")
        bench.turn()
        bench.manage()
        Manifest.objects.schedule_dependent(ping, "child", None, depends_on="parent", group="g", priority=4)
        assert WorkQueue.objects.queued().get().priority == 20
        Manifest.objects.schedule_dependent(
            ping, "child", None, depends_on="parent", group="g", priority=None, group_priority=31
        )
        assert WorkQueue.objects.queued().get().priority == 31

    def test_a_dependent_goes_before_what_nobody_waits_for(self, bench, settings):
        settings.CHAINSCHED = {"MAX_ACTIVE_JOBS": 1}
        Manifest.objects.schedule(ping, "parent", None, Every.hours(1), priority=20)
        Manifest.objects.schedule_dependent(ping, "child", None, depends_on="parent")
        for name in ("x", "y"):
            Manifest.objects.schedule(ping, name, None, Every.hours(1), priority=15)
        assert bench.drain() == ["parent", "child", "x", "y"]


class TestSpentSuccesses:
    """What cancelling and retention leave."""

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
            cursor.execute(f"SELECT set_config('{audit_guard.RETENTION_SETTING}', 'on', true)")
        cursor.execute("DELETE FROM chainsched_metadata WHERE ended_at IS NOT NULL")
