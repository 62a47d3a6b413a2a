"""The dependency graph as a picture: loaded from rows, laid out by Graphviz, drawn by a template.

Graphviz only says where things stand; the SVG is drawn by a Django template, which escapes every name.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import graphviz
from django.db.models import F, Q
from django.template.loader import render_to_string

from chainsched.domain.due import OpenItem
from chainsched.exceptions import LayoutUnavailable
from chainsched.models import Manifest
from chainsched.models.facts import load_open_items

MAX_NODES = 300
MAX_LABEL = 32
POINTS = 72
MARGIN = 16


class NodeState(enum.StrEnum):
    """How a manifest is doing, as its colour says."""

    RUNNING = "running"
    QUEUED = "queued"
    DEAD_LETTER = "dead_letter"
    FAILING = "failing"
    DISABLED = "disabled"
    SUCCEEDED = "succeeded"
    IDLE = "idle"


FILLS = {
    NodeState.RUNNING: "#9ec5fe",
    NodeState.QUEUED: "#cfe2ff",
    NodeState.DEAD_LETTER: "#f1aeb5",
    NodeState.FAILING: "#ffe69c",
    NodeState.DISABLED: "#dee2e6",
    NodeState.SUCCEEDED: "#a3cfbb",
    NodeState.IDLE: "#ffffff",
}

_OPEN_STATES = {
    OpenItem.RUNNING: NodeState.RUNNING,
    OpenItem.PENDING: NodeState.QUEUED,
    OpenItem.QUEUED: NodeState.QUEUED,
    OpenItem.DEAD_LETTER: NodeState.DEAD_LETTER,
}


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
    """What is drawn, and how many manifests were left out because there are too many."""

    nodes: Sequence[Node]
    edges: Sequence[tuple[str, str]]
    left_out: int = 0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def load(*, group: str | None = None, limit: int = MAX_NODES) -> Picture:
    """The manifests of a group and their parents, or all, up to ``limit``; a constant number of statements."""
    manifests = Manifest.objects.filter(retired_at__isnull=True)
    if group is not None:
        manifests = manifests.filter(Q(group__name=group) | Q(dependents__group__name=group)).distinct()
    columns = {"group_name": F("group__name"), "parent": F("depends_on__external_id")}
    own = ("id", "external_id", "schedule_type", "is_enabled", "group__is_enabled")
    state = ("state__consecutive_failures", "state__last_successful_run")
    ordered = manifests.order_by("depth", "external_id")
    rows: list[dict[str, Any]] = [dict(row) for row in ordered.values(*own, *state, **columns)[:limit]]
    open_items = load_open_items([row["id"] for row in rows])
    nodes = [_node(row, open_items.get(row["id"])) for row in rows]
    drawn = {node.external_id for node in nodes}
    edges = [(row["parent"], row["external_id"]) for row in rows if row["parent"] in drawn]
    return Picture(nodes, edges, left_out=manifests.count() - len(rows) if len(rows) == limit else 0)


def to_dot(picture: Picture, *, arrowhead: str = "normal") -> str:
    """The picture in Graphviz' language."""
    names = {node.external_id: f"n{number}" for number, node in enumerate(picture.nodes)}
    dot = graphviz.Digraph(
        "chainsched",
        graph_attr={"rankdir": "LR"},
        node_attr={"shape": "box", "style": "filled"},
        edge_attr={"arrowhead": arrowhead},
    )
    for node in picture.nodes:
        width = f"{0.3 + 0.095 * len(node.label):.2f}"
        dot.node(names[node.external_id], label=graphviz.escape(node.label), fillcolor=FILLS[node.state], width=width)
    for parent, child in picture.edges:
        dot.edge(names[parent], names[child])
    return str(dot.source)


def to_svg(picture: Picture) -> str:
    """The picture as SVG; raises LayoutUnavailable where nothing can lay it out."""
    # Graphviz ends a line where its own arrowhead would begin; ours is drawn by the template.
    plain = lay_out(to_dot(picture, arrowhead="none"))
    return render_to_string("chainsched/graph.svg", _drawing(picture, plain))


def lay_out(dot: str) -> str:
    """Where everything stands, in Graphviz' plain format: by the ``dot`` program, else in this process."""
    try:
        return str(graphviz.Source(dot).pipe(format="plain", encoding="utf-8"))
    except graphviz.ExecutableNotFound:
        pass
    try:
        import pygraphviz  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise LayoutUnavailable from error
    graph = pygraphviz.AGraph(string=dot)
    return bytes(graph.draw(format="plain", prog="dot")).decode()


def _node(row: dict[str, Any], open_item: OpenItem | None) -> Node:
    return Node(row["external_id"], row["group_name"], row["schedule_type"], _state(row, open_item))


def _state(row: dict[str, Any], open_item: OpenItem | None) -> NodeState:
    if open_item is not None:
        return _OPEN_STATES[open_item]
    if not row["is_enabled"] or not row["group__is_enabled"]:
        return NodeState.DISABLED
    if row["state__consecutive_failures"]:
        return NodeState.FAILING
    return NodeState.IDLE if row["state__last_successful_run"] is None else NodeState.SUCCEEDED


def _drawing(picture: Picture, plain: str) -> dict[str, Any]:
    """Plain output as what the template draws: boxes and curves in points, with y growing downwards."""
    boxes, curves, height = [], [], 0.0
    width = 0.0
    for line in plain.splitlines():
        kind, *fields = line.split()
        if kind == "graph":
            width, height = float(fields[1]) * POINTS, float(fields[2]) * POINTS
        elif kind == "node":
            boxes.append(_box(picture.nodes[int(fields[0][1:])], [float(field) for field in fields[1:5]], height))
        elif kind == "edge":
            curves.append(_curve(fields, height))
    return {
        "boxes": boxes,
        "curves": curves,
        "width": round(width + 2 * MARGIN),
        "height": round(height + 2 * MARGIN + (POINTS / 3 if picture.left_out else 0)),
        "left_out": picture.left_out,
    }


def _box(node: Node, numbers: Sequence[float], height: float) -> dict[str, Any]:
    x, y, wide, high = (number * POINTS for number in numbers)
    left, top = x - wide / 2 + MARGIN, height - y - high / 2 + MARGIN
    return {
        "node": node,
        "fill": FILLS[node.state],
        "left": f"{left:.1f}",
        "top": f"{top:.1f}",
        "wide": f"{wide:.1f}",
        "high": f"{high:.1f}",
        "middle": f"{left + wide / 2:.1f}",
        "baseline": f"{top + high / 2 + 4:.1f}",
    }


def _curve(fields: Sequence[str], height: float) -> str:
    """The path of an edge: its first point, then Bézier points in threes."""
    count = int(fields[2])
    points = list(_points(fields[3 : 3 + 2 * count], height))
    return f"M {points[0]} C {' '.join(points[1:])}"


def _points(numbers: Sequence[str], height: float) -> Iterator[str]:
    for x, y in zip(numbers[::2], numbers[1::2], strict=True):
        yield f"{float(x) * POINTS + MARGIN:.1f} {height - float(y) * POINTS + MARGIN:.1f}"
