"""The dependency graph as a file, for the command: loaded from rows, as DOT, as SVG drawn by a template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import graphviz
from django.db.models import F, Q
from django.template import Context, Engine

from chainsched.db.id_in import id_in
from chainsched.graph.layout import POINTS, Size, draw
from chainsched.graph.states import FILLS, NodeState, standing
from chainsched.models import Dependency, Manifest

MAX_NODES = 300
MAX_LABEL = 32
# A join has many edges, so that there can be more of them than of manifests.
EDGES_A_NODE = 10
TEMPLATES = Path(__file__).resolve().parent.parent / "templates"


@dataclass(frozen=True, slots=True)
class Node:
    """A manifest in the picture."""

    external_id: str
    group: str
    kind: str
    state: NodeState

    @property
    def label(self) -> str:
        return self.external_id if len(self.external_id) <= MAX_LABEL else self.external_id[: MAX_LABEL - 1] + "…"


@dataclass(frozen=True, slots=True)
class Picture:
    """The nodes and edges to draw, and how many manifests were left out because there are too many."""

    nodes: Sequence[Node]
    edges: Sequence[tuple[str, str]]
    left_out: int = 0
    has_more_edges: bool = False

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def load(*, group: str | None = None, limit: int = MAX_NODES) -> Picture:
    """The manifests of a group and their parents, or all, up to ``limit``; a constant number of statements."""
    manifests = Manifest.objects.filter(retired_at__isnull=True)
    if group is not None:
        before = Dependency.objects.filter(child__group__name=group, child__retired_at__isnull=True)
        manifests = manifests.filter(Q(group__name=group) | Q(pk__in=before.values("parent")))
    columns = {"group_name": F("group__name"), "standing": standing()}
    ordered = manifests.order_by("depth", "external_id")
    rows: list[dict[str, Any]] = list(ordered.values("id", "external_id", "schedule_type", **columns)[:limit])  # type: ignore[arg-type]
    nodes = [
        Node(row["external_id"], row["group_name"], row["schedule_type"], NodeState(row["standing"])) for row in rows
    ]
    edges = _edges({row["id"]: row["external_id"] for row in rows}, limit=limit * EDGES_A_NODE)
    return Picture(
        nodes,
        edges[: limit * EDGES_A_NODE],
        left_out=manifests.count() - len(rows) if len(rows) == limit else 0,
        has_more_edges=len(edges) > limit * EDGES_A_NODE,
    )


def _edges(names: Mapping[int, str], *, limit: int) -> list[tuple[str, str]]:
    """The edges between these manifests by name, those of joins last; one more than the limit if there are more."""
    edges = Dependency.objects.filter(id_in(parent=names), id_in(child=names))
    ordered = edges.order_by("child__is_join", "child__depth", "child__external_id", "parent__external_id")
    return [(names[parent], names[child]) for parent, child in ordered.values_list("parent", "child")[: limit + 1]]


def to_dot(picture: Picture) -> str:
    """The picture in Graphviz' language."""
    names = {node.external_id: f"n{number}" for number, node in enumerate(picture.nodes)}
    dot = graphviz.Digraph("chainsched", graph_attr={"rankdir": "LR"}, node_attr={"shape": "box", "style": "filled"})
    for node in picture.nodes:
        dot.node(names[node.external_id], label=graphviz.escape(node.label), fillcolor=FILLS[node.state])
    for parent, child in picture.edges:
        dot.edge(names[parent], names[child])
    return str(dot.source)


def to_svg(picture: Picture) -> str:
    """The picture as SVG; raises LayoutUnavailable if Graphviz is missing or fails."""
    numbers = {node.external_id: number for number, node in enumerate(picture.nodes)}
    edges = [(numbers[parent], numbers[child]) for parent, child in picture.edges]
    drawing = draw([Size(len(node.label)) for node in picture.nodes], edges)
    boxes = [
        {"box": box, "node": picture.nodes[box.number], "fill": FILLS[picture.nodes[box.number].state]}
        for box in drawing.boxes
    ]
    height = drawing.height + (POINTS // 3 if picture.left_out or picture.has_more_edges else 0)
    context = {"boxes": boxes, "curves": drawing.curves, "width": drawing.width, "height": height}
    return _render(
        "chainsched/graph.svg", {**context, "left_out": picture.left_out, "has_more_edges": picture.has_more_edges}
    )


def _render(template: str, context: dict[str, Any]) -> str:
    """Render with an engine of our own: a project may have none, or one that does not escape names."""
    return str(Engine(dirs=[str(TEMPLATES)]).get_template(template).render(Context(context)))
