"""Circles, depth, and what groups owe each other."""

from __future__ import annotations

import pytest

from chainsched.domain import graph
from chainsched.exceptions import CycleError, LimitExceeded


def test_parents_come_before_their_dependents():
    parents = {"load": "transform", "transform": "extract", "extract": None, "audit": "extract"}
    order = graph.check_manifests(parents)
    assert sorted(order) == sorted(parents)
    for child, parent in parents.items():
        assert parent is None or order.index(parent) < order.index(child)


def test_a_parent_that_is_only_stored_has_its_place_in_the_order():
    assert graph.check_manifests({"load": "stored"}) == ["stored", "load"]


@pytest.mark.parametrize(
    ("parents", "members"),
    [
        ({"a": "a"}, {"a"}),
        ({"a": "b", "b": "a"}, {"a", "b"}),
        ({"a": "c", "b": "a", "c": "b"}, {"a", "b", "c"}),
        ({"root": None, "x": "root", "a": "b", "b": "a"}, {"a", "b"}),
    ],
    ids=["itself", "each other", "a descendant", "a circle beside a sound chain"],
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


CHAIN: dict[str, str | None] = {"d0": None} | {f"d{level}": f"d{level - 1}" for level in range(1, 7)}


def test_depth_counts_the_manifests_above():
    found = graph.depths(list(CHAIN)[:6], parents=CHAIN, known={}, limit=5)
    assert found == {f"d{level}": level for level in range(6)}


def test_depth_goes_on_from_a_stored_parent():
    assert graph.depths(["new"], parents={"new": "stored"}, known={"stored": 3}, limit=5) == {"new": 4}


@pytest.mark.parametrize(
    ("order", "parents", "known", "limit", "found"),
    [
        (list(CHAIN), CHAIN, {}, 5, ("d6", 6)),
        (["new"], {"new": "stored"}, {"stored": 5}, 5, ("new", 6)),
        (["d0", "d1"], CHAIN, {}, 0, ("d1", 1)),
    ],
    ids=["the seventh level", "below a stored parent", "no dependents allowed"],
)
def test_too_deep_is_refused_naming_manifest_value_limit_and_setting(order, parents, known, limit, found):
    with pytest.raises(LimitExceeded, match="MAX_JOB_DEPTH") as caught:
        graph.depths(order, parents=parents, known=known, limit=limit)
    error = caught.value
    assert (error.external_id, error.value) == found
    assert (error.limit, error.setting) == (limit, "MAX_JOB_DEPTH")
    assert repr(found[0]) in str(error)
