"""I of the acceptance list: the execution graph. Trees, correlation of runs, children that run once, and fan-in."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from chainsched import Every, ManifestItem, RunCondition
from chainsched.domain.due import Reason
from chainsched.domain.states import ExecutionState, Source
from chainsched.exceptions import ChainschedError, CycleError, LimitExceeded, UnknownManifest
from chainsched.flow.maintain.fsck import reconcile
from chainsched.models import DeadLetter, Manifest, ManifestGroup, Metadata, WorkQueue
from chainsched.testing import Workbench
from tests.drive import executions_of, manifest, reap_silent, run_on, start_running
from tests.factories import NOW, make_process
from tests.testapp.workflows import Slice, activate_copy, copy, fail, give_up, ping

pytestmark = [pytest.mark.django_db, pytest.mark.slow_on_postgres]

GROUP = {"group": "g"}


# What causes a run of "job", or of the "child" that a workflow activates. Each answers with the manifests whose
# executions should be its parent and the root of its tree.


def by_dependency(bench: Workbench) -> tuple[str | None, str | None]:
    Manifest.objects.schedule(ping, "root", None, Every.hours(9))
    Manifest.objects.schedule_dependent(ping, "parent", None, depends_on="root")
    Manifest.objects.schedule_dependent(ping, "job", None, depends_on="parent")
    return "parent", "root"


def by_activation(bench: Workbench) -> tuple[str | None, str | None]:
    Manifest.objects.schedule(ping, "root", None, Every.hours(9))
    Manifest.objects.schedule_dependent(activate_copy, "parent", None, depends_on="root")
    Manifest.objects.schedule_dependent(copy, "child", Slice("t"), depends_on="parent", dormant=True)
    return "parent", "root"


def by_being_a_child(bench: Workbench) -> tuple[str | None, str | None]:
    Manifest.objects.schedule(ping, "root", None, Every.hours(9))
    Manifest.objects.schedule_dependent(ping, "parent", None, depends_on="root")
    Manifest.objects.schedule_child(ping, "job", None, parent="parent")
    return "parent", "root"


def by_retry(bench: Workbench) -> tuple[str | None, str | None]:
    Manifest.objects.schedule(ping, "root", None, Every.hours(9))
    Manifest.objects.schedule_dependent(fail, "job", None, depends_on="root", retry_delay=0)
    return "root", "root"


def by_a_letters_retry(bench: Workbench) -> tuple[str | None, str | None]:
    Manifest.objects.schedule(ping, "root", None, Every.hours(9))
    Manifest.objects.schedule_dependent(give_up, "job", None, depends_on="root")
    bench.drain()
    DeadLetter.objects.get().retry()
    return "root", "root"


def by_fan_in(bench: Workbench) -> tuple[str | None, str | None]:
    Manifest.objects.schedule(ping, "root", None, Every.hours(9))
    Manifest.objects.schedule_dependent(ping, "member", None, depends_on="root")
    Manifest.objects.schedule_dependent(ping, "job", None, depends_on="root", fan_in=True)
    return "member", "root"


def by_a_join_of_several(bench: Workbench) -> tuple[str | None, str | None]:
    Manifest.objects.schedule(ping, "root", None, Every.hours(9))
    for name in ("first", "second"):
        Manifest.objects.schedule_dependent(ping, name, None, depends_on="root")
    Manifest.objects.schedule_dependent(ping, "job", None, depends_on=["first", "second"])
    return "second", "root"


def by_schedule(bench: Workbench) -> tuple[str | None, str | None]:
    Manifest.objects.schedule(ping, "job", None, Every.hours(9))
    return None, None


def by_trigger(bench: Workbench) -> tuple[str | None, str | None]:
    Manifest.objects.schedule(ping, "job", None, None)
    manifest("job").trigger()
    return None, None


def by_trigger_of_a_dependent(bench: Workbench) -> tuple[str | None, str | None]:
    """Somebody asked for it, no run did."""
    Manifest.objects.schedule(ping, "parent", None, None)
    Manifest.objects.schedule_dependent(ping, "job", None, depends_on="parent")
    manifest("job").trigger()
    return None, None


def by_retry_of_a_root(bench: Workbench) -> tuple[str | None, str | None]:
    """It stands where the failed attempt stood."""
    Manifest.objects.schedule(fail, "job", None, Every.hours(9), retry_delay=0)
    return None, None


CAUSES = [
    (by_dependency, "job"),
    (by_activation, "child"),
    (by_being_a_child, "job"),
    (by_retry, "job"),
    (by_a_letters_retry, "job"),
    (by_fan_in, "job"),
    (by_a_join_of_several, "job"),
    (by_schedule, "job"),
    (by_trigger, "job"),
    (by_trigger_of_a_dependent, "job"),
    (by_retry_of_a_root, "job"),
]


class TestTrees:
    """Parent and root on every caused execution; a root has both null; the correlation ids say the same."""

    @pytest.mark.parametrize(("cause", "name"), CAUSES, ids=[cause.__name__.replace("_", " ") for cause, _ in CAUSES])
    def test_an_execution_names_its_parent_and_its_root(self, bench, cause, name):
        parent_name, root_name = cause(bench)
        bench.drain()
        runs = executions_of(name)
        parent = executions_of(parent_name)[0] if parent_name else None
        root = executions_of(root_name)[0] if root_name else None
        first = runs[0]
        for run in runs:
            assert run.parent_execution_id == (parent.id if parent else None)
            assert run.root_execution_id == (root.id if root else None)
            assert run.causation_id == (str(parent.external_id) if parent else "")
            assert run.root_correlation_id == str((root or first).external_id)
        assert len({run.external_id for run in runs}) == len(runs)


def crowd() -> None:
    """A manifest that has all the children it may have."""
    Manifest.objects.schedule(ping, "crowded", None, None)
    items = [ManifestItem(f"child-{number}", depends_on="crowded") for number in range(10)]
    Manifest.objects.schedule_many_dependent(ping, None, items)


class TestChildren:
    """``schedule_child`` fires once, for the first later outcome that matches, and is done."""

    @pytest.mark.parametrize(
        ("condition", "outcomes", "fires_for"),
        [
            (RunCondition.SUCCESS, [ping, ping, ping], 0),
            (RunCondition.SUCCESS, [give_up, ping, ping], 1),
            (RunCondition.FAILURE, [ping, ping, give_up], 2),
            (RunCondition.COMPLETION, [give_up, ping], 0),
            (RunCondition.FAILURE, [ping, ping], None),
        ],
    )
    def test_a_child_runs_for_the_first_outcome_that_matches_and_no_other(self, bench, condition, outcomes, fires_for):
        Manifest.objects.schedule(ping, "parent", None, None)
        manifest("parent").trigger()
        bench.drain()
        Manifest.objects.schedule_child(ping, "child", None, parent="parent", run_condition=condition)
        assert bench.drain() == [], "what happened before does not count"
        for outcome in outcomes:
            Manifest.objects.schedule(outcome, "parent", None, None)
            manifest("parent").trigger()
            bench.drain()
            for letter in DeadLetter.objects.awaiting():
                letter.acknowledge()
        later = [run.id for run in executions_of("parent")[1:]]
        expected = [] if fires_for is None else [later[fires_for]]
        assert [run.parent_execution_id for run in executions_of("child")] == expected
        assert (manifest("child").done_at is not None) == bool(expected)

    def test_a_run_that_is_under_way_is_a_later_outcome(self, bench):
        Manifest.objects.schedule(ping, "parent", None, Every.hours(1))
        bench.manage()
        bench.dispatch()
        start_running(bench)
        Manifest.objects.schedule_child(ping, "child", None, parent="parent")
        run_on(bench)
        assert bench.drain() == ["parent", "child"]

    def test_a_child_that_fails_keeps_its_one_run_until_it_is_decided(self, bench):
        """Its parent runs on meanwhile; that makes no further run of it."""
        Manifest.objects.schedule(ping, "parent", None, Every.minutes(4))
        Manifest.objects.schedule_child(fail, "child", None, parent="parent", retry_delay=300)
        ran = bench.run_for(minutes=20)
        assert ran.count("child") == 3
        assert manifest("child").done_at is None
        Manifest.objects.filter(external_id="child").update(workflow="testapp.ping")
        DeadLetter.objects.get().retry()
        assert bench.run_for(minutes=5).count("child") == 1
        assert {run.parent_execution_id for run in executions_of("child")} == {executions_of("parent")[0].id}
        assert manifest("child").explain().code == Reason.DONE

    def test_a_child_that_is_done_may_be_scheduled_again_for_a_later_outcome(self, bench):
        Manifest.objects.schedule(ping, "parent", None, Every.hours(1))
        Manifest.objects.schedule_child(ping, "child", None, parent="parent")
        assert bench.drain() == ["parent", "child"]
        bench.advance(hours=1)
        assert bench.drain() == ["parent"]
        Manifest.objects.schedule_child(ping, "child", None, parent="parent")
        assert bench.drain() == []
        bench.advance(hours=1)
        assert bench.drain() == ["parent", "child"]

    def test_a_dependent_that_becomes_a_child_waits_for_a_later_outcome(self, bench):
        """DESIGN 6: a child is covered up to its parent's present state."""
        Manifest.objects.schedule(ping, "parent", None, Every.hours(1))
        Manifest.objects.schedule_dependent(ping, "child", None, depends_on="parent", enabled=False)
        assert bench.drain() == ["parent"]
        Manifest.objects.schedule_child(ping, "child", None, parent="parent", enabled=True)
        assert bench.drain() == []
        assert bench.run_for(hours=3) == ["parent", "child", "parent", "parent"]

    @pytest.mark.parametrize(
        ("child", "parent", "error", "facts"),
        [
            ("new", "nobody", UnknownManifest, ["nobody"]),
            ("level-0", "level-0", CycleError, ["level-0"]),
            ("level-1", "level-3", CycleError, ["level-1", "level-2", "level-3"]),
            ("new", "level-5", LimitExceeded, ["new", "6", "5", "MAX_JOB_DEPTH"]),
            ("new", "crowded", LimitExceeded, ["crowded", "11", "10", "MAX_FAN_OUT"]),
        ],
        ids=["unknown parent", "self", "cycle", "depth 6", "11th child"],
    )
    def test_what_cannot_be_is_refused_naming_value_limit_and_setting(self, bench, child, parent, error, facts):
        Manifest.objects.schedule(ping, "level-0", None, Every.hours(1), **GROUP)
        levels = [ManifestItem(f"level-{depth}", depends_on=f"level-{depth - 1}") for depth in range(1, 6)]
        Manifest.objects.schedule_many_dependent(ping, None, levels, **GROUP)
        crowd()
        before = list(Manifest.objects.order_by("id").values())
        with pytest.raises(error) as caught:
            Manifest.objects.schedule_child(ping, child, None, parent=parent, **GROUP)
        assert isinstance(caught.value, ChainschedError)
        assert all(fact in str(caught.value) for fact in facts), str(caught.value)
        assert list(Manifest.objects.order_by("id").values()) == before

    @pytest.mark.parametrize("what", ["done", "retired", "removed"])
    def test_a_child_that_is_gone_makes_room(self, bench, what):
        crowd()
        if what == "removed":
            manifest("child-3").delete()
        else:
            Manifest.objects.filter(external_id="child-3").update(**{f"{what}_at": NOW})
        Manifest.objects.schedule_child(ping, "new", None, parent="crowded")
        with pytest.raises(LimitExceeded):
            Manifest.objects.schedule_child(ping, "newer", None, parent="crowded")


@pytest.fixture
def family(bench: Workbench) -> Workbench:
    """A parent that ran, three members with a part to do, and a continuation."""
    Manifest.objects.schedule(ping, "parent", None, None, **GROUP)
    for name in "abc":
        Manifest.objects.schedule_dependent(ping, name, None, depends_on="parent", **GROUP)
    Manifest.objects.schedule_dependent(ping, "join", None, depends_on="parent", fan_in=True, **GROUP)
    run_parent(bench)
    return bench


def run_parent(bench: Workbench) -> int:
    """Run the parent and nothing else."""
    manifest("parent").trigger()
    run_only(bench, "parent")
    return executions_of("parent")[-1].id


def run_only(bench: Workbench, *names: str) -> None:
    """Queue and dispatch what is due, and run these to their end; the others stay pending."""
    bench.manage()
    bench.dispatch()
    others = Metadata.objects.pending().exclude(manifest_external_id__in=names)
    held = list(others.values_list("id", "workflow"))
    others.update(workflow="nobody.knows")
    bench.work()
    for id_, workflow in held:
        Metadata.objects.filter(id=id_).update(workflow=workflow)


def joins(bench: Workbench) -> list[int | None]:
    """In the runs of which executions of the parent the continuation has been queued so far."""
    bench.manage()
    rows = WorkQueue.objects.filter(manifest_external_id="join").order_by("id")
    return list(rows.values_list("root_execution_id", flat=True))


def succeeds(bench: Workbench, name: str) -> None:
    run_only(bench, name)


def is_given_up(bench: Workbench, name: str) -> None:
    Metadata.objects.pending().filter(manifest_external_id=name).update(workflow="testapp.give_up")
    run_only(bench, name)
    assert DeadLetter.objects.awaiting().filter(manifest=manifest(name)).exists()


def is_cancelled(bench: Workbench, name: str) -> None:
    assert manifest(name).cancel().total == 1


def is_lost_for_good(bench: Workbench, name: str) -> None:
    Manifest.objects.filter(external_id=name).update(max_retries=1)
    dead = make_process(heartbeat_at=bench.now - timedelta(hours=1))
    lost = Metadata.objects.pending().filter(manifest_external_id=name)
    lost.update(state=ExecutionState.IN_PROGRESS, process=dead, claimed_at=bench.now, started_at=bench.now)
    assert reap_silent(now=bench.now).lost == 1


def is_disabled(bench: Workbench, name: str) -> None:
    manifest(name).disable()


def is_removed(bench: Workbench, name: str) -> None:
    manifest(name).delete()


def moves_away(bench: Workbench, name: str) -> None:
    Manifest.objects.schedule(ping, name, None, None, **GROUP)


PARTS: list[Callable[[Workbench, str], None]] = [succeeds, is_given_up, is_cancelled, is_lost_for_good]
LEAVING: list[Callable[[Workbench, str], None]] = [is_disabled, is_removed, moves_away]


class TestFanIn:
    """Three members and a continuation: not after one, not after two, once after three, succeeded or not."""

    @pytest.mark.parametrize("last", PARTS)
    @pytest.mark.parametrize("first", [succeeds, is_given_up])
    def test_it_runs_once_when_the_last_part_is_done_however_that_came(self, family, first, last):
        (parent,) = executions_of("parent")
        run_only(family)
        first(family, "a")
        assert joins(family) == []
        succeeds(family, "b")
        assert joins(family) == []
        last(family, "c")
        assert joins(family) == [parent.id]
        family.drain()
        assert joins(family) == [parent.id]
        assert reconcile(now=family.now) == 0

    @pytest.mark.parametrize("leaves", LEAVING)
    def test_a_member_that_leaves_before_it_is_queued_lets_it_go(self, family, leaves):
        (parent,) = executions_of("parent")
        leaves(family, "c")
        run_only(family, "a", "b")
        assert joins(family) == [parent.id]
        family.drain()
        assert joins(family) == [parent.id]
        assert reconcile(now=family.now) == 0

    @pytest.mark.parametrize("leaves", LEAVING)
    def test_a_member_that_leaves_while_it_is_under_way_is_waited_for(self, family, leaves):
        (parent,) = executions_of("parent")
        run_only(family, "a", "b")
        leaves(family, "c")
        assert joins(family) == []
        succeeds(family, "c")
        assert joins(family) == [parent.id]
        family.drain()
        assert joins(family) == [parent.id]
        assert reconcile(now=family.now) == 0

    def test_an_attempt_with_retries_left_is_not_the_end_of_a_part(self, family):
        run_only(family)
        Metadata.objects.pending().filter(manifest_external_id="c").update(workflow="testapp.fail")
        run_only(family, "a", "b", "c")
        assert joins(family) == []
        assert manifest("join").explain().code == Reason.WAITS_FOR_PARENTS
        assert family.run_for(minutes=10) == ["c", "join"]

    @pytest.mark.parametrize("decision", ["retry", "acknowledge"])
    def test_a_members_letter_that_is_decided_later_does_not_fire_it_again(self, family, decision):
        run_only(family)
        is_given_up(family, "c")
        run_only(family, "a", "b")
        family.drain()
        assert len(joins(family)) == 1
        getattr(DeadLetter.objects.get(), decision)()
        assert family.drain() == (["c"] if decision == "retry" else [])
        assert len(joins(family)) == 1

    @pytest.mark.parametrize("decision", ["retry", "acknowledge"])
    def test_a_members_letter_that_is_decided_during_the_next_run_does_not_fire_it_early(self, family, decision):
        """From then on nothing stops the member, so it has a part in that run."""
        run_only(family)
        is_given_up(family, "c")
        family.drain()
        newest = run_parent(family)
        assert len(joins(family)) == 1
        getattr(DeadLetter.objects.get(), decision)()
        run_only(family)
        run_only(family, "a", "b")
        assert len(joins(family)) == 1, "c has yet to run for the newest"
        if decision == "retry":
            run_only(family, "c")
            assert len(joins(family)) == 1, "that was its part in the first run"
        run_only(family, "c")
        assert joins(family)[1:] == [newest]

    def test_a_parent_that_runs_again_meanwhile_loses_nothing_and_each_run_is_joined(self, family):
        first = executions_of("parent")[0].id
        run_only(family)
        run_only(family, "a")
        second = run_parent(family)
        run_only(family, "a", "b", "c")
        assert joins(family) == [first], "b and c have yet to run for the second"
        run_only(family, "join", "b", "c")
        assert joins(family) == [first, second]
        family.drain()
        assert family.run_for(days=1) == []

    def test_a_parent_that_runs_again_while_the_continuation_waits_or_runs_is_joined_by_a_run_of_its_own(self, family):
        first = executions_of("parent")[0].id
        run_only(family, "a", "b", "c")
        assert joins(family) == [first]
        second = run_parent(family)
        run_only(family, "a", "b", "c")
        assert joins(family) == [first], "it is under way"
        family.drain()
        assert joins(family) == [first, second]
        assert family.run_for(days=1) == []

    def test_the_last_two_in_one_batch_fire_it_once(self, family):
        run_only(family, "a")
        run_only(family, "b", "c")
        assert len(joins(family)) == 1

    def test_a_member_that_is_enabled_again_has_its_part_in_what_is_still_open(self, family):
        manifest("c").disable()
        run_only(family, "a")
        manifest("c").enable()
        run_only(family, "b")
        assert joins(family) == []
        run_only(family, "c")
        assert len(joins(family)) == 1

    def test_without_enabled_members_it_runs_after_the_parent(self, family):
        for name in "abc":
            manifest(name).disable()
        family.drain()
        assert len(joins(family)) == 1
        newest = run_parent(family)
        assert joins(family)[1:] == [newest]

    def test_a_continuation_waits_for_a_one_time_child_once(self, family):
        family.drain()
        Manifest.objects.schedule_child(ping, "extra", None, parent="parent", **GROUP)
        run_parent(family)
        run_only(family, "a", "b", "c")
        assert len(joins(family)) == 1
        run_only(family, "extra")
        assert len(joins(family)) == 2
        family.drain()
        run_parent(family)
        run_only(family, "a", "b", "c")
        assert len(joins(family)) == 3

    def test_two_continuations_do_not_wait_for_each_other(self, family):
        Manifest.objects.schedule_dependent(ping, "other-join", None, depends_on="parent", fan_in=True, **GROUP)
        assert sorted(family.drain()) == ["a", "b", "c", "join"], "a new join belongs to the next run"
        run_parent(family)
        assert sorted(family.drain()) == ["a", "b", "c", "join", "other-join"]

    def test_what_hangs_below_a_continuation_runs_after_it(self, family):
        Manifest.objects.schedule_dependent(ping, "end", None, depends_on="join", **GROUP)
        assert family.drain()[-2:] == ["join", "end"]

    def test_a_member_that_is_run_by_hand_when_due_has_done_its_part(self, family):
        manifest("c").trigger()
        run_only(family, "a", "b", "c")
        assert len(joins(family)) == 1

    def test_the_cost_of_one_members_end_does_not_grow_with_the_members(self, bench):
        def cost(name: str, members: int) -> int:
            Manifest.objects.schedule(ping, name, None, None, group=name)
            items = [ManifestItem(f"{name}-{number}", depends_on=name) for number in range(members)]
            Manifest.objects.schedule_many_dependent(ping, None, items, group=name)
            Manifest.objects.schedule_dependent(ping, f"{name}-join", None, depends_on=name, fan_in=True, group=name)
            manifest(name).trigger()
            run_only(bench, name)
            run_only(bench)
            Metadata.objects.pending().exclude(manifest_external_id=f"{name}-0").update(workflow="nobody.knows")
            with CaptureQueriesContext(connection) as captured:
                bench.work()
            return len(captured)

        assert cost("few", 2) == cost("many", 40)


def test_a_member_in_a_disabled_group_has_no_part_until_the_group_is_enabled(bench):
    Manifest.objects.schedule(ping, "parent", None, Every.hours(9))
    Manifest.objects.schedule_dependent(ping, "member", None, depends_on="parent", group="off")
    Manifest.objects.schedule_dependent(ping, "join", None, depends_on="parent", fan_in=True)
    ManifestGroup.objects.get(name="off").disable()
    assert bench.drain() == ["parent", "join"]
    ManifestGroup.objects.get(name="off").enable()
    assert bench.drain() == ["member"], "it has run without the member, and does not run again"
    assert executions_of("join")[0].source == Source.DEPENDENCY
