"""Choose the nodes of a large graph that are drawn: similar manifests become one node, the rest is counted.

No row is read or written here. Nodes are chosen in a forest: a manifest hangs on its only parent, a fan-in on its gate,
and a join of several parents on none. Siblings of the same group and kind are a *fan*; joins are apart, by their depth.
At first all fans are collapsed: fans below fans become one node as well. Then fans are opened from the top down,
smaller ones first, as long as there is room. Between the nodes all edges are drawn, also those of joins. Groups can
depend on many others; groups that have the same neighbours are collapsed.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from chainsched.graph.states import NodeState

Edge = tuple[Hashable, Hashable]


class FanKey(NamedTuple):
    """The values that the siblings of a fan share."""

    parent: int | None
    group: int
    kind: str
    # The depth of joins; 0 for all others. Joins after joins are no siblings, though no parent is above them.
    level: int = 0

    @property
    def words(self) -> str:
        """The kind in words."""
        return "joins" if self.level else f"{self.kind.replace('_', ' ')} manifests"


class End(NamedTuple):
    """One end of an edge: the manifest if it may be drawn by itself, and its fan."""

    pk: int | None
    fan: FanKey


class Link(NamedTuple):
    """The edges from the manifests at one end to those at the other, and their number."""

    parent: End
    child: End
    number: int


@dataclass(frozen=True, slots=True)
class Fan:
    """Siblings: how many are in which state, the first and last of their names, and the fan of their parent."""

    key: FanKey
    states: Mapping[NodeState, int]
    first: str
    last: str
    pk: int
    above: FanKey | None = None
    group_name: str = ""
    depth: int = 0

    @property
    def size(self) -> int:
        return sum(self.states.values())


@dataclass(slots=True, eq=False)
class Unit:
    """Fans that are one node, or, once opened, a node for each member."""

    key: Hashable
    fans: list[Fan]
    may_open: bool = True
    # How many nodes are reserved for the fans below.
    reserved: int = 0
    is_open: bool = False

    @property
    def size(self) -> int:
        return sum(fan.size for fan in self.fans)

    @property
    def depth(self) -> int:
        return min(fan.depth for fan in self.fans)


@dataclass(frozen=True, slots=True)
class Collapsed:
    """The units to draw, parents first, and how many manifests none of them shows."""

    units: Sequence[Unit]
    left_out: int = 0


def node_of(pk: int | None) -> Hashable:
    """The key of the node that is one manifest."""
    return ("manifest", pk)


def collapse(fans: Iterable[Fan], *, anchors: Mapping[int | None, Hashable], room: int) -> Collapsed:
    """Choose at most ``room`` nodes to draw; ``anchors`` are nodes that are drawn anyway, by their manifests."""
    known = {fan.key: fan for fan in fans}
    children: dict[FanKey, list[Fan]] = defaultdict(list)
    for fan in known.values():
        if fan.key.parent not in anchors and (above := _above(fan, known)) is not None:
            children[above].append(fan)
    with_parent = {fan.key for below in children.values() for fan in below}
    top = [fan for fan in known.values() if fan.key not in with_parent]
    return _Collapser(children, room).run(top, anchors, total=sum(fan.size for fan in known.values()))


def connect(units: Iterable[Unit], links: Iterable[Link], *, groups: Mapping[int, Hashable]) -> dict[Edge, int]:
    """The edges between the nodes of these units; ``groups`` are nodes that stand for all manifests of other groups.

    Edges inside of a node, and those from or to manifests that are not drawn, are left out.
    """
    folded = {fan.key: unit.key for unit in units if not unit.is_open for fan in unit.fans}
    edges: Counter[Edge] = Counter()
    for link in links:
        parent, child = (_node(end, folded, groups) for end in (link.parent, link.child))
        if parent is not None and child is not None and parent != child:
            edges[parent, child] += link.number
    return dict(edges)


def _node(end: End, folded: Mapping[FanKey, Hashable], groups: Mapping[int, Hashable]) -> Hashable | None:
    if end.fan.group in groups:
        return groups[end.fan.group]
    return folded.get(end.fan) if end.pk is None else node_of(end.pk)


def _above(fan: Fan, known: Mapping[FanKey, Fan]) -> FanKey | None:
    """The fan of its parent, which is a top fan if the user may not see the parent's own parent."""
    if fan.above is None:
        return None
    return next((key for key in (fan.above, fan.above._replace(parent=None)) if key in known), None)


@dataclass(slots=True)
class _Collapser:
    children: Mapping[FanKey, list[Fan]]
    room: int
    planned_nodes: int = 0
    below: Counter[FanKey] = field(default_factory=Counter)

    def run(self, top: Sequence[Fan], anchors: Mapping[int | None, Hashable], *, total: int) -> Collapsed:
        waiting = deque(self._top_units(top, anchors))
        drawn: list[Unit] = []
        taken = 0
        while waiting:
            unit = waiting.popleft()
            self._open_if_there_is_room(unit)
            nodes = unit.size if unit.is_open else 1
            if taken + nodes > self.room:
                continue
            drawn.append(unit)
            taken += nodes
            waiting.extend(self._units_below(unit))
        # A join of several parents hangs on none of them, but comes after them.
        drawn.sort(key=lambda unit: unit.depth)
        return Collapsed(drawn, left_out=total - sum(unit.size for unit in drawn))

    def _top_units(self, top: Sequence[Fan], anchors: Mapping[int | None, Hashable]) -> list[Unit]:
        """The top fans by their parent node, with the number of nodes each needs while all fans below are collapsed."""
        together: dict[Hashable, list[Fan]] = defaultdict(list)
        for fan in top:
            together[anchors.get(fan.key.parent), fan.key[1:]].append(fan)
        units = [Unit(("fan", key), fans, reserved=self._classes_below(fans)) for key, fans in together.items()]
        self.planned_nodes = sum(1 + unit.reserved for unit in units)
        return sorted(units, key=lambda unit: unit.size)

    def _classes_below(self, fans: list[Fan]) -> int:
        """Count the nodes below while all are collapsed; also stores how many fans are below each fan."""
        classes, order = 0, []
        level = [fans]
        while level:
            deeper: list[list[Fan]] = []
            for alike in level:
                order += alike
                deeper += _alike(child for fan in alike for child in self.children.get(fan.key, ()))
            classes += len(deeper)
            level = deeper
        for fan in reversed(order):
            self.below[fan.key] = sum(1 + self.below[child.key] for child in self.children.get(fan.key, ()))
        return classes

    def _open_if_there_is_room(self, unit: Unit) -> None:
        if unit.size == 1:
            unit.is_open = True
            return
        spread = sum(self.below[fan.key] for fan in unit.fans)
        growth = unit.size - 1 + spread - unit.reserved
        if unit.may_open and self.planned_nodes + growth <= self.room:
            self.planned_nodes += growth
            unit.is_open = True

    def _units_below(self, unit: Unit) -> list[Unit]:
        """Below single manifests each fan is a unit; below a collapsed unit, all similar fans are one."""
        found = [child for fan in unit.fans for child in self.children.get(fan.key, ())]
        if not unit.is_open:
            return [Unit((unit.key, alike[0].key[1:]), alike, may_open=False) for alike in _alike(found)]
        units = [Unit(("fan", fan.key), [fan], may_open=unit.may_open, reserved=self.below[fan.key]) for fan in found]
        return sorted(units, key=lambda below: below.size)


def _alike(fans: Iterable[Fan]) -> list[list[Fan]]:
    together: dict[Hashable, list[Fan]] = defaultdict(list)
    for fan in fans:
        together[fan.key[1:]].append(fan)
    return list(together.values())


def collapse_neighbours(nodes: Sequence[Hashable], edges: Iterable[Edge], *, room: int) -> list[list[Hashable]]:
    """The nodes one by one if there is room; else nodes with the same neighbours together, the larger sets first."""
    if len(nodes) <= room:
        return [[node] for node in nodes]
    around: dict[Hashable, tuple[set[Hashable], set[Hashable]]] = {node: (set(), set()) for node in nodes}
    for parent, child in edges:
        around[parent][1].add(child)
        around[child][0].add(parent)
    together: dict[Hashable, list[Hashable]] = defaultdict(list)
    for node, (above, below) in around.items():
        together[frozenset(above), frozenset(below)].append(node)
    return list(together.values())


def choose_edges(edges: Mapping[Edge, int], *, most: int, longest: int) -> list[Edge]:
    """Up to ``most`` edges, first those that span few ranks, then those that represent many dependencies.

    Graphviz breaks an edge into a piece for each rank, and its cost grows with the pieces: at most ``longest`` pieces.
    """
    ranks = _ranks(edges)
    spans = {edge: abs(ranks[edge[1]] - ranks[edge[0]]) or 1 for edge in edges}
    chosen: list[Edge] = []
    for edge in sorted(edges, key=lambda edge: (spans[edge], -edges[edge])):
        longest -= spans[edge]
        if len(chosen) == most or longest < 0:
            break
        chosen.append(edge)
    return chosen


def _ranks(edges: Iterable[Edge]) -> dict[Hashable, int]:
    """The length of the longest path from the top to each node; nodes on a cycle keep their first rank."""
    below: dict[Hashable, list[Hashable]] = defaultdict(list)
    waits_for: Counter[Hashable] = Counter()
    for parent, child in edges:
        below[parent].append(child)
        waits_for[child] += 1
    ranks: dict[Hashable, int] = dict.fromkeys([*below, *waits_for], 0)
    ready = deque(node for node in ranks if not waits_for[node])
    while ready:
        node = ready.popleft()
        for child in below[node]:
            ranks[child] = max(ranks[child], ranks[node] + 1)
            waits_for[child] -= 1
            if not waits_for[child]:
                ready.append(child)
    return ranks
