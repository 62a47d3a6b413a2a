"""The picture of the command, from rows: what it has of joins, and at what cost."""

from __future__ import annotations

from typing import Any

import pytest

from chainsched.domain.states import RunCondition
from chainsched.flow.schedule.edges import Edge, write_edges
from chainsched.graph import export
from chainsched.models import Manifest, NamedLock
from chainsched.models.named_lock import GRAPH
from tests.factories import NOW, make_dependent, make_group, make_manifest

pytestmark = pytest.mark.django_db


@pytest.fixture
def members() -> list[Manifest]:
    """Three children of one head, in one group."""
    head = make_manifest("head", group=make_group("etl"))
    return [make_dependent(head, name, group=head.group) for name in "abc"]


def make_join(name: str, *parents: Manifest, **columns: Any) -> Manifest:
    shape = {"schedule_type": "dependent", "run_condition": 1, "is_join": True, "depth": parents[0].depth + 1}
    join = make_manifest(name, **{"state": {}, "group": parents[0].group, **shape, **columns})
    NamedLock.objects.hold(GRAPH, now=NOW)
    edge = Edge(RunCondition.SUCCESS.value, is_gate=False, is_derived=False)
    write_edges({join.pk: {parent.pk: edge for parent in parents}})
    return join


FAN = [("head", name) for name in "abc"]


def test_a_join_of_several_parents_has_an_edge_from_each(members: list[Manifest]) -> None:
    make_join("join", *members)
    assert export.load().edges == [*FAN, *((name, "join") for name in "abc")]


@pytest.mark.parametrize("fan_in", ["siblings", "tree"])
def test_a_fan_in_has_edges_from_its_gate_and_its_members(members: list[Manifest], fan_in: str) -> None:
    make_dependent(Manifest.objects.get(external_id="head"), "fan-in", group=members[0].group, fan_in=fan_in)
    assert export.load().edges == [*FAN, *((name, "fan-in") for name in ("a", "b", "c", "head"))]


def test_a_group_comes_with_all_parents_of_its_manifests(members: list[Manifest]) -> None:
    make_join("join", *members, group=make_group("reports"))
    picture = export.load(group="reports")
    assert [node.external_id for node in picture.nodes] == ["a", "b", "c", "join"]
    assert picture.edges == [(name, "join") for name in "abc"]


def test_a_retired_join_is_not_drawn_and_brings_no_parents(members: list[Manifest]) -> None:
    make_join("join", *members, group=make_group("reports"), retired_at=NOW)
    assert export.load(group="reports").nodes == []
    assert export.load().edges == FAN


def test_edges_to_what_is_left_out_are_left_out(members: list[Manifest]) -> None:
    make_join("join", *members)
    picture = export.load(limit=4)
    assert (picture.left_out, picture.edges) == (1, FAN)


def test_there_are_no_more_edges_than_can_be_laid_out(members: list[Manifest], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "EDGES_A_NODE", 1)
    for number in range(3):
        make_join(f"join-{number}", *members)
    picture = export.load(limit=7)
    assert len(picture.edges) == 7
    assert picture.edges[:3] == FAN
    assert picture.has_more_edges
    assert "and more edges of joins" in export.to_svg(picture)
    assert "more edges" not in export.to_svg(export.load(limit=8, group="etl")).partition("fan-in")[2]


def test_joins_take_no_more_statements(members: list[Manifest], django_assert_num_queries: Any) -> None:
    for number in range(5):
        make_join(f"join-{number}", *members)
    with django_assert_num_queries(2):
        export.load()
