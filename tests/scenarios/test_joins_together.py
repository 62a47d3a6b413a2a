"""Joins of joins and joins in trees, whose members are slow, fail, move or are switched off; each story ends clean."""

from typing import Any

import pytest

from chainsched import Every, RunCondition
from chainsched.domain.joins import JoinOutcome
from chainsched.domain.results import Answer
from chainsched.flow.maintain.fsck import run_fsck
from chainsched.models import DeadLetter, Dependency, JoinState, Manifest, ManifestGroup, Metadata
from tests.drive import executions_of, manifest
from tests.scenarios.graphs import (
    FAILED,
    GIVEN_UP,
    GROUP,
    check_all_closed,
    coverage,
    declare_join,
    end,
    end_all,
    is_running,
    make_diamond,
    next_run,
    runs,
    start,
    starts_of,
    state_of,
)
from tests.testapp.workflows import ping

pytestmark = [pytest.mark.django_db, pytest.mark.slow_on_postgres]


def below(name: str, parents: str | list[str], **options: Any) -> None:
    Manifest.objects.schedule_dependent(ping, name, None, depends_on=parents, **{**GROUP, **options})


class TestThreeLevels:
    """j1 after a and b; j2 after j1 or c; j3 after two of j1, j2 and d, as soon as they are there."""

    @pytest.fixture
    def levels(self, bench):
        Manifest.objects.schedule(ping, "head", None, Every.hours(1), **GROUP)
        for name in "abcd":
            below(name, "head")
        below("j1", ["a", "b"])
        below("j2", ["j1", "c"], at_least=1)
        below("j3", ["j1", "j2", "d"], at_least=2, eager=True)
        return bench

    def test_an_eager_one_goes_on_without_a_short_one_which_runs_late(self, levels):
        end(levels, "head")
        end(levels, "a", outcome=GIVEN_UP)
        end(levels, "d")
        end(levels, "b", "c")
        assert (starts_of(levels, "j2"), starts_of(levels, "j3")) == (1, 0)
        end(levels, "j2")
        assert starts_of(levels, "j3") == 1
        assert state_of("j1", *runs()).outcome == JoinOutcome.SHORT
        end(levels, "j3")
        check_all_closed(levels)
        DeadLetter.objects.get().retry()
        assert end_all(levels) == ["a", "j1"]
        check_all_closed(levels)

    def test_inner_ones_that_are_disabled_have_no_part_and_run_once_for_all_runs_that_they_missed(self, levels):
        for name in ("j1", "j2"):
            manifest(name).disable()
        for _ in range(2):
            assert end_all(levels) == ["head", "a", "b", "c", "d"]
            check_all_closed(levels)
            levels.advance(hours=1)
        Manifest.objects.filter(external_id="head").update(is_enabled=False)
        manifest("j1").enable()
        assert end_all(levels) == ["j1", "j3"]
        manifest("j2").enable()
        assert end_all(levels) == ["j2"]
        for name in ("j1", "j2", "j3"):
            assert len({tuple(found) for found in coverage(name).values()}) == 1, "one for both"
        check_all_closed(levels)


class TestSeveralRunsInOneItem:
    @pytest.fixture
    def given_up(self, bench):
        """After the first run "c" ran once for three runs, and failed for good."""
        make_diamond()
        start(bench)
        end(bench, "head")
        end(bench, "a", "b")
        for _ in range(3):
            next_run(bench)
            end(bench, "a", "b")
        end(bench, "c")
        end(bench, "c", outcome=GIVEN_UP)
        assert end_all(bench) == ["join"]
        return bench

    def test_the_retry_of_its_letter_makes_the_join_run_once_for_all_of_them(self, given_up):
        assert [run.state for run in runs()] == ["closed"] * 4
        DeadLetter.objects.get().retry()
        start(given_up)
        assert [run.state for run in runs()] == ["closed", "open", "open", "open"]
        assert end_all(given_up) == ["c", "join"]
        assert {len(found) for found in coverage("join").values()} == {1}
        check_all_closed(given_up)

    def test_so_does_a_run_from_its_execution_after_an_acknowledgement(self, given_up):
        DeadLetter.objects.get().acknowledge()
        failed = executions_of("c")[-1]
        assert (failed.run_from_here(), failed.run_from_here()) == (Answer.QUEUED, Answer.BUSY)
        assert end_all(given_up) == ["c", "join"]
        assert {len(found) for found in coverage("join").values()} == {1}
        check_all_closed(given_up)

    def test_its_runs_but_one_may_be_cancelled(self, given_up):
        for run in runs()[:1:-1]:
            run.cancel()
        DeadLetter.objects.get().retry()
        assert end_all(given_up) == ["c", "join"]
        assert [len(found) for found in coverage("join").values()] == [1, 1, 0, 0]
        check_all_closed(given_up)


class TestRunFromHere:
    def test_what_the_manifest_is_due_for_and_was_asked_for_stays(self, bench):
        make_diamond()
        end_all(bench)
        manifest("a").disable()
        next_run(bench)
        assert end_all(bench) == ["b", "c"]
        manifest("a").trigger(delay=600)
        first, second = runs()
        executions_of("a")[0].run_from_here()
        assert end_all(bench) == ["a"]
        manifest("a").enable()
        assert end_all(bench) == ["a", "join"]
        assert [run.run for run in executions_of("a")] == [first, first, second]
        bench.advance(minutes=10)
        assert end_all(bench) == ["a"]
        check_all_closed(bench)


@pytest.mark.parametrize("stage", ["due", "queued", "retry"])
def test_a_member_that_moves_into_a_disabled_group_has_no_part_until_it_moves_back(bench, stage):
    make_diamond(depends_on="head", fan_in=True)
    declare_join(depends_on="head", fan_in=True, group="behind")
    Manifest.objects.schedule(ping, "x", None, None, group="off")
    ManifestGroup.objects.get(name="off").disable()
    end(bench, "head")
    if stage == "queued":
        bench.manage()
    if stage == "retry":
        end(bench, "c", outcome=FAILED)
    below("c", "head", group="off")
    assert end_all(bench) == ["a", "b", "join"]
    check_all_closed(bench)
    below("c", "head")
    bench.advance(minutes=10)
    assert end_all(bench) == ["c"]
    check_all_closed(bench)


def test_a_tree_with_joins_and_fan_ins_inside_waits_for_the_last_of_them(bench):
    Manifest.objects.schedule(ping, "head", None, Every.hours(1), **GROUP)
    below("tree", "head", fan_in="tree")
    below("a", "head")
    below("b", "head")
    below("a2", "a")
    below("pair", ["a2", "b"])
    below("inner", "a", fan_in="tree")
    below("siblings", "a", fan_in=True)
    below("after", "pair")
    leaves = Dependency.objects.filter(child__external_id="inner", is_gate=False).order_by("parent__external_id")
    assert list(leaves.values_list("parent__external_id", flat=True)) == ["after", "siblings"]
    assert end_all(bench) == ["head", "a", "b", "a2", "pair", "siblings", "after", "inner", "tree"]
    next_run(bench)
    end(bench, "a", outcome=GIVEN_UP)
    assert end_all(bench) == ["b", "tree"]
    check_all_closed(bench)
    DeadLetter.objects.get().retry()
    assert sorted(end_all(bench)) == ["a", "a2", "after", "inner", "pair", "siblings"], "each once, late for the tree"
    check_all_closed(bench)
    for name in ("siblings", "a2"):
        manifest(name).delete()
    bench.advance(hours=1)
    assert end_all(bench)[-1] == "tree"
    check_all_closed(bench)


def test_a_one_time_child_that_is_done_is_due_in_no_later_run(bench):
    make_diamond()
    Manifest.objects.schedule_child(ping, "once", None, parent="a", **GROUP)
    assert "once" in end_all(bench)
    for _ in range(2):
        next_run(bench)
        assert end_all(bench) == ["a", "b", "c", "join"]
        assert manifest("once").state.due_run is None
    assert not is_running("once")
    assert Metadata.objects.filter(manifest_external_id="once").count() == 1
    check_all_closed(bench)


class TestOptionsThatChangeInMidRun:
    def test_another_condition_counts_for_what_ended_before(self, bench):
        make_diamond()
        end(bench, "head")
        end(bench, "a", outcome=GIVEN_UP)
        declare_join(run_condition=RunCondition.COMPLETION)
        assert end_all(bench) == ["b", "c", "join"]
        DeadLetter.objects.get().retry()
        assert end_all(bench) == ["a"]
        check_all_closed(bench)

    @pytest.mark.parametrize("fan_in", [True, "tree"])
    def test_a_gate_that_matches_only_by_its_new_condition_opens_with_the_retry(self, bench, fan_in):
        make_diamond(depends_on="head", fan_in=fan_in)
        end(bench, "head", outcome=GIVEN_UP)
        declare_join(depends_on="head", fan_in=fan_in, run_condition=RunCondition.COMPLETION)
        DeadLetter.objects.get().retry()
        assert end_all(bench) == ["head", "a", "b", "c", "join"]
        check_all_closed(bench)


class TestParentsThatChangeWhileItIsDue:
    """What is under way ends as it was opened, in the runs that it was opened for."""

    @pytest.fixture
    def due_for_the_second_run(self, bench):
        make_diamond(depends_on="a")
        end(bench, "head")
        end(bench, "a")
        start(bench)
        next_run(bench)
        end(bench, "a", "b", "c")
        assert manifest("join").state.due_run == runs()[1].id
        return bench

    @pytest.mark.parametrize("options", [{"depends_on": ["a", "b"]}, {"depends_on": "head", "fan_in": True}])
    def test_a_dependent_that_becomes_a_join_runs_for_it(self, due_for_the_second_run, options):
        declare_join(**options)
        assert end_all(due_for_the_second_run).count("join") == 2
        assert [len(found) for found in coverage("join").values()] == [1, 1]
        check_all_closed(due_for_the_second_run)

    def test_a_join_that_becomes_a_plain_dependent_runs_for_it(self, bench):
        make_diamond()
        end_all(bench)
        start(bench)
        next_run(bench)
        manifest("join").trigger()
        start(bench)
        end(bench, "a", "b", "c")
        bench.manage()
        assert manifest("join").state.due_run == runs()[1].id
        declare_join(depends_on="a")
        assert end_all(bench).count("join") == 2
        assert [len(found) for found in list(coverage("join").values())[:2]] == [1, 1]
        check_all_closed(bench)

    def test_another_single_parent_is_compared_anew(self, due_for_the_second_run):
        declare_join(depends_on="b")
        assert manifest("join").state.due_run is None


def test_a_report_counts_parents_that_arrived_and_were_taken_out_since(bench):
    make_diamond()
    end_all(bench)
    manifest("a").delete()
    (join,) = runs()[0].describe().joins
    assert join.in_words.endswith(": 3 of 3 arrived, it needs 3, fired")


def test_a_description_says_that_the_run_was_cancelled_since_it_was_loaded(bench):
    make_diamond()
    end(bench, "head")
    (run,) = runs()
    run.cancel(reason="wrong day")
    assert run.describe().cancel_reason == "wrong day"


def test_a_run_without_the_row_of_its_end_is_found_and_closed(bench):
    make_diamond()
    end_all(bench)
    next_run(bench)
    JoinState.objects.filter(run=runs()[1].id).delete()
    found = [finding for finding in run_fsck(now=bench.now, repair=True) if finding.check == "run_end"]
    assert [(finding.evidence, finding.is_repaired) for finding in found] == [
        ("the row is missing that says when it ends", True)
    ]
    assert runs()[1].closed_at == bench.now
    assert not [finding for finding in run_fsck(now=bench.now) if finding.check == "run_end"]
