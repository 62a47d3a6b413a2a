"""Options of joins: how many arrivals are enough, until when it waits, and whether it runs again for late ones."""

from datetime import timedelta

import pytest

from chainsched import Every, ManifestItem
from chainsched.api import retry_letters
from chainsched.domain.joins import JoinOutcome
from chainsched.models import DeadLetter, Manifest
from chainsched.models.join_reports import describe_join
from tests.drive import executions_of, manifest
from tests.scenarios.graphs import (
    DONE,
    FAILED,
    GIVEN_UP,
    GROUP,
    check_all_closed,
    declare_join,
    end,
    end_all,
    make_diamond,
    next_run,
    runs,
    start,
    starts_of,
    state_of,
)
from tests.testapp.workflows import ping

pytestmark = [pytest.mark.django_db, pytest.mark.slow_on_postgres]


def begin(bench, **options):
    make_diamond(**options)
    end(bench, "head")


def outcome_in_first_run():
    return state_of("join", runs()[0]).outcome


class TestEnough:
    @pytest.mark.parametrize(
        ("at_least", "successes", "is_run"),
        [
            (1, 0, False),
            (1, 1, True),
            (2, 1, False),
            (2, 2, True),
            (3, 2, False),
            (3, 3, True),
            ("1%", 0, False),
            ("1%", 1, True),
            ("34%", 1, False),
            ("34%", 2, True),
            ("100%", 2, False),
        ],
    )
    def test_it_runs_if_enough_parents_matched_once_all_have_ended(self, bench, at_least, successes, is_run):
        begin(bench, at_least=at_least)
        for number, name in enumerate("abc"):
            assert starts_of(bench, "join") == 0
            end(bench, name, outcome=DONE if number < successes else GIVEN_UP)
        assert starts_of(bench, "join") == is_run
        assert outcome_in_first_run() == (JoinOutcome.FIRED if is_run else JoinOutcome.SHORT)
        end_all(bench)
        check_all_closed(bench)

    @pytest.mark.parametrize(("at_least", "members", "is_run"), [(2, "ab", True), (2, "a", False), ("60%", "a", False)])
    def test_a_fan_in_may_ask_for_enough_members_too(self, bench, at_least, members, is_run):
        begin(bench, depends_on="head", fan_in=True, at_least=at_least)
        for name in "abc":
            if name not in members:
                manifest(name).disable()
        assert end_all(bench) == [*members, *(["join"] if is_run else [])]
        check_all_closed(bench)


class TestPercent:
    """Of the edges that are older than the run and that still exist."""

    def test_a_parent_that_is_taken_out_in_mid_run_counts_no_longer(self, bench):
        begin(bench, at_least="67%")
        end(bench, "a", outcome=GIVEN_UP)
        end(bench, "b")
        declare_join(depends_on=["b", "c"], at_least="50%")
        end(bench, "c", outcome=GIVEN_UP)
        assert starts_of(bench, "join") == 1, "one of two"

    def test_removing_the_parents_that_failed_makes_the_rest_enough(self, bench):
        begin(bench, at_least="100%")
        end(bench, "a", outcome=GIVEN_UP)
        end(bench, "b")
        manifest("a").delete()
        end(bench, "c")
        assert starts_of(bench, "join") == 1
        end_all(bench)
        check_all_closed(bench)

    def test_a_parent_that_is_added_in_mid_run_counts_from_the_next_run_on(self, bench):
        begin(bench, at_least="100%")
        Manifest.objects.schedule_dependent(ping, "d", None, depends_on="head", **GROUP)
        declare_join(depends_on=["a", "b", "c", "d"], at_least="100%")
        manifest("d").disable()
        assert end_all(bench) == ["a", "b", "c", "join"]
        next_run(bench)
        assert end_all(bench) == ["a", "b", "c"]
        assert state_of("join", runs()[1]).outcome == JoinOutcome.SHORT
        manifest("d").enable()
        assert end_all(bench) == ["d", "join"]
        check_all_closed(bench)


class TestEdgesThatAreGone:
    """Only parents that the join still has count; what arrived from another one stands for none of them."""

    @pytest.mark.parametrize("gone", ["deleted", "named no longer"])
    @pytest.mark.parametrize("outcome", [DONE, GIVEN_UP])
    def test_a_parent_that_arrived_and_is_gone_stands_for_no_other(self, bench, gone, outcome):
        begin(bench)
        end(bench, "a")
        manifest("a").delete() if gone == "deleted" else declare_join(depends_on=["b", "c"])
        end(bench, "b")
        assert starts_of(bench, "join") == 0
        end(bench, "c", outcome=outcome)
        assert starts_of(bench, "join") == (outcome is DONE)
        if outcome is GIVEN_UP:
            assert "1 of 2 arrived, it needs 2, short" in describe_join(state_of("join", runs()[0])).in_words
        end_all(bench)
        check_all_closed(bench)

    def test_the_retry_of_a_parent_that_is_left_makes_it_enough(self, bench):
        begin(bench)
        end(bench, "a", "b")
        declare_join(depends_on=["b", "c"])
        end(bench, "c", outcome=GIVEN_UP)
        assert starts_of(bench, "join") == 0
        DeadLetter.objects.get().retry()
        assert end_all(bench) == ["c", "join"]
        check_all_closed(bench)

    @pytest.mark.parametrize(("at_least", "is_run"), [("100%", False), ("75%", True), (3, True)])
    def test_a_one_time_child_that_is_done_counts_as_one_of_those_that_a_fan_in_waits_for(
        self, bench, at_least, is_run
    ):
        """Three of four arrived: it has one member more than those that are there in the next run."""
        make_diamond(depends_on="head", fan_in=True, at_least=at_least)
        Manifest.objects.schedule_child(ping, "extra", None, parent="head", **GROUP)
        manifest("c").disable()
        end(bench, "head")
        end(bench, "extra", "a")
        start(bench)
        assert describe_join(state_of("join", runs()[0])).expected == 4
        end(bench, "b")
        assert starts_of(bench, "join") == is_run
        end_all(bench)
        check_all_closed(bench)


class TestShort:
    def test_a_retried_letter_that_makes_it_enough_lets_it_run(self, bench):
        begin(bench)
        end(bench, "a", "b", outcome=GIVEN_UP)
        end(bench, "c")
        assert starts_of(bench, "join") == 0
        first, second = DeadLetter.objects.order_by("id")
        first.retry()
        assert end_all(bench) == ["a"]
        assert outcome_in_first_run() == JoinOutcome.SHORT
        second.retry()
        assert end_all(bench) == ["b", "join"]
        assert executions_of("join")[0].run == runs()[0]
        assert outcome_in_first_run() == JoinOutcome.FIRED
        check_all_closed(bench)

    def test_what_follows_from_it_runs_then_too(self, bench):
        begin(bench)
        Manifest.objects.schedule_dependent(ping, "report", None, depends_on="join", **GROUP)
        end(bench, "a", outcome=GIVEN_UP)
        assert end_all(bench) == ["b", "c"]
        DeadLetter.objects.get().retry()
        assert end_all(bench) == ["a", "join", "report"]
        check_all_closed(bench)

    def test_an_acknowledged_letter_leaves_it_short(self, bench):
        begin(bench)
        end(bench, "a", outcome=GIVEN_UP)
        DeadLetter.objects.get().acknowledge()
        assert end_all(bench) == ["b", "c"]
        assert outcome_in_first_run() == JoinOutcome.SHORT
        check_all_closed(bench)

    @pytest.mark.parametrize(("at_least", "again"), [(20, False), (1, True), (20, True), (1, False)])
    def test_twenty_letters_that_are_retried_together_make_one_run(self, bench, at_least, again):
        names = [f"load-{number}" for number in range(20)]
        Manifest.objects.schedule(ping, "head", None, Every.hours(1), **GROUP)
        items = [ManifestItem(name, depends_on="head") for name in names]
        Manifest.objects.schedule_many_dependent(ping, None, items, **GROUP)
        declare_join(depends_on=names, at_least=at_least, again_on_late=again)
        end(bench, "head")
        end(bench, *names, outcome=GIVEN_UP)
        assert starts_of(bench, "join") == 0
        retry_letters(DeadLetter.objects.all())
        for name in names:
            assert starts_of(bench, "join") == 0
            end(bench, name)
        assert starts_of(bench, "join") == 1
        end(bench, "join")
        assert end_all(bench) == []
        check_all_closed(bench)


class TestLate:
    @pytest.mark.parametrize("again", [False, True])
    def test_it_runs_again_for_late_arrivals_only_if_it_asks_for_that(self, bench, again):
        begin(bench, at_least=1, again_on_late=again)
        end(bench, "a", "b", outcome=GIVEN_UP)
        assert end_all(bench) == ["c", "join"]
        retry_letters(DeadLetter.objects.all())
        end(bench, "a")
        assert starts_of(bench, "join") == 1, "the other one is open"
        end(bench, "b")
        assert starts_of(bench, "join") == (2 if again else 1)
        assert {join.run for join in executions_of("join")} == {runs()[0]}
        end_all(bench)
        check_all_closed(bench)

    def test_late_arrivals_one_after_the_other_make_a_run_each(self, bench):
        begin(bench, at_least=1, again_on_late=True)
        end(bench, "a", "b", outcome=GIVEN_UP)
        assert end_all(bench) == ["c", "join"]
        for letter, name in zip(DeadLetter.objects.order_by("id"), "ab", strict=True):
            letter.retry()
            assert end_all(bench) == [name, "join"]
        check_all_closed(bench)

    def test_a_late_arrival_while_it_runs_makes_one_more_run_afterwards(self, bench):
        begin(bench, at_least=1, again_on_late=True)
        end(bench, "a", outcome=GIVEN_UP)
        end(bench, "b", "c")
        assert starts_of(bench, "join") == 1
        DeadLetter.objects.get().retry()
        end(bench, "a")
        assert starts_of(bench, "join") == 1
        end(bench, "join")
        assert starts_of(bench, "join") == 2
        end_all(bench)
        check_all_closed(bench)

    def test_a_late_arrival_while_its_letter_waits_is_not_lost(self, bench):
        begin(bench, at_least=1, again_on_late=True)
        end(bench, "a", outcome=GIVEN_UP)
        end(bench, "b", "c")
        end(bench, "join", outcome=GIVEN_UP)
        late, own = DeadLetter.objects.order_by("id")
        late.retry()
        assert end_all(bench) == ["a"]
        own.acknowledge()
        assert end_all(bench) == ["join"]
        check_all_closed(bench)

    def test_a_retried_letter_opens_its_run_again(self, bench):
        begin(bench)
        end(bench, "a", outcome=GIVEN_UP)
        end_all(bench)
        check_all_closed(bench)
        DeadLetter.objects.get().retry()
        start(bench)
        assert runs()[0].closed_at is None
        assert end_all(bench) == ["a", "join"]
        check_all_closed(bench)

    def test_what_follows_runs_again_too(self, bench):
        begin(bench, at_least=1, again_on_late=True)
        Manifest.objects.schedule_dependent(ping, "report", None, depends_on="join", **GROUP)
        end(bench, "a", outcome=GIVEN_UP)
        assert end_all(bench) == ["b", "c", "join", "report"]
        DeadLetter.objects.get().retry()
        assert end_all(bench) == ["a", "join", "report"]
        check_all_closed(bench)

    def test_a_member_of_a_fan_in_that_is_enabled_late_is_a_late_arrival(self, bench):
        begin(bench, depends_on="head", fan_in=True, again_on_late=True)
        manifest("c").disable()
        assert end_all(bench) == ["a", "b", "join"]
        manifest("c").enable()
        assert end_all(bench) == ["c", "join"]
        check_all_closed(bench)


class TestEager:
    def test_it_runs_at_the_first_arrival_that_is_enough_and_the_rest_is_late(self, bench):
        begin(bench, at_least=2, eager=True)
        end(bench, "c")
        assert starts_of(bench, "join") == 0
        end(bench, "a")
        assert starts_of(bench, "join") == 1, "b is still running"
        assert end_all(bench) == ["b", "join"]
        check_all_closed(bench)

    def test_the_rest_makes_it_run_again_if_it_asks_for_that(self, bench):
        begin(bench, at_least=1, eager=True, again_on_late=True)
        end(bench, "a")
        end(bench, "join")
        end(bench, "b")
        assert starts_of(bench, "join") == 1, "c is open: late arrivals that are open together make one run"
        end(bench, "c")
        assert starts_of(bench, "join") == 2
        end_all(bench)
        check_all_closed(bench)

    def test_without_enough_it_waits_for_the_end_and_is_short(self, bench):
        begin(bench, at_least=2, eager=True)
        end(bench, "a")
        end(bench, "b", outcome=GIVEN_UP)
        assert starts_of(bench, "join") == 0
        end(bench, "c", outcome=GIVEN_UP)
        assert starts_of(bench, "join") == 0
        assert outcome_in_first_run() == JoinOutcome.SHORT
        retry_letters(DeadLetter.objects.all())
        end(bench, "b")
        assert starts_of(bench, "join") == 1
        assert end_all(bench) == ["c", "join"]
        check_all_closed(bench)

    def test_the_run_is_open_until_the_rest_has_ended(self, bench):
        begin(bench, at_least=1, eager=True)
        end(bench, "a")
        end(bench, "join")
        start(bench)
        assert runs()[0].closed_at is None
        end_all(bench)
        check_all_closed(bench)


class TestDeadline:
    MINUTES = 30

    def test_it_runs_with_what_has_arrived_although_nothing_else_happens(self, bench):
        begin(bench, at_least=2, deadline=timedelta(minutes=self.MINUTES))
        end(bench, "a", "b")
        start(bench)
        bench.advance(minutes=self.MINUTES, seconds=-1)
        bench.manage()
        assert bench.queued() == []
        bench.advance(seconds=1)
        bench.manage()
        assert bench.queued() == ["join"]
        assert state_of("join", runs()[0]).decided_at == bench.now
        assert sorted(end_all(bench)) == ["c", "join"]
        check_all_closed(bench)

    def test_the_workbench_stops_at_it(self, bench):
        begin(bench, at_least=1, deadline=self.MINUTES * 60)
        end(bench, "a", "b")
        start(bench)
        assert bench.run_for(minutes=40) == ["join"]
        (join,) = executions_of("join")
        assert join.created_at == runs()[0].created_at + timedelta(minutes=self.MINUTES)

    def test_it_is_short_if_too_few_have_arrived_and_runs_when_there_are_enough(self, bench):
        begin(bench, deadline=self.MINUTES * 60)
        end(bench, "a")
        start(bench)
        bench.advance(minutes=self.MINUTES)
        bench.manage()
        assert outcome_in_first_run() == JoinOutcome.SHORT
        end(bench, "b")
        assert starts_of(bench, "join") == 0
        end(bench, "c")
        assert starts_of(bench, "join") == 1
        end_all(bench)
        check_all_closed(bench)

    def test_it_waits_for_nothing_after_all_have_ended(self, bench):
        begin(bench, deadline=self.MINUTES * 60)
        assert end_all(bench) == ["a", "b", "c", "join"]
        bench.advance(minutes=self.MINUTES)
        assert end_all(bench) == []
        assert len(executions_of("join")) == 1

    def test_each_run_has_its_own(self, bench):
        begin(bench, at_least=1, deadline=90 * 60)
        end(bench, "a", outcome=FAILED)
        next_run(bench)
        first, second = runs()
        deadlines = [state_of("join", run).deadline_at for run in (first, second)]
        assert deadlines == [run.created_at + timedelta(minutes=90) for run in (first, second)]

    def test_a_fan_in_goes_on_without_slow_members_if_its_gate_matched(self, bench):
        begin(bench, depends_on="head", fan_in=True, deadline=self.MINUTES * 60)
        start(bench)
        bench.advance(minutes=self.MINUTES)
        assert starts_of(bench, "join") == 1
        end_all(bench)
        check_all_closed(bench)

    def test_a_fan_in_whose_head_is_slow_is_short_and_runs_after_its_members(self, bench):
        make_diamond(depends_on="head", fan_in=True, deadline=self.MINUTES * 60)
        start(bench)
        bench.advance(minutes=self.MINUTES)
        bench.manage()
        assert outcome_in_first_run() == JoinOutcome.SHORT
        assert end_all(bench) == ["head", "a", "b", "c", "join"]
        check_all_closed(bench)
