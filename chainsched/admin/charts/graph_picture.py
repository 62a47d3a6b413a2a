"""Turns chosen nodes into values that a template draws: nodes with texts and links, edges, legend and table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from chainsched.admin.kit import display
from chainsched.admin.kit.sections import Picture, Shape, Table
from chainsched.exceptions import LayoutUnavailable
from chainsched.graph.collapse import Edge, Fan, FanKey, Unit, choose_edges, node_of
from chainsched.graph.layout import Box, Size, draw
from chainsched.graph.load import Member
from chainsched.graph.states import BY_SEVERITY, NodeState, describe_counts, worst

MAX_NODES = 300
MAX_EDGES = 1_000
MAX_PIECES = 3_000
MAX_LABEL = 32
MAX_PARENTS = 10
MIN_PREFIX = 3
TIMES = "\N{MULTIPLICATION SIGN}"

BAD_STATES = (NodeState.DEAD_LETTER, NodeState.FAILING)
REMEDY = "To see it drawn, install Graphviz' dot program or chainsched[graph] where this site runs."


@dataclass(frozen=True, slots=True)
class Vertex:
    """A node: one manifest, many similar ones, or one or several groups."""

    key: Hashable
    name: str
    states: Mapping[NodeState, int]
    kind: str = "manifest"
    url: str = ""
    is_here: bool = False
    # Shown only by name, as the parent of other nodes; its state is shown on another page.
    is_outside: bool = False

    @property
    def state(self) -> NodeState:
        return worst(self.states)

    @property
    def lines(self) -> list[str]:
        """The text in the box: the name, then the state or the numbers, with the mark of the worst state."""
        label = self.name if len(self.name) <= MAX_LABEL else self.name[: MAX_LABEL - 1] + "…"
        if self.is_outside:
            return [label, self.kind]
        return [label, f"{self.state.mark} {self._numbers()}"]

    @property
    def words(self) -> str:
        """The full text, for the tooltip of the box and for screen readers."""
        if self.is_outside:
            return f"{self.name} ({self.kind})"
        states = self.state.words if self.kind == "manifest" else describe_counts(self.states)
        return f"{self.name} ({self.kind}): {states or 'no manifests'}"

    @property
    def css_class(self) -> str:
        return "chainsched-node-outside" if self.is_outside else self.state.css_class

    def _numbers(self) -> str:
        if self.kind == "manifest":
            return self.state.words
        members = sum(self.states.values())
        bad = [f"{self.states[state]:,} {state.words}" for state in BAD_STATES if self.states.get(state)]
        return " · ".join([f"{members:,} manifest{'' if members == 1 else 's'}", *bad])


@dataclass(slots=True)
class Graph:
    """The nodes, the number of dependencies that each edge stands for, and notes about the parts that are not drawn."""

    vertices: list[Vertex] = field(default_factory=list)
    edges: dict[Edge, int] = field(default_factory=dict)
    notes: list[Any] = field(default_factory=list)


def vertices_of(
    units: Iterable[Unit],
    members: Iterable[Member],
    *,
    address_of: Callable[[int], str],
    address_of_fan: Callable[[Fan], str],
) -> list[Vertex]:
    """The nodes of these units: for an open unit a node for each member, for a collapsed one a single node."""
    by_fan: dict[FanKey, list[Member]] = defaultdict(list)
    for member in members:
        by_fan[member.fan].append(member)
    found: list[Vertex] = []
    for unit in units:
        if unit.is_open:
            found += (vertex_of(member, url=address_of(member.pk)) for member in _members(unit, by_fan))
        else:
            found.append(_fan(unit, address_of_fan(unit.fans[0])))
    return found


def vertex_of(member: Member, *, url: str, is_here: bool = False) -> Vertex:
    """A manifest as a node."""
    return Vertex(node_of(member.pk), member.name, {member.state: 1}, url=url, is_here=is_here)


def group_vertex(
    pks: Sequence[Any], names: Mapping[Any, str], counted: Mapping[Any, Mapping[NodeState, int]], *, url: str
) -> Vertex:
    """A group, or several with the same neighbours, as a node."""
    states = {state: sum(counted.get(pk, {}).get(state, 0) for pk in pks) for state in NodeState}
    name = names[pks[0]] if len(pks) == 1 else f"{_shared([names[pk] for pk in pks])}… {TIMES}{len(pks):,}"
    return Vertex(("groups", pks[0]), name, states, kind="group" if len(pks) == 1 else f"{len(pks):,} groups", url=url)


def picture(title: str, graph: Graph, *, summary: str = "") -> Picture:
    """The graph as a section of a page; if it cannot be laid out, as a table with the reason."""
    drawn = {vertex.key for vertex in graph.vertices}
    edges = {edge: number for edge, number in graph.edges.items() if drawn.issuperset(edge)}
    chosen = choose_edges(edges, most=MAX_EDGES, longest=MAX_PIECES)
    notes = list(graph.notes)
    if len(chosen) < len(edges):
        notes.append(f"And {len(edges) - len(chosen):,} more edges, which are not drawn.")
    text = summary or f"{len(graph.vertices)} nodes and {len(chosen)} edges, from left to right in order of dependency."
    table = _table(graph.vertices, edges)
    shown = {vertex.state for vertex in graph.vertices if not vertex.is_outside}
    numbers = {vertex.key: number for number, vertex in enumerate(graph.vertices)}
    try:
        sizes = [Size(max(map(len, vertex.lines)), 2) for vertex in graph.vertices]
        drawing = draw(sizes, [(numbers[parent], numbers[child]) for parent, child in chosen])
    except LayoutUnavailable as error:
        return Picture(title, text, table, notes=notes, problem=f"{error.fact} {REMEDY}")
    return Picture(
        title,
        text,
        table,
        width=drawing.width,
        height=drawing.height,
        shapes=[_shape(box, graph.vertices[box.number]) for box in drawing.boxes],
        curves=drawing.curves,
        legend=[state for state in BY_SEVERITY if state in shown],
        notes=notes,
    )


def _members(unit: Unit, members: Mapping[FanKey, Sequence[Member]]) -> list[Member]:
    """The members of an open unit; the member of a fan of one is known from its count."""
    found: list[Member] = []
    for fan in unit.fans:
        if fan.size == 1:
            found.append(Member(fan.pk, fan.first, fan.key, worst(fan.states)))
        else:
            found += members.get(fan.key, ())
    return found


def _fan(unit: Unit, url: str) -> Vertex:
    states = {state: sum(fan.states.get(state, 0) for fan in unit.fans) for state in NodeState}
    name = f"{_shared([name for fan in unit.fans for name in (fan.first, fan.last)])}… {TIMES}{unit.size:,}"
    return Vertex(unit.key, name, states, kind=unit.fans[0].key.words, url=url)


def _shared(names: Sequence[str]) -> str:
    """The prefix that all names share, without digits at its end; if it is too short, the first name."""
    pairs = zip(min(names), max(names), strict=False)
    prefix = "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)).rstrip("0123456789")
    return (prefix if len(prefix) >= MIN_PREFIX else min(names))[: MAX_LABEL - 10]


def _shape(box: Box, vertex: Vertex) -> Shape:
    lines = list(zip(box.baselines, vertex.lines, strict=True))
    return Shape(box, lines, vertex.words, vertex.css_class, vertex.url, vertex.is_here)


def _table(vertices: Sequence[Vertex], edges: Mapping[Edge, int]) -> Table:
    names = {vertex.key: vertex.name for vertex in vertices}
    above: dict[Hashable, list[str]] = {}
    for parent, child in edges:
        above.setdefault(child, []).append(names[parent])
    rows = [
        (
            display.linked(vertex.url, vertex.name),
            "" if vertex.is_outside else display.badge(vertex.state, f"{vertex.state.mark} {vertex.state.words}"),
            vertex.kind,
            "" if vertex.kind == "manifest" else describe_counts(vertex.states),
            _few(above.get(vertex.key, ())),
        )
        for vertex in vertices
    ]
    return Table("", ("Node", "State", "Kind", "Manifests", "Depends on"), rows, if_empty="There is nothing to draw.")


def _few(names: Sequence[str]) -> str:
    rest = len(names) - MAX_PARENTS
    return ", ".join(names[:MAX_PARENTS]) + (f" and {rest:,} more" if rest > 0 else "")
