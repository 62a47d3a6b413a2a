"""Whether a join runs in a run, waits, or is short: a table of cases each for what it needs and how it is decided."""

from __future__ import annotations

from typing import Any

import pytest

from chainsched.domain.joins import Decision, FanIn, Join, JoinOutcome, Standing, decide, may_decide

ALL = Join()
FAN_IN = Join(fan_in=FanIn.SIBLINGS)
EAGER = Join(at_least=2, is_eager=True)
AGAIN = Join(runs_again_on_late=True)
GONE = Join(is_gone=True)

FIRES = Decision(JoinOutcome.FIRED, fires=True)
SHORT = Decision(JoinOutcome.SHORT, gives_back=True)
CANCELLED = Decision(JoinOutcome.CANCELLED, gives_back=True)
FIRES_LATE = Decision(JoinOutcome.FIRED, fires=True, is_new=False)
KNOWS_LATE = Decision(JoinOutcome.FIRED, is_new=False)
WAITS = None


@pytest.mark.parametrize(
    ("join", "edges", "need"),
    [
        pytest.param(Join(), 3, 3, id="all of its parents"),
        pytest.param(Join(), 0, 0, id="all of none"),
        pytest.param(Join(at_least=2), 3, 2, id="a number"),
        pytest.param(Join(at_least=3), 2, 2, id="a number above the edges that are left"),
        pytest.param(Join(at_least_percent=80), 5, 4, id="a percentage"),
        pytest.param(Join(at_least_percent=80), 4, 4, id="a percentage is rounded up"),
        pytest.param(Join(at_least_percent=1), 3, 1, id="a small percentage needs one"),
        pytest.param(Join(at_least_percent=100), 7, 7, id="all, in percent"),
        pytest.param(Join(at_least_percent=50), 0, 0, id="a percentage of none"),
        pytest.param(Join(fan_in=FanIn.SIBLINGS), 20, 0, id="a fan-in over siblings"),
        pytest.param(Join(fan_in=FanIn.TREE), 20, 0, id="a fan-in over a tree"),
        pytest.param(Join(fan_in=FanIn.SIBLINGS, at_least=3), 20, 3, id="a fan-in with a number"),
        pytest.param(Join(fan_in=FanIn.TREE, at_least_percent=10), 20, 2, id="a fan-in with a percentage"),
    ],
)
def test_a_join_needs_so_many_of_its_edges(join, edges, need):
    assert join.need(edges) == need


@pytest.mark.parametrize("edges", range(1, 30))
@pytest.mark.parametrize("percent", [1, 33, 50, 80, 99, 100])
def test_a_percentage_is_the_least_number_that_reaches_it(edges, percent):
    need = Join(at_least_percent=percent).need(edges)
    assert need * 100 >= percent * edges
    assert (need - 1) * 100 < percent * edges


def standing(outcome: str = "waiting", **stated: Any) -> Standing:
    defaults = {"open": 0, "arrived": 0, "is_gated": False, "judged": 0, "firings": 0}
    return Standing(outcome=JoinOutcome(outcome), **{**defaults, **stated})


CASES = [
    # All of three parents.
    pytest.param(standing(open=1, arrived=2), ALL, WAITS, id="something is open"),
    pytest.param(standing(open=1, arrived=3), ALL, WAITS, id="all arrived, something is open"),
    pytest.param(standing(arrived=3), ALL, FIRES, id="all arrived"),
    pytest.param(standing(arrived=2), ALL, SHORT, id="one is missing"),
    pytest.param(standing(), ALL, SHORT, id="nothing arrived"),
    pytest.param(standing(arrived=4), ALL, FIRES, id="an edge was removed after it arrived"),
    # A number.
    pytest.param(standing(arrived=2), Join(at_least=2), FIRES, id="enough of them"),
    pytest.param(standing(arrived=1), Join(at_least=2), SHORT, id="fewer than enough"),
    pytest.param(standing(open=1, arrived=2), Join(at_least=2), WAITS, id="enough, but not eager"),
    # Eager.
    pytest.param(standing(open=1, arrived=2), EAGER, FIRES, id="eager, at the second arrival"),
    pytest.param(standing(open=2, arrived=1), EAGER, WAITS, id="eager, before the second arrival"),
    pytest.param(standing(arrived=1), EAGER, SHORT, id="eager, and nothing open is left"),
    # A deadline.
    pytest.param(standing(open=1, arrived=3, is_past_deadline=True), ALL, FIRES, id="past its deadline, with enough"),
    pytest.param(standing(open=1, arrived=2, is_past_deadline=True), ALL, SHORT, id="past its deadline, one missing"),
    # A fan-in.
    pytest.param(standing(is_gated=True), FAN_IN, FIRES, id="a fan-in without members"),
    pytest.param(standing(arrived=3, is_gated=True), FAN_IN, FIRES, id="a fan-in whose gate matched"),
    pytest.param(standing(arrived=3), FAN_IN, SHORT, id="a fan-in whose gate did not match"),
    pytest.param(standing(open=1, arrived=3, is_gated=True), FAN_IN, WAITS, id="a fan-in with an open member"),
    pytest.param(
        standing(arrived=1, is_gated=True), Join(at_least=2, fan_in=FanIn.SIBLINGS), SHORT, id="too few members"
    ),
    pytest.param(
        standing(open=2, is_gated=True), Join(fan_in=FanIn.SIBLINGS, is_eager=True), FIRES, id="an eager fan-in"
    ),
    # A run that was cancelled, a join that was removed.
    pytest.param(standing(open=5, arrived=3, is_run_cancelled=True), ALL, CANCELLED, id="the run was cancelled"),
    pytest.param(standing(arrived=3, is_run_cancelled=True), EAGER, CANCELLED, id="cancelled before it was decided"),
    pytest.param(standing("fired", arrived=3, is_run_cancelled=True), AGAIN, WAITS, id="cancelled after it ran"),
    pytest.param(standing(arrived=3), GONE, CANCELLED, id="the join was removed"),
    pytest.param(standing("short", arrived=3), GONE, WAITS, id="removed after it was decided"),
    # Late arrivals.
    pytest.param(standing("short", arrived=3, judged=2), ALL, FIRES_LATE, id="short, and now enough"),
    pytest.param(standing("short", arrived=2, judged=1), ALL, WAITS, id="short, and still one is missing"),
    pytest.param(standing("short", open=1, arrived=3, judged=2), ALL, WAITS, id="enough, a late one is still open"),
    pytest.param(standing("short", arrived=3, judged=3), ALL, WAITS, id="nothing new arrived"),
    pytest.param(standing("short", open=1, arrived=2, judged=1), EAGER, FIRES_LATE, id="eager, short, now enough"),
    pytest.param(standing("fired", arrived=3, judged=2, firings=1), Join(at_least=2), KNOWS_LATE, id="it has run"),
    pytest.param(standing("fired", arrived=3, judged=2, firings=1), EAGER, KNOWS_LATE, id="the rest of an eager one"),
    pytest.param(
        standing("fired", arrived=3, judged=2, firings=1),
        Join(at_least=2, runs_again_on_late=True),
        FIRES_LATE,
        id="it has run, and runs again on late",
    ),
    pytest.param(
        standing("fired", open=1, arrived=3, judged=2, firings=1),
        Join(at_least=2, is_eager=True, runs_again_on_late=True),
        WAITS,
        id="eager is for the first firing only",
    ),
    pytest.param(standing("fired", arrived=3, judged=3, firings=1), AGAIN, WAITS, id="nothing late to run again for"),
    pytest.param(standing("cancelled", arrived=3, judged=2), ALL, WAITS, id="a cancelled one stays cancelled"),
    pytest.param(
        standing("short", arrived=1, is_gated=True, judged=1), FAN_IN, FIRES_LATE, id="the gate itself came late"
    ),
]


@pytest.mark.parametrize(("known", "join", "expected"), CASES)
def test_a_join_of_three_is_decided(known, join, expected):
    assert decide(known, join, edges=3) == expected


@pytest.mark.parametrize(("known", "join", "expected"), CASES)
def test_what_is_decided_was_found_to_be_worth_deciding(known, join, expected):
    assert expected is WAITS or may_decide(known, join)


@pytest.mark.parametrize("join", [ALL, Join(at_least=1), Join(at_least_percent=50), FAN_IN])
def test_with_no_edges_left_and_nothing_that_arrived_it_does_not_run(join):
    assert decide(standing(), join, edges=0) == SHORT


@pytest.mark.parametrize(
    ("known", "join", "expected"),
    [
        pytest.param(standing(open=1, arrived=3), ALL, False, id="something is open"),
        pytest.param(standing(open=1), EAGER, True, id="eager: the number of edges has to be known"),
        pytest.param(standing(open=1, is_past_deadline=True), ALL, True, id="past its deadline"),
        pytest.param(standing(open=1, is_run_cancelled=True), ALL, True, id="its run was cancelled"),
        pytest.param(standing(open=1), GONE, True, id="it was removed"),
        pytest.param(standing("fired", judged=3, arrived=3), AGAIN, False, id="nothing new since it was decided"),
        pytest.param(standing("fired", judged=2, arrived=3, open=1), AGAIN, False, id="new, but a late one is open"),
        pytest.param(standing("short", judged=2, arrived=3, open=1), EAGER, True, id="eager, and never ran"),
        pytest.param(standing("fired", judged=2, arrived=3, open=1, firings=1), EAGER, False, id="eager, and ran"),
        pytest.param(standing("short", judged=2, arrived=2, is_gated=True), FAN_IN, True, id="a late gate is new"),
    ],
)
def test_edges_are_counted_only_where_something_may_be_decided(known, join, expected):
    assert may_decide(known, join) is expected


@pytest.mark.parametrize(
    ("join", "arrived", "present_arrived", "expected"),
    [
        pytest.param(ALL, 2, 2, (2, 3), id="nothing is gone"),
        pytest.param(ALL, 3, 2, (2, 3), id="a parent that is gone counts no longer"),
        pytest.param(ALL, 1, 2, (2, 3), id="one arrived by the condition that its edge has now"),
        pytest.param(FAN_IN, 2, 2, (2, 3), id="no member is gone"),
        pytest.param(FAN_IN, 3, 2, (3, 4), id="a member that is gone counts on both sides"),
        pytest.param(FAN_IN, 1, 2, (1, 3), id="a member has arrived of which no note was added up"),
    ],
)
def test_a_join_of_three_is_judged_by_what_is_left(join, arrived, present_arrived, expected):
    assert join.judged_by(arrived=arrived, present_arrived=present_arrived, present=3, is_open=False) == expected


def test_while_something_is_open_no_more_arrived_than_notes_were_added_up():
    assert ALL.judged_by(arrived=1, present_arrived=2, present=3, is_open=True) == (1, 3)
    assert ALL.judged_by(arrived=3, present_arrived=2, present=3, is_open=True) == (2, 3)
