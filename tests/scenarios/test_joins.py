"""Joins: a manifest with several parents, or a fan-in, runs once in each run of its head, after what leads to it."""

from itertools import pairwise, permutations

import pytest

from chainsched import Every, ManifestItem, RunCondition
from chainsched.domain.joins import JoinOutcome
from chainsched.domain.outcomes import Finished
from chainsched.domain.states import ExecutionState
from chainsched.flow.run.claim import claim
from chainsched.flow.run.record import record
from chainsched.models import DeadLetter, DueNote, Manifest, Metadata, TakenOver
from chainsched.models.manifest_state import ManifestStateQuerySet
from tests.drive import executions_of, manifest
from tests.scenarios.graphs import (
    CANCELLED,
    DONE,
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
from tests.testapp.workflows import Slice, activate_copy, copy, ping

pytestmark = [pytest.mark.django_db, pytest.mark.slow_on_postgres]


@pytest.fixture
def diamond(bench):
    make_diamond()
    end(bench, "head")
    return bench


class TestOnceARun:
    @pytest.mark.parametrize("order", list(permutations("abc")), ids="".join)
    def test_it_runs_after_the_last_of_three_parents_in_any_order_of_ends(self, diamond, order):
        for number in (1, 2):
            for name in order[:2]:
                end(diamond, name)
                assert starts_of(diamond, "join") == number - 1
                assert state_of("join", runs()[-1]).outcome == JoinOutcome.WAITING
            end(diamond, order[2])
            assert starts_of(diamond, "join") == number
            end(diamond, "join")
            assert starts_of(diamond, "join") == number
            next_run(diamond)
        end_all(diamond)
        check_all_closed(diamond)

    def test_parents_that_end_in_one_batch_make_one_run(self, diamond):
        end(diamond, "a", "b", "c")
        assert starts_of(diamond, "join") == 1
        (join,) = executions_of("join")
        assert join.parent_execution_id == executions_of("c")[0].id, "the newest that arrived"
        assert join.root_execution_id == executions_of("head")[0].id
        assert join.run == runs()[0]

    def test_what_comes_after_it_runs_in_the_same_run(self, diamond):
        Manifest.objects.schedule_dependent(ping, "report", None, depends_on="join", **GROUP)
        end_all(diamond)
        next_run(diamond)
        end_all(diamond)
        first, second = runs()
        assert [run.run for run in executions_of("report")] == [first, second]
        check_all_closed(diamond)

    @pytest.mark.parametrize(
        ("condition", "outcome", "is_run"),
        [
            (RunCondition.SUCCESS, DONE, True),
            (RunCondition.SUCCESS, GIVEN_UP, False),
            (RunCondition.SUCCESS, CANCELLED, False),
            (RunCondition.FAILURE, GIVEN_UP, True),
            (RunCondition.FAILURE, DONE, False),
            (RunCondition.FAILURE, CANCELLED, False),
            (RunCondition.COMPLETION, DONE, True),
            (RunCondition.COMPLETION, GIVEN_UP, True),
            (RunCondition.COMPLETION, CANCELLED, True),
        ],
    )
    def test_an_end_arrives_if_it_matches_the_condition(self, diamond, condition, outcome, is_run):
        declare_join(run_condition=condition)
        end(diamond, "a", "b", "c", outcome=outcome)
        assert starts_of(diamond, "join") == is_run
        assert state_of("join", runs()[0]).outcome == (JoinOutcome.FIRED if is_run else JoinOutcome.SHORT)

    def test_one_parent_that_fails_makes_it_short_and_the_run_ends_without_it(self, diamond):
        end(diamond, "a", "c")
        end(diamond, "b", outcome=GIVEN_UP)
        assert end_all(diamond) == []
        state = state_of("join", runs()[0])
        assert (state.outcome, state.arrived) == (JoinOutcome.SHORT, 2)
        check_all_closed(diamond)


class TestWhatIsOpenUpstream:
    """No join runs while anything that leads to it in that run is open, though one arrival is enough for it."""

    @pytest.fixture
    def diamond(self, bench):
        make_diamond(at_least=1)
        end(bench, "head")
        return bench

    def test_a_parent_that_is_due(self, diamond):
        start(diamond)
        next_run(diamond)
        end(diamond, "a", "c")
        end(diamond, "a", "c")
        assert manifest("b").state.due_run == runs()[1].id, "it still runs for the first run"
        assert starts_of(diamond, "join") == 0
        end(diamond, "b")
        assert starts_of(diamond, "join") == 1
        assert is_running("b")
        end(diamond, "join")
        assert starts_of(diamond, "join") == 1
        end(diamond, "b")
        assert starts_of(diamond, "join") == 2

    def test_a_parent_that_is_queued(self, diamond):
        Manifest.objects.schedule(ping, "other", None, None, priority=31, group="full", group_max_active_jobs=1)
        Manifest.objects.schedule_dependent(ping, "b", None, depends_on="head", group="full")
        declare_join(group="behind", at_least=1)
        manifest("other").trigger()
        end(diamond, "a", "c")
        assert starts_of(diamond, "join") == 0
        assert diamond.queued() == ["b"]
        end(diamond, "other")
        end(diamond, "b")
        assert starts_of(diamond, "join") == 1

    def test_a_parent_that_is_pending(self, diamond):
        Manifest.objects.schedule_dependent(copy, "b", Slice("t"), depends_on="head", **GROUP)
        diamond.manage()
        diamond.dispatch()
        claim(process=diamond.process, workflows=["testapp.ping"], limit=10, now=diamond.now)
        done = Metadata.objects.in_progress().values_list("id", flat=True)
        record([Finished(id_, DONE) for id_ in done], by=diamond.process, now=diamond.now)
        diamond.manage()
        assert [run.state for run in executions_of("b")] == [ExecutionState.PENDING]
        assert diamond.queued() == []
        end(diamond, "b")
        assert starts_of(diamond, "join") == 1

    def test_a_parent_that_awaits_a_retry(self, diamond):
        end(diamond, "a", "c")
        end(diamond, "b", outcome=FAILED)
        assert starts_of(diamond, "join") == 0
        assert diamond.queued() == ["b"]
        diamond.advance(minutes=10)
        end(diamond, "b")
        assert starts_of(diamond, "join") == 1

    def test_a_link_of_a_chain_that_is_still_a_note(self, diamond, monkeypatch):
        Manifest.objects.schedule_dependent(ping, "tail", None, depends_on="b", **GROUP)
        declare_join(depends_on=["a", "c", "tail"], at_least=1)
        end_all(diamond)
        before = len(executions_of("join"))
        next_run(diamond)
        end(diamond, "a", "c")
        with monkeypatch.context() as held:
            held.setattr(ManifestStateQuerySet, "lock_free", lambda *_: [])
            end(diamond, "b")
            assert starts_of(diamond, "join") == before
            assert DueNote.objects.get().child_id == manifest("tail").id
        assert starts_of(diamond, "join") == before
        end(diamond, "tail")
        assert starts_of(diamond, "join") == before + 1

    def test_a_grandparent_and_what_it_may_still_lead_to(self, bench):
        chain = bench.schedules.schedule(ping, "head", None, Every.hours(1), **GROUP)
        chain.include(ping, "slow", **GROUP).then_include(ping, "after-slow", **GROUP)
        chain.include(ping, "quick", **GROUP)
        chain.include(ping, "join", depends_on=["after-slow", "quick"], at_least=1, **GROUP)
        bench.seed()
        end(bench, "head")
        end(bench, "quick")
        assert starts_of(bench, "join") == 0, "one is enough, but the other may still come"
        end(bench, "slow")
        assert starts_of(bench, "join") == 0
        end(bench, "after-slow")
        assert starts_of(bench, "join") == 1


class TestSlowerThanTheHead:
    def test_two_members_in_opposite_phase_hold_it_up_for_no_more_than_four_periods(self, bench):
        chain = bench.schedules.schedule(ping, "head", None, Every.minutes(10), **GROUP)
        chain.include(ping, "even", **GROUP).include(ping, "odd", **GROUP)
        chain.include(ping, "join", fan_in=True, **GROUP)
        bench.seed()
        periods, joined_in = 16, []
        for period in range(periods):
            end(bench, "head")
            slow = "odd" if period % 2 else "even"
            if period > 1:
                end(bench, slow)
            start(bench)
            if is_running("join"):
                end(bench, "join")
                joined_in.append(period)
            assert period < 1 or (is_running("even") and is_running("odd"))
            bench.advance(minutes=10)
        assert joined_in
        assert all(later - earlier <= 4 for earlier, later in pairwise([0, *joined_in, periods]))
        Manifest.objects.filter(external_id="head").update(is_enabled=False)
        end_all(bench)
        assert {len(found) for found in coverage("join").values()} == {1}
        check_all_closed(bench)

    def test_a_join_that_is_slow_itself_covers_each_run_once(self, diamond):
        for _ in range(3):
            end(diamond, "a", "b", "c")
            next_run(diamond)
        assert starts_of(diamond, "join") == 1
        end_all(diamond)
        found = coverage("join")
        assert len(found) == 4
        assert {len(executions) for executions in found.values()} == {1}
        check_all_closed(diamond)

    def test_an_execution_names_all_runs_that_it_stood_for(self, diamond):
        for _ in range(3):
            end(diamond, "a", "b", "c")
            next_run(diamond)
        end(diamond, "join")
        assert starts_of(diamond, "join") == 2
        first, second, third, fourth = runs()
        merged = executions_of("join")[1]
        assert merged.run == third
        assert list(TakenOver.objects.values_list("run_id", "execution_id")) == [(second.id, merged.id)]
        assert merged in second.executions()
        assert merged in third.executions()
        assert merged not in first.executions()
        assert merged not in fourth.executions()
        assert merged.root_execution_id == executions_of("head")[2].id


class TestGates:
    @pytest.mark.parametrize("fan_in", [True, "tree"])
    @pytest.mark.parametrize(
        ("condition", "outcome", "names"),
        [
            (RunCondition.SUCCESS, GIVEN_UP, []),
            (RunCondition.COMPLETION, GIVEN_UP, ["join"]),
            (RunCondition.FAILURE, GIVEN_UP, ["join"]),
            (RunCondition.FAILURE, DONE, ["a", "b"]),
            (RunCondition.SUCCESS, DONE, ["a", "b", "join"]),
            (RunCondition.SUCCESS, CANCELLED, []),
            (RunCondition.COMPLETION, CANCELLED, ["join"]),
        ],
    )
    def test_a_fan_in_runs_only_if_the_head_ended_as_its_condition_says(self, bench, fan_in, condition, outcome, names):
        chain = bench.schedules.schedule(ping, "head", None, Every.hours(1), **GROUP)
        chain.include(ping, "a", **GROUP).include(ping, "b", **GROUP)
        chain.include(ping, "join", fan_in=fan_in, run_condition=condition, **GROUP)
        bench.seed()
        end(bench, "head", outcome=outcome)
        assert end_all(bench) == names
        is_joined = "join" in names
        assert state_of("join", runs()[0]).outcome == (JoinOutcome.FIRED if is_joined else JoinOutcome.SHORT)
        check_all_closed(bench)

    @pytest.mark.parametrize("options", [{"fan_in": True}, {"fan_in": "tree"}, {"depends_on": ["a", "b"]}])
    def test_a_member_that_is_run_by_hand_fires_no_continuation(self, bench, options):
        chain = bench.schedules.schedule(ping, "head", None, None, **GROUP)
        chain.include(ping, "a", **GROUP).include(ping, "b", **GROUP).include(ping, "join", **options, **GROUP)
        bench.seed()
        for names in (["a"], ["b"], ["a", "b"]):
            for name in names:
                manifest(name).trigger()
            assert sorted(end_all(bench)) == names
        check_all_closed(bench)

    def test_all_members_by_hand_beside_a_run_of_the_head_fire_it_for_that_run_alone(self, diamond):
        for name in "abc":
            start(diamond)
            manifest(name).trigger()
        assert end_all(diamond).count("join") == 1
        assert len(executions_of("a")) == 2
        check_all_closed(diamond)


class TestLetters:
    def test_a_letter_and_its_retry_are_one_arrival(self, diamond):
        """With COMPLETION the letter arrives already; the success of its retry is the same edge in the same run."""
        declare_join(run_condition=RunCondition.COMPLETION, at_least=2)
        for name in "bc":
            manifest(name).disable()
        end(diamond, "a", outcome=GIVEN_UP)
        assert end_all(diamond) == []
        DeadLetter.objects.get().retry()
        assert end_all(diamond) == ["a"], "one arrival is not enough"
        assert state_of("join", runs()[0]).arrived == 1
        manifest("b").enable()
        assert end_all(diamond) == ["b", "join"]
        check_all_closed(diamond)

    def test_a_letter_whose_retry_fails_too_is_one_arrival(self, diamond):
        declare_join(run_condition=RunCondition.FAILURE, at_least=2)
        end(diamond, "b", "c")
        for _ in range(3):
            end(diamond, "a", outcome=GIVEN_UP)
            assert starts_of(diamond, "join") == 0
            DeadLetter.objects.awaiting().get().retry()
        assert end_all(diamond) == ["a"]
        assert state_of("join", runs()[0]).arrived == 1
        check_all_closed(diamond)


class TestNestedJoins:
    @pytest.fixture
    def nested(self, bench):
        chain = bench.schedules.schedule(ping, "head", None, Every.hours(1), **GROUP)
        for name in "abc":
            chain = chain.include(ping, name, **GROUP)
        chain = chain.include(ping, "inner", depends_on=["a", "b"], **GROUP)
        chain.include(ping, "outer", depends_on=["inner", "c"], at_least=1, **GROUP)
        bench.seed()
        end(bench, "head")
        return bench

    def test_the_outer_one_waits_for_an_undecided_inner_one(self, nested):
        end(nested, "c")
        end(nested, "a")
        assert starts_of(nested, "outer") == 0
        end(nested, "b")
        assert starts_of(nested, "outer") == 0, "the inner one is decided, and runs"
        end(nested, "inner")
        assert starts_of(nested, "outer") == 1
        end(nested, "outer")
        check_all_closed(nested)

    def test_the_outer_one_goes_on_when_the_inner_one_is_short(self, nested):
        end(nested, "c")
        end(nested, "a", outcome=GIVEN_UP)
        assert starts_of(nested, "outer") == 0
        end(nested, "b")
        assert starts_of(nested, "outer") == 1
        assert starts_of(nested, "inner") == 0
        end(nested, "outer")
        check_all_closed(nested)

    def test_a_retried_letter_lets_the_inner_one_run_and_the_outer_one_does_not_run_again(self, nested):
        end(nested, "a", outcome=GIVEN_UP)
        assert end_all(nested) == ["b", "c", "outer"]
        DeadLetter.objects.get().retry()
        assert end_all(nested) == ["a", "inner"]
        check_all_closed(nested)

    def test_a_fan_in_waits_for_a_join_among_its_siblings(self, bench):
        chain = bench.schedules.schedule(ping, "head", None, Every.hours(1), **GROUP)
        chain.include(ping, "a", **GROUP).include(ping, "b", **GROUP)
        chain.include(ping, "pair", depends_on=["a", "b"], **GROUP)
        chain.include(ping, "last", fan_in="tree", **GROUP)
        bench.seed()
        for _ in range(2):
            assert end_all(bench) == ["head", "a", "b", "pair", "last"]
            bench.advance(hours=1)


class TestTrees:
    LINKS = ("first", "second", "third")

    @pytest.fixture
    def chains(self, bench):
        """20 chains of three below a head, and a join over the tree."""
        chain = bench.schedules.schedule(ping, "head", None, Every.hours(1), **GROUP)
        above = dict.fromkeys(range(20), "head")
        for link in self.LINKS:
            items = [ManifestItem(f"{link}-{number}", depends_on=above[number]) for number in range(20)]
            chain = chain.include_many(ping, None, items, **GROUP)
            above = {number: f"{link}-{number}" for number in range(20)}
        chain.include(ping, "join", fan_in="tree", **GROUP)
        bench.seed()
        end(bench, "head")
        return bench

    def names(self, link, numbers=range(20)):
        return [f"{link}-{number}" for number in numbers]

    def test_it_waits_for_all_sixty(self, chains):
        for link in self.LINKS:
            end(chains, *self.names(link, range(19)))
            assert starts_of(chains, "join") == 0
        for link in self.LINKS:
            assert starts_of(chains, "join") == 0
            end(chains, f"{link}-19")
        assert starts_of(chains, "join") == 1
        end(chains, "join")
        check_all_closed(chains)

    def test_a_chain_that_breaks_in_its_first_link_does_not_hold_it_up(self, chains):
        end(chains, "first-7", outcome=GIVEN_UP)
        end(chains, *self.names("first", [number for number in range(20) if number != 7]))
        for link in self.LINKS[1:]:
            assert starts_of(chains, "join") == 0
            end(chains, *self.names(link, [number for number in range(20) if number != 7]))
        assert starts_of(chains, "join") == 1
        assert state_of("join", runs()[0]).arrived == 19
        end(chains, "join")
        check_all_closed(chains)

    def test_a_new_link_is_waited_for_from_then_on(self, chains):
        end_all(chains)
        Manifest.objects.schedule_dependent(ping, "fourth", None, depends_on="third-0", **GROUP)
        end_all(chains)
        next_run(chains)
        ran = end_all(chains)
        assert ran.index("fourth") < ran.index("join")
        check_all_closed(chains)


class TestWorkThatAppearsInARun:
    @pytest.mark.parametrize("fan_in", [True, "tree"])
    def test_a_dormant_child_that_the_head_activates_is_waited_for(self, bench, fan_in):
        chain = bench.schedules.schedule(activate_copy, "head", None, Every.hours(1), **GROUP)
        chain.include(copy, "child", Slice("t"), dormant=True, **GROUP).include(ping, "a", **GROUP)
        chain.include(ping, "join", fan_in=fan_in, **GROUP)
        bench.seed()
        bench.turn()
        end(bench, "a")
        assert is_running("child")
        assert starts_of(bench, "join") == 0
        end(bench, "child")
        assert starts_of(bench, "join") == 1
        end(bench, "join")
        check_all_closed(bench)

    def test_a_dormant_child_of_a_member_holds_the_joins_behind_it(self, bench):
        chain = bench.schedules.schedule(ping, "head", None, Every.hours(1), **GROUP)
        chain.include(ping, "a", **GROUP)
        chain = chain.include(activate_copy, "member", None, **GROUP)
        chain.then_include(copy, "child", Slice("t"), dormant=True, **GROUP)
        chain.include(ping, "join", depends_on=["a", "child"], at_least=1, **GROUP)
        bench.seed()
        bench.turn()
        assert sorted(bench.turn()) == ["a", "member"]
        assert starts_of(bench, "join") == 0
        end(bench, "child")
        assert starts_of(bench, "join") == 1
        end(bench, "join")
        check_all_closed(bench)

    def test_a_dormant_child_that_no_run_activates_holds_nothing_up(self, bench):
        chain = bench.schedules.schedule(ping, "head", None, Every.hours(1), **GROUP)
        chain.include(copy, "child", Slice("t"), dormant=True, **GROUP).include(ping, "a", **GROUP)
        chain.include(ping, "join", fan_in=True, **GROUP)
        bench.seed()
        assert end_all(bench) == ["head", "a", "join"]
        manifest("child").activate(Slice("u"))
        assert end_all(bench) == ["child"], "by hand it is a run of its own"
        check_all_closed(bench)

    @pytest.mark.parametrize("fan_in", [True, "tree"])
    def test_a_one_time_child_that_a_running_parent_schedules_is_waited_for(self, bench, fan_in):
        chain = bench.schedules.schedule(ping, "head", None, Every.hours(1), **GROUP)
        chain.include(ping, "a", **GROUP).include(ping, "join", fan_in=fan_in, **GROUP)
        bench.seed()
        start(bench)
        assert is_running("head")
        Manifest.objects.schedule_child(ping, "extra", None, parent="head", **GROUP)
        end(bench, "head")
        end(bench, "a")
        assert is_running("extra")
        assert starts_of(bench, "join") == 0
        end(bench, "extra")
        assert starts_of(bench, "join") == 1
        end(bench, "join")
        next_run(bench)
        assert end_all(bench) == ["a", "join"], "it is done"
        check_all_closed(bench)

    def test_a_manifest_without_children_that_schedules_one_begins_a_run_when_it_ends(self, bench):
        bench.schedules.schedule(ping, "head", None, Every.hours(1), **GROUP)
        bench.seed()
        start(bench)
        assert runs() == []
        Manifest.objects.schedule_child(ping, "extra", None, parent="head", **GROUP)
        end(bench, "head")
        assert end_all(bench) == ["extra"]
        (run,) = runs()
        assert executions_of("extra")[0].run == run
        check_all_closed(bench)
