"""Part of seed and remove: the edges of the graph. They change here and nowhere else.

Reads:  the stored edges around the manifests that changed; the caller holds the lock on the graph.
Writes: Dependency rows: declared ones, and those that follow from a fan-in; the version of the graph.
Next:   near and depth follow the edges.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from chainsched.db import bulk
from chainsched.db.chunks import chunks
from chainsched.db.id_in import id_in
from chainsched.domain.graph import cycle_through_fan_in, no_common_head, roots_of
from chainsched.domain.joins import FanIn
from chainsched.domain.states import RunCondition
from chainsched.flow.schedule.near import refresh_near
from chainsched.models import Dependency, Manifest, NamedLock, Near


class Edge(NamedTuple):
    """The columns of an edge that can differ."""

    condition: int
    is_gate: bool
    is_derived: bool


MEMBER = Edge(RunCondition.COMPLETION.value, is_gate=False, is_derived=True)
Wanted = Mapping[int, Mapping[int, Edge]]


@dataclass(frozen=True, slots=True)
class FanInJoin:
    """A fan-in, and its gate."""

    join_id: int
    gate_id: int
    kind: FanIn
    depth: int


def write_edges(wanted: Wanted) -> None:
    """Give each of these children exactly the declared edges named here, by parent; then all that follows from them.

    Raises CycleError where an edge that follows from a fan-in would close a circle, and DeclarationError where a move
    would leave a stored join with parents that no run reaches together.
    """
    if not wanted:
        return
    changes = _Changes()
    stored = _load(wanted, is_derived=False)
    changes.replace(wanted, stored)
    _check_heads([child for child, edges in stored.items() if edges.keys() - wanted[child].keys()])
    _derive(changes, fan_in_ids=wanted)
    # All parents: a child that became a join is another place on their way, although its edges stay.
    refresh_near({*changes.parents, *wanted, *(parent for edges in wanted.values() for parent in edges)})


def follow_removal(parent_ids: Collection[int], *, orphan_ids: Collection[int]) -> None:
    """Let fan-ins and the joins ahead follow after manifests were removed with their edges.

    ``parent_ids`` were above the removed manifests, ``orphan_ids`` below them.
    """
    changes = _Changes()
    changes.parents |= set(parent_ids)
    changes.version()
    _derive(changes, fan_in_ids=orphan_ids)
    refresh_near(changes.parents)


def find_wrong_members() -> dict[int, tuple[set[int], set[int]]]:
    """The fan-ins with wrong members: the stored ones, and the right ones by the graph."""
    wrong = {}
    for fan_in in _fan_ins(None):
        stored = set(_load([fan_in.join_id], is_derived=True).get(fan_in.join_id, {}))
        # A one-time child that is done keeps its edge, which counts for nothing, until edges change next.
        stored -= set(Manifest.objects.filter(id_in(id=stored), done_at__isnull=False).values_list("id", flat=True))
        right = _members(fan_in) - _load([fan_in.join_id], is_derived=False).get(fan_in.join_id, {}).keys()
        if stored != right:
            wrong[fan_in.join_id] = (stored, right)
    return wrong


def derive_again(join_ids: Collection[int]) -> None:
    """Rewrite the members of these fan-ins."""
    changes = _Changes()
    for fan_in in _fan_ins(None):
        if fan_in.join_id in join_ids:
            _write_members(changes, fan_in)
    refresh_near(changes.parents)


class _Changes:
    """Writes differences of edges, and remembers which parents they touched; the version counts up once."""

    def __init__(self) -> None:
        self.parents: set[int] = set()
        self._version: int | None = None

    def version(self) -> int:
        if self._version is None:
            self._version = NamedLock.objects.next_version()
        return self._version

    def replace(self, wanted: Wanted, stored: Wanted) -> None:
        gone = [(child, parent) for child, edges in stored.items() for parent in edges if parent not in wanted[child]]
        changed = [
            (child, parent, edge)
            for child, edges in wanted.items()
            for parent, edge in edges.items()
            if stored.get(child, {}).get(parent) != edge
        ]
        self._delete(gone)
        self._write(changed)
        self.parents |= {parent for _, parent in gone} | {parent for _, parent, _ in changed}

    def _delete(self, pairs: Collection[tuple[int, int]]) -> None:
        if pairs:
            self.version()
        for part in chunks(sorted(pairs)):
            Dependency.objects.remove(part)

    def _write(self, edges: Collection[tuple[int, int, Edge]]) -> None:
        """Insert new edges; one that was there, declared or derived, keeps the version since which it is."""
        if not edges:
            return
        since = self.version()
        for part in chunks(sorted(edges)):
            rows = [
                {"child": child, "parent": parent, **edge._asdict(), "since": since} for child, parent, edge in part
            ]
            inserted = bulk.insert(Dependency, rows, returning=("child", "parent"), skip_conflicts=True)
            new = {(row["child"], row["parent"]) for row in inserted}
            for child, parent, edge in part:
                if (child, parent) not in new:
                    Dependency.objects.filter(child=child, parent=parent).update(**edge._asdict())


def _load(child_ids: Iterable[int], *, is_derived: bool) -> dict[int, dict[int, Edge]]:
    found: dict[int, dict[int, Edge]] = defaultdict(dict)
    for part in chunks(sorted(child_ids)):
        edges = Dependency.objects.filter(id_in(child=part), is_derived=is_derived)
        for child, parent, *columns in edges.values_list("child_id", "parent_id", *Edge._fields):
            found[child][parent] = Edge(*columns)
    return found


def _derive(changes: _Changes, *, fan_in_ids: Collection[int]) -> None:
    """Rewrite the members of fan-ins that the changes concern: those over siblings, then over trees, the lowest first.

    Over siblings: the children of its gate changed. Over a tree: anything below its gate did.
    """
    touched = set(changes.parents)
    no_longer = set(fan_in_ids)
    gates = Dependency.objects.with_ancestors(touched | no_longer)
    # A fan-in is one of the joins that its gate leads to first; those over new gates are not stored as such yet.
    for fan_in in _fan_ins(gates, among=Near.objects.joins_after(gates) | no_longer):
        no_longer.discard(fan_in.join_id)
        is_near = fan_in.gate_id in touched or fan_in.join_id in fan_in_ids
        if fan_in.kind is FanIn.TREE or is_near:
            _write_members(changes, fan_in)
    leftover = _load(no_longer, is_derived=True)
    changes.replace({child: {} for child in leftover}, leftover)


def _check_heads(moved_ids: Collection[int]) -> None:
    """Refuse a move after which the parents of a join below, or of a moved join, descend from no manifest in common."""
    below = {*moved_ids, *(id_ for moved in moved_ids for id_ in Dependency.objects.below(moved))}
    joins = _load(Manifest.objects.several_parents(below), is_derived=False)
    above = Dependency.objects.with_ancestors({parent for edges in joins.values() for parent in edges})
    parents = {id_: list(edges) for id_, edges in _load(above, is_derived=False).items()}
    roots = roots_of({**{id_: [] for id_ in above}, **parents})
    for join_id, edges in joins.items():
        if len(edges) > 1 and not frozenset.intersection(*(roots[parent] for parent in edges)):
            names = Manifest.objects.filter(id__in=[join_id, *edges]).values_list("id", "external_id")
            known = dict(names)
            raise no_common_head(known.pop(join_id), sorted(known.values()))


def _write_members(changes: _Changes, fan_in: FanInJoin) -> None:
    declared = _load([fan_in.join_id], is_derived=False).get(fan_in.join_id, {})
    members = {member: MEMBER for member in _members(fan_in) if member not in declared}
    stored = _load([fan_in.join_id], is_derived=True).get(fan_in.join_id, {})
    new = members.keys() - stored.keys()
    if new:
        _check_circle(fan_in, new)
    changes.replace({fan_in.join_id: members}, {fan_in.join_id: stored})


def _check_circle(fan_in: FanInJoin, members: Collection[int]) -> None:
    """Refuse members that come after the fan-in itself."""
    if circle := Dependency.objects.below(fan_in.join_id).intersection(members):
        names = dict(Manifest.objects.filter(id__in=[fan_in.join_id, min(circle)]).values_list("id", "external_id"))
        raise cycle_through_fan_in(names[fan_in.join_id], names[min(circle)])


def _fan_ins(gate_ids: Collection[int] | None, *, among: Collection[int] = ()) -> list[FanInJoin]:
    """The fan-ins among these with one of these gates, or all: over siblings first, then over trees, lowest first."""
    rows = Manifest.objects.known().exclude(fan_in="").filter(depends_on__isnull=False)
    if gate_ids is not None:
        rows = rows.filter(id_in(id=among), id_in(depends_on=gate_ids))
    found = [
        FanInJoin(join_id, gate_id or 0, FanIn(kind), depth)
        for join_id, gate_id, kind, depth in rows.values_list("id", "depends_on_id", "fan_in", "depth")
    ]
    return sorted(found, key=lambda fan_in: (fan_in.kind is FanIn.TREE, -fan_in.depth, fan_in.join_id))


def _members(fan_in: FanInJoin) -> set[int]:
    """The manifests that a fan-in waits for. One-time children that are done have no part any more."""
    if fan_in.kind is FanIn.TREE:
        return Dependency.objects.leaves_below(fan_in.gate_id)
    edges = Dependency.objects.explicit().filter(parent=fan_in.gate_id, is_gate=False, child__done_at__isnull=True)
    return set(edges.values_list("child_id", flat=True))
