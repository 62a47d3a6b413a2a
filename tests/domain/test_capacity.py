"""Who may start: the limits, the turns of the groups, and the one number that rows are ranked by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainsched.domain.capacity import (
    Active,
    Candidate,
    Idle,
    Rival,
    Room,
    admit,
    advance_turns,
    assign_turns,
    effective_priority,
    find_idle,
    room,
)
from chainsched.domain.routing import Pool

A, B, C = 1, 2, 3


def pending(by_group: dict[int | None, int], limits: dict[int, int] | None = None) -> Active:
    """Executions that no process has yet, and the limits of their groups."""
    return Active(by_group=by_group, by_process={None: sum(by_group.values())}, limits=limits or {})


def queue(*group_ids: int | None) -> list[Candidate]:
    return [Candidate(row_id, group_id, turn=row_id) for row_id, group_id in enumerate(group_ids, start=1)]


def admitted_groups(candidates: Sequence[Candidate], space: Room) -> list[int | None]:
    return [candidate.group_id for candidate in admit(candidates, room=space)]


@pytest.mark.parametrize(
    ("total", "groups", "waiting", "admitted"),
    [
        pytest.param(5, {A: 3, B: 3}, [A] * 4 + [B] * 4, [A, A, A, B, B], id="5, of A 3, of B 3: 3 of A and 2 of B"),
        pytest.param(0, {}, [A, None], [], id="at the limit nothing"),
        pytest.param(1, {}, [B, A, A], [B], id="one place, one row"),
        pytest.param(None, {}, [A, B, None, A], [A, B, None, A], id="no limit, all"),
        pytest.param(None, {A: 0}, [A, A, B, A], [B], id="a full group blocks nobody else"),
        pytest.param(None, {A: 2}, [A, A, A, B], [A, A, B], id="a group's limit holds without a global one"),
        pytest.param(2, {A: 0}, [None, None, None], [None, None], id="no group: the global limit alone"),
        pytest.param(10, {A: 1}, [], [], id="nothing waits"),
    ],
)
def test_rows_start_in_their_order_as_far_as_the_limits_allow(total, groups, waiting, admitted):
    assert admitted_groups(queue(*waiting), Room(total=total, groups=groups)) == admitted


def test_what_is_admitted_takes_its_place():
    space = Room(total=3, groups={A: 2, B: 5})
    admit(queue(A, B), room=space)
    assert (space.total, space.groups) == (1, {A: 1, B: 4})
    assert admitted_groups(queue(A, A, B), space) == [A]
    assert space.is_full


def test_the_same_rows_are_returned_in_the_given_order():
    candidates = queue(B, A, B, C)
    assert admit(candidates, room=Room(total=None, groups={B: 1})) == [candidates[0], candidates[1], candidates[3]]


@pytest.mark.parametrize(
    ("max_active", "limits", "active", "left"),
    [
        pytest.param(100, {}, {}, (100, {}), id="nothing runs"),
        pytest.param(None, {}, {A: 7}, (None, {}), id="no limits at all"),
        pytest.param(10, {A: 5}, {A: 2, B: 1, None: 3}, (4, {A: 3}), id="every active row counts globally"),
        pytest.param(10, {}, {None: 4}, (6, {}), id="a row without a group counts against no group"),
        pytest.param(2, {A: 1}, {A: 5}, (0, {A: 0}), id="lowered limits leave no room, not less than none"),
    ],
)
def test_room_is_what_the_limits_leave(max_active, limits, active, left):
    found = room(max_active=max_active, active=pending(active, limits), slots={})
    assert (found.total, found.groups) == left


@pytest.mark.parametrize(
    ("by_process", "taker_id", "total"),
    [
        pytest.param({1: 7}, None, 8, id="a process counts with no more than its slots"),
        pytest.param({1: 1}, None, 9, id="and with no more than it has"),
        pytest.param({3: 7}, None, 3, id="one that states no slots counts with all"),
        pytest.param({None: 4, 1: 7}, None, 4, id="what waits for a process counts"),
        pytest.param({1: 2, 2: 4}, 1, None, id="one whose slots are all counted may take more for them"),
        pytest.param({1: 0, 2: 4}, 1, None, id="and one whose slots all have room"),
        pytest.param({1: 0, 2: 4, 3: 5}, 1, 1, id="one whose slots have no room for all takes as many as there is"),
        pytest.param({1: 2, 3: 9}, 1, None, id="at the limit its children go on"),
        pytest.param({1: 1, 3: 9}, 1, 0, id="at the limit no further child begins"),
    ],
)
def test_a_process_counts_with_the_jobs_that_it_runs_at_once(by_process, taker_id, total):
    active, slots = Active(by_process=by_process), {1: 2, 2: 4}
    left = room(max_active=10, active=active, slots=slots, taker_id=taker_id)
    left.lift()
    assert left.total == total


def test_the_limit_of_a_group_in_which_nothing_is_active_comes_with_its_rows():
    limited = [Candidate(row_id, A, turn=row_id, group_limit=2) for row_id in (1, 2, 3)]
    free = Candidate(4, B, turn=4)
    assert admit([*limited, free], room=Room(total=None)) == [limited[0], limited[1], free]
    assert admit(limited, room=Room(total=None, groups={A: 1})) == limited[:1], "what is active counts"


RIVAL = Rival(process_id=2, slots=3, workflows=["shared", "theirs"])
THEIRS = Pool(frozenset({"shared", "theirs"}))
OWN = Pool(["shared", "own"])


@pytest.mark.parametrize(
    ("by_process", "expected"),
    [
        pytest.param({}, [Idle(THEIRS, 3)], id="all its slots"),
        pytest.param({2: 2}, [Idle(THEIRS, 1)], id="the one that is left"),
        pytest.param({2: 9}, [], id="none: all are busy"),
    ],
)
def test_the_idle_slots_of_a_rival_are_those_in_which_nothing_runs(by_process, expected):
    assert find_idle([RIVAL], own=OWN, active=Active(by_process=by_process)) == expected


def test_rivals_that_take_the_same_rows_count_together():
    again = replace(RIVAL, process_id=3, slots=1)
    assert find_idle([RIVAL, again], own=OWN, active=Active()) == [Idle(THEIRS, 4)]


@pytest.mark.parametrize(
    ("rival_queues", "own_queues", "is_rival"),
    [
        pytest.param(None, None, False, id="both take all queues"),
        pytest.param(["a"], None, False, id="it takes one of all"),
        pytest.param(None, ["a"], True, id="it takes more queues"),
        pytest.param(["a", "b"], ["a"], True, id="it takes another queue"),
        pytest.param(["a"], ["a", "b"], False, id="it takes one of ours"),
    ],
)
def test_a_rival_is_one_that_takes_rows_that_the_own_pool_does_not(rival_queues, own_queues, is_rival):
    rival = Rival(process_id=2, slots=3, workflows=["shared"], queues=rival_queues)
    assert bool(find_idle([rival], own=Pool(["shared", "own"], own_queues), active=Active())) is is_rival


def test_with_fewer_places_than_slots_nothing_is_taken_ahead():
    places = Room(total=2, idle=2)
    places.take(None)
    places.lift()
    assert places.total == 1


def test_full_groups_are_named_so_that_their_rows_are_not_read():
    left = room(max_active=10, active=pending({A: 1, B: 1}, {A: 2, B: 1}), slots={})
    assert left.full_groups == {B}


@given(
    max_active=st.none() | st.integers(0, 6),
    limits=st.dictionaries(st.integers(1, 3), st.integers(1, 4)),
    active=st.dictionaries(st.none() | st.integers(1, 3), st.integers(0, 9)),
    waiting=st.lists(st.none() | st.integers(1, 3), max_size=20),
)
def test_no_turn_breaks_a_limit_and_room_is_never_negative(max_active, limits, active, waiting):
    known = {group_id: limit for group_id, limit in limits.items() if active.get(group_id)}
    left = room(max_active=max_active, active=pending(active, known), slots={})
    rows = [replace(row, group_limit=limits.get(row.group_id or 0)) for row in queue(*waiting)]
    started = Counter(admitted_groups(rows, left))
    for group_id, count in started.items():
        limit = limits.get(group_id) if group_id is not None else None
        assert limit is None or active.get(group_id, 0) + count <= limit
    assert not started or max_active is None or sum(active.values()) + started.total() <= max_active
    assert left.total is None or left.total >= 0
    assert all(space >= 0 for space in left.groups.values())


@pytest.mark.parametrize(
    ("own", "group", "boost", "effective"),
    [
        (None, 10, 0, 10),
        (None, 10, 16, 26),
        (5, 10, 0, 5),
        (5, 10, 16, 21),
        (0, 10, 0, 0),
        (0, 10, 16, 16),
        (20, 0, 16, 31),
        (31, 31, 31, 31),
        (None, 0, 0, 0),
        (3, 0, -16, 0),
    ],
)
def test_priority_is_the_manifests_else_the_groups_plus_the_boost_within_0_and_31(own, group, boost, effective):
    assert effective_priority(own=own, group=group, boost=boost) == effective


@pytest.mark.parametrize(
    ("places", "present", "last", "turns"),
    [
        pytest.param([(A, 0), (A, 0), (A, 0)], 0, {}, [1, 2, 3], id="one group queues up behind itself"),
        pytest.param([(A, 0), (B, 0), (A, 0), (B, 0)], 0, {}, [1, 1, 2, 2], id="groups take turns"),
        pytest.param([(A, 0), (B, 0)], 0, {(A, 0): 50}, [51, 1], id="a new group comes before a long queue"),
        pytest.param([(A, 0)], 70, {(A, 0): 50}, [71], id="a queue that was overtaken starts at the present"),
        pytest.param([(A, 0), (A, 9)], 5, {(A, 0): 9}, [10, 6], id="each priority has turns of its own"),
        pytest.param([(None, 0), (None, 0)], 5, {}, [6, 6], id="a row without a group stands for itself"),
        pytest.param([], 5, {}, [], id="no rows"),
    ],
)
def test_a_new_row_gets_the_next_turn_of_its_group(places, present, last, turns):
    assert assign_turns(places, present=dict.fromkeys(range(32), present), last=last) == turns


def test_a_group_with_many_rows_does_not_starve_ten_small_ones():
    bulk = [(A, 0)] * 50_000
    small = [(group_id, 0) for group_id in range(2, 12) for _ in range(3)]
    first = assign_turns(bulk, present={}, last={})
    later = assign_turns(small, present={}, last={(A, 0): first[-1]})
    rows = sorted(
        (turn, row_id, group_id)
        for row_id, (turn, (group_id, _)) in enumerate(zip(first + later, bulk + small, strict=True))
    )
    assert Counter(group_id for *_, group_id in rows[:33]) == {A: 3} | dict.fromkeys(range(2, 12), 3)


def test_groups_that_queue_in_mixed_order_share_evenly():
    places = [(group_id, 0) for group_id in (A, B, C) for _ in range(20)]
    places = places[::7] + [place for number, place in enumerate(places) if number % 7]
    turns = assign_turns(places, present=dict.fromkeys(range(32), 3), last={})
    ordered = [place for _, place in sorted(zip(turns, places, strict=True), key=lambda entry: entry[0])]
    for start in range(0, 60, 3):
        assert {group_id for group_id, _ in ordered[start : start + 3]} == {A, B, C}


def test_work_at_one_priority_leaves_the_turns_of_another_alone():
    """Otherwise a small group would queue up behind all that a busier priority has started meanwhile."""
    reached = advance_turns({0: 5}, started=[(20, 400), (20, 401), (0, 6)])
    assert reached == {0: 6, 20: 401}
    assert assign_turns([(A, 0)], present=reached, last={}) == [7]


def test_turns_never_go_back():
    assert advance_turns({0: 9}, started=[(0, 4)]) == {0: 9}
