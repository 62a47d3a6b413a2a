"""Problems of joins among declarations, on top of the stored graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from chainsched.domain.declarations import Declaration, GroupDeclaration, schedule_columns
from chainsched.domain.validation import find_problems
from chainsched.exceptions import CycleError, DeclarationError


def declared(external_id: str, *parents: str, **options: Any) -> Declaration:
    stated = schedule_columns(None, parents=parents, options=options)
    return Declaration(external_id, "shop.copy", None, GroupDeclaration("etl"), stated, parents=parents)


def problems_of(
    *declarations: Declaration, stored: Mapping[str, Sequence[str]] | None = None
) -> list[DeclarationError]:
    known = stored or {}
    return find_problems(
        declarations,
        limit=5,
        stored_parents=known,
        stored_depths={},
        group_edges=[],
        is_known=lambda name: name in known,
    )


def test_a_join_without_a_common_head_is_refused_with_the_remedy():
    (problem,) = problems_of(declared("a"), declared("b"), declared("join", "a", "b"))
    assert problem.external_id == "join"
    assert "'a', 'b', which have no manifest above them in common" in str(problem)
    assert "Let them all descend from one manifest" in str(problem)


def test_a_head_in_common_of_only_two_of_three_parents_is_not_enough():
    chains = [declared("h"), declared("k"), declared("a", "h"), declared("b", "h"), declared("c", "k")]
    (problem,) = problems_of(*chains, declared("join", "a", "b", "c"))
    assert problem.external_id == "join"


@pytest.mark.parametrize(
    "declarations",
    [
        pytest.param(
            [declared("h"), declared("a", "h"), declared("b", "h"), declared("join", "a", "b")], id="siblings"
        ),
        pytest.param(
            [declared("h"), declared("a", "h"), declared("b", "a"), declared("join", "b", "h")],
            id="one above the other",
        ),
        pytest.param(
            [
                declared("h"),
                declared("a", "h"),
                declared("b", "h"),
                declared("c", "a"),
                declared("inner", "a", "b"),
                declared("outer", "c", "inner"),
            ],
            id="a join below a join",
        ),
    ],
)
def test_a_join_of_parents_with_a_common_head_is_sound(declarations):
    assert problems_of(*declarations) == []


def test_one_head_in_common_is_enough_though_another_is_above_one_of_the_parents():
    stored = {"h": [], "k": [], "a": ["h"], "b": ["h", "k"]}
    assert problems_of(declared("join", "a", "b"), stored=stored) == []


def test_the_common_head_may_be_stored_only():
    join = declared("join", "a", "b")
    assert problems_of(join, stored={"h": [], "a": ["h"], "b": ["h"]}) == []
    (problem,) = problems_of(join, stored={"h": [], "k": [], "a": ["h"], "b": ["k"]})
    assert problem.external_id == "join"


def test_a_parent_of_a_join_that_is_not_known_is_named_and_its_heads_are_not_judged():
    (problem,) = problems_of(declared("h"), declared("a", "h"), declared("join", "a", "lost"))
    assert "depends on 'lost', which is neither declared nor stored" in str(problem)


def test_a_circle_through_a_fan_in_is_refused_with_the_remedy():
    found = problems_of(declared("p"), declared("j", "p", fan_in=True), declared("x", "p", "j"))
    (problem,) = found
    assert isinstance(problem, CycleError)
    assert problem.members == ("j", "x")
    assert "Name the parents of 'j' with depends_on=[…] in place of fan_in" in str(problem)


def test_so_is_one_over_further_manifests():
    chain = [declared("p"), declared("j", "p", fan_in=True), declared("y", "j"), declared("x", "p", "y")]
    (problem,) = problems_of(*chain)
    assert isinstance(problem, CycleError)
    assert problem.members == ("j", "x")


def test_so_is_one_through_a_join_that_is_stored_only():
    fan_in = declared("j", "p", fan_in=True)
    (problem,) = problems_of(declared("p"), fan_in, stored={"p": [], "j": ["p"], "x": ["p", "j"]})
    assert isinstance(problem, CycleError)


def test_what_runs_after_a_fan_in_alone_is_no_circle():
    assert problems_of(declared("p"), declared("j", "p", fan_in=True), declared("x", "j")) == []


def test_a_join_beside_a_fan_in_of_the_same_parent_is_no_circle():
    siblings = [declared("p"), declared("a", "p"), declared("b", "p")]
    assert problems_of(*siblings, declared("x", "a", "p"), declared("j", "p", fan_in=True)) == []


def test_a_circle_of_declared_edges_is_told_without_the_problems_that_follow_from_it():
    (problem,) = problems_of(declared("h"), declared("a", "h", "b"), declared("b", "a"))
    assert isinstance(problem, CycleError)
    assert set(problem.members) == {"a", "b"}
