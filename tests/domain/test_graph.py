"""Circles, depth, heads, and what groups owe each other."""

from __future__ import annotations

import pytest

from chainsched.domain import graph
from chainsched.exceptions import CycleError, LimitExceeded


def test_parents_come_before_their_dependents():
    parents = {"load": ["audit", "transform"], "transform": ["extract"], "extract": [], "audit": ["extract"]}
    order = graph.check_manifests(parents)
    assert sorted(order) == sorted(parents)
    for child, above in parents.items():
        assert all(order.index(parent) < order.index(child) for parent in above)


def test_a_parent_that_is_only_stored_has_its_place_in_the_order():
    assert graph.check_manifests({"load": ["stored"]}) == ["stored", "load"]


@pytest.mark.parametrize(
    ("parents", "members"),
    [
        ({"a": ["a"]}, {"a"}),
        ({"a": ["b"], "b": ["a"]}, {"a", "b"}),
        ({"a": ["c"], "b": ["a"], "c": ["b"]}, {"a", "b", "c"}),
        ({"root": [], "x": ["root"], "a": ["b"], "b": ["a"]}, {"a", "b"}),
        ({"root": [], "a": ["root", "b"], "b": ["a"]}, {"a", "b"}),
    ],
    ids=["itself", "each other", "a descendant", "a circle beside a sound chain", "one of several parents"],
)
def test_a_circle_of_manifests_is_refused_naming_its_members_once(parents, members):
    with pytest.raises(CycleError) as caught:
        graph.check_manifests(parents)
    assert set(caught.value.members) == members
    assert len(caught.value.members) == len(members)
    assert all(member in str(caught.value) for member in members)


@pytest.mark.parametrize(
    ("edges", "members"),
    [
        ([("a", "b"), ("b", "a")], ("a", "b")),
        ([("c", "a"), ("a", "b"), ("b", "c")], ("a", "b", "c")),
        ([("x", "y"), ("a", "a"), ("b", "a"), ("a", "b")], ("a", "b")),
    ],
    ids=["two groups", "three groups", "beside sound edges"],
)
def test_a_circle_of_groups_is_refused_naming_its_members(edges, members):
    with pytest.raises(CycleError, match="among manifest groups") as caught:
        graph.check_groups(edges)
    assert caught.value.members == members


@pytest.mark.parametrize(
    "edges",
    [
        [],
        [("a", "b"), ("b", "c"), ("c", "d")],
        [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")],
        [("a", "a"), ("a", "b"), ("b", "b")],
        [("a", "b"), ("a", "b")],
    ],
    ids=["none", "a chain", "a diamond", "edges inside a group", "the same edge twice"],
)
def test_chains_diamonds_and_edges_inside_a_group_are_fine(edges):
    graph.check_groups(edges)


CHAIN: dict[str, list[str]] = {"d0": []} | {f"d{level}": [f"d{level - 1}"] for level in range(1, 7)}


def test_depth_counts_the_manifests_above():
    found = graph.depths(list(CHAIN)[:6], parents=CHAIN, known={}, limit=5)
    assert found == {f"d{level}": level for level in range(6)}


def test_depth_goes_on_from_a_stored_parent():
    assert graph.depths(["new"], parents={"new": ["stored"]}, known={"stored": 3}, limit=5) == {"new": 4}


def test_depth_counts_the_longest_way_up():
    parents = {"head": [], "near": ["head"], "far": ["near"], "join": ["far", "head", "stored"]}
    found = graph.depths(list(parents), parents=parents, known={"stored": 1}, limit=5)
    assert found == {"head": 0, "near": 1, "far": 2, "join": 3}


@pytest.mark.parametrize(
    ("order", "parents", "known", "limit", "found"),
    [
        (list(CHAIN), CHAIN, {}, 5, ("d6", 6)),
        (["new"], {"new": ["stored"]}, {"stored": 5}, 5, ("new", 6)),
        (["join"], {"join": ["a", "b"]}, {"a": 0, "b": 5}, 5, ("join", 6)),
        (["d0", "d1"], CHAIN, {}, 0, ("d1", 1)),
    ],
    ids=["the seventh level", "below a stored parent", "below one of several", "no dependents allowed"],
)
def test_too_deep_is_refused_naming_manifest_value_limit_and_setting(order, parents, known, limit, found):
    with pytest.raises(LimitExceeded, match="MAX_JOB_DEPTH") as caught:
        graph.depths(order, parents=parents, known=known, limit=limit)
    error = caught.value
    assert (error.external_id, error.value) == found
    assert (error.limit, error.setting) == (limit, "MAX_JOB_DEPTH")
    assert repr(found[0]) in str(error)


def test_a_manifest_descends_from_the_heads_of_all_its_parents():
    parents = {"h": [], "k": [], "a": ["h"], "b": ["k"], "join": ["a", "b"], "leaf": ["join"], "c": ["stored"]}
    assert graph.roots_of(parents) == {
        "h": {"h"},
        "k": {"k"},
        "a": {"h"},
        "b": {"k"},
        "join": {"h", "k"},
        "leaf": {"h", "k"},
        "stored": {"stored"},
        "c": {"stored"},
    }


@pytest.mark.parametrize(
    ("parents", "depths", "cycles"),
    [
        ({1: [], 2: [1], 3: [1, 2]}, {1: 0, 2: 1, 3: 2}, []),
        ({1: [2], 2: [1], 3: []}, {3: 0}, [[1, 2]]),
        ({1: [1]}, {}, [[1]]),
        ({1: [2], 2: [1], 3: [2], 4: [3, 5], 5: []}, {5: 0}, [[1, 2]]),
        ({1: [2], 2: [1], 3: [4], 4: [3]}, {}, [[1, 2], [3, 4]]),
        ({1: [99], 2: [1]}, {1: 0, 2: 1}, []),
    ],
    ids=["none", "beside one that is sound", "itself", "below a circle", "two circles", "a parent that is gone"],
)
def test_stored_manifests_have_a_depth_unless_a_circle_is_above(parents, depths, cycles):
    found, circles = graph.depths_and_cycles(parents)
    assert found == depths
    assert sorted(circles) == cycles


def test_a_fan_in_that_waits_for_what_runs_after_it_is_refused_with_the_remedy():
    error = graph.cycle_through_fan_in("join", "after")
    assert error.members == ("join", "after")
    assert "depends_on=[…] in place of fan_in" in str(error)
