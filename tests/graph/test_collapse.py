"""What of a large graph is drawn, by tables."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import pairwise, product

import pytest

from chainsched.admin.charts.graph_picture import Graph, Vertex, picture
from chainsched.graph.collapse import (
    Collapsed,
    Edge,
    End,
    Fan,
    FanKey,
    Link,
    choose_edges,
    collapse,
    collapse_neighbours,
    connect,
    node_of,
)
from chainsched.graph.states import NodeState, describe_counts, worst

ROOTS = FanKey(None, 1, "cron")


def fan(parent: int | None, number: int, *, above: FanKey | None = None, kind: str = "dependent", pk: int = 0) -> Fan:
    key = FanKey(parent, 1, kind)
    return Fan(key, {NodeState.IDLE: number}, f"{kind}-0", f"{kind}-{number}", pk, above)


def roots(number: int) -> Fan:
    return fan(None, number, kind="cron", pk=1)


def collapsed(*fans: Fan, room: int, anchors: dict[int | None, Hashable] | None = None) -> Collapsed:
    return collapse(fans, anchors=anchors or {}, room=room)


def shape(result: Collapsed) -> list[tuple[int, bool]]:
    return [(unit.size, unit.is_open) for unit in result.units]


def nodes(result: Collapsed) -> int:
    return sum(unit.size if unit.is_open else 1 for unit in result.units)


@pytest.mark.parametrize(
    ("fans", "room", "expected"),
    [
        pytest.param([roots(3)], 3, [(3, True)], id="all of it fits"),
        pytest.param([roots(4)], 3, [(4, False)], id="a fan that does not fit is one node"),
        pytest.param([roots(1)], 1, [(1, True)], id="one is never collapsed"),
        pytest.param(
            [roots(1), fan(1, 5000, above=ROOTS)], 300, [(1, True), (5000, False)], id="five thousand slices of a root"
        ),
        pytest.param(
            [roots(1), fan(1, 5000, above=ROOTS), fan(1, 2, above=ROOTS, kind="dormant_dependent")],
            300,
            [(1, True), (2, True), (5000, False)],
            id="siblings of another kind are apart, the smaller first",
        ),
        pytest.param(
            [roots(400), *(fan(pk, 1, above=ROOTS, pk=1000 + pk) for pk in range(1, 401))],
            300,
            [(400, False), (400, False)],
            id="what hangs below collapsed ones folds as well",
        ),
        pytest.param(
            [roots(100), *(fan(pk, 10, above=ROOTS) for pk in range(1, 101))],
            300,
            [(100, True), *[(10, True)] * 11, *[(10, False)] * 89],
            id="as many fans are opened as there is room for",
        ),
    ],
)
def test_fans_are_folded_until_they_fit(fans: list[Fan], room: int, expected: list[tuple[int, bool]]) -> None:
    result = collapsed(*fans, room=room)
    assert shape(result) == expected
    assert nodes(result) <= room
    assert result.left_out == 0


def test_a_chain_that_is_too_long_is_cut_and_the_rest_is_counted() -> None:
    chain = [fan(None, 1, kind="cron", pk=1)]
    for pk in range(2, 10_001):
        above = chain[-1].key
        chain.append(fan(pk - 1, 1, above=above, pk=pk))
    result = collapsed(*chain, room=300)
    assert (nodes(result), result.left_out) == (300, 9_700)


def test_what_hangs_in_a_circle_is_counted_and_not_drawn() -> None:
    one, other = FanKey(1, 1, "dependent"), FanKey(2, 1, "dependent")
    result = collapsed(fan(1, 1, above=other, pk=2), fan(2, 1, above=one, pk=1), room=10)
    assert (result.units, result.left_out) == ([], 2)


def test_fans_of_one_anchor_are_one_unit() -> None:
    result = collapsed(fan(7, 2), fan(8, 2), fan(9, 2), room=10, anchors={7: "here", 8: "here"})
    assert [unit.size for unit in result.units] == [2, 4]


def test_a_parent_whose_own_parent_is_hidden_stands_at_the_top() -> None:
    hidden_above = FanKey(99, 1, "cron")
    result = collapsed(roots(20), fan(1, 2, above=hidden_above), fan(2, 2, above=hidden_above), room=10)
    assert shape(result) == [(20, False), (4, False)]


def test_joins_are_apart_from_their_siblings_and_from_joins_on_other_levels() -> None:
    plain, join, later = (
        Fan(FanKey(None, 1, "dependent", level), {NodeState.IDLE: 9}, "", "", 1) for level in range(3)
    )
    assert shape(collapsed(plain, join, later, room=3)) == [(9, False)] * 3


def test_nodes_are_in_the_order_of_their_depth() -> None:
    first, last = (
        fan(None, 2, kind="interval"),
        Fan(FanKey(None, 1, "dependent", 3), {NodeState.IDLE: 1}, "", "", 9, depth=3),
    )
    assert [unit.depth for unit in collapsed(last, first, room=10).units] == [0, 3]


JOINS = FanKey(None, 1, "dependent", 2)
SLICES = FanKey(1, 1, "dependent")
OTHERS = FanKey(None, 2, "cron")


def test_edges_lead_from_and_to_single_nodes_and_folds() -> None:
    result = collapsed(roots(1), fan(1, 20, above=ROOTS), Fan(JOINS, {NodeState.IDLE: 2}, "", "", 90), room=5)
    assert shape(result) == [(1, True), (2, True), (20, False)]
    fold = result.units[2].key
    links = [
        Link(End(1, ROOTS), End(None, SLICES), 20),
        Link(End(None, SLICES), End(90, JOINS), 20),
        Link(End(None, SLICES), End(91, JOINS), 3),
    ]
    expected = {(node_of(1), fold): 20, (fold, node_of(90)): 20, (fold, node_of(91)): 3}
    assert connect(result.units, links, groups={}) == expected


def test_edges_of_fans_that_are_one_node_are_one() -> None:
    result = collapsed(roots(20), *(fan(pk, 1, above=ROOTS) for pk in range(20)), room=10)
    top, below = result.units
    links = [Link(End(None, ROOTS), End(None, FanKey(pk, 1, "dependent")), 1) for pk in range(20)]
    assert connect(result.units, links, groups={}) == {(top.key, below.key): 20}


@pytest.mark.parametrize(
    "link",
    [
        pytest.param(Link(End(None, SLICES), End(None, SLICES), 3), id="inside of a node"),
        pytest.param(Link(End(None, OTHERS), End(None, SLICES), 3), id="from a node that is not drawn"),
        pytest.param(Link(End(None, SLICES), End(None, JOINS), 3), id="to a node that is not drawn"),
    ],
)
def test_edges_that_no_two_nodes_have_are_left_out(link: Link) -> None:
    result = collapsed(roots(1), fan(1, 20, above=ROOTS), room=5)
    assert connect(result.units, [link], groups={}) == {}


def test_a_group_stands_for_all_its_manifests() -> None:
    result = collapsed(fan(7, 20), room=5, anchors={7: "group 2"})
    link = Link(End(7, OTHERS), End(None, FanKey(7, 1, "dependent")), 20)
    assert connect(result.units, [link], groups={2: "group 2"}) == {("group 2", result.units[0].key): 20}


def test_groups_with_the_same_neighbours_fold_when_there_is_no_room() -> None:
    edges: list[Edge] = [("top", name) for name in "abc"]
    assert len(collapse_neighbours([*"abc", "top", "x", "y"], edges, room=6)) == 6
    assert collapse_neighbours([*"abc", "top", "x", "y"], edges, room=5) == [["a", "b", "c"], ["top"], ["x", "y"]]


def complete(number: int) -> dict[Edge, int]:
    return {(one, other): 1 for one, other in product(range(number), repeat=2) if one < other}


@pytest.mark.parametrize("number", [45, 300])
def test_of_a_complete_graph_the_short_edges_are_chosen(number: int) -> None:
    chosen = choose_edges(complete(number), most=1000, longest=3000)
    assert len(chosen) <= 1000
    assert set(pairwise(range(number))) <= set(chosen)
    assert sum(int(other) - int(one) for one, other in chosen) <= 3000  # type: ignore[call-overload]


def test_a_picture_draws_no_more_pieces_of_edges_than_can_be_laid_out_in_time() -> None:
    """Forty-five nodes, all connected: fewer edges than are allowed, but in 45 ranks."""
    vertices = [Vertex(number, f"g{number}", {NodeState.IDLE: 1}) for number in range(45)]
    drawn = picture("Groups", Graph(vertices, complete(45)))
    assert len(drawn.curves) < 500
    assert drawn.notes == [f"And {990 - len(drawn.curves)} more edges, which are not drawn."]


def test_of_edges_as_long_as_each_other_the_strongest_are_chosen() -> None:
    assert choose_edges({("a", "b"): 1, ("c", "d"): 9}, most=1, longest=10) == [("c", "d")]


def test_edges_in_a_circle_are_chosen_too() -> None:
    assert len(choose_edges({("a", "b"): 1, ("b", "a"): 1}, most=9, longest=9)) == 2


def test_the_worst_state_stands_for_many() -> None:
    states = {NodeState.SUCCEEDED: 4000, NodeState.FAILING: 1, NodeState.RUNNING: 3}
    assert worst(states) is NodeState.FAILING
    assert describe_counts(states) == "1 failing, 3 running, 4,000 succeeded"
    assert worst({}) is NodeState.IDLE
