"""Reads the nodes and edges of the graphs on the pages: counted by the database, with a limit on rows and queries.

``seen`` are always the manifests that the user may see; a parent that is not among them is no parent here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

from django.db.models import BigIntegerField, Case, Count, Exists, F, Max, Min, OuterRef, Q, QuerySet, Value, When

from chainsched.db import bulk
from chainsched.db.id_in import id_in
from chainsched.graph.collapse import End, Fan, FanKey, Link
from chainsched.graph.states import NodeState, standing
from chainsched.models import Dependency, Manifest

# For each fan, one row is read for each state of its members.
MAX_ROWS = 10_000
MAX_LINKS = 20_000
MAX_GROUPS = 2_000
MAX_GROUP_EDGES = 10_000
# The manifests before, and those after, a manifest that are looked at; the levels before it.
MAX_AROUND = 20_000
MAX_LEVELS = 50

IS_NOT_RETIRED = Q(retired_at__isnull=True)


@dataclass(frozen=True, slots=True)
class Member:
    """A manifest that is drawn by itself."""

    pk: int
    name: str
    fan: FanKey
    state: NodeState
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Around:
    """A manifest, those before it up to ``MAX_LEVELS``, and those after it up to the second level."""

    here: int
    above: Collection[int]
    below: Collection[int]
    # Whether there are more.
    is_cut: bool

    @property
    def ids(self) -> list[int]:
        return [*self.above, self.here, *self.below]

    def side_of(self, pk: int) -> int:
        """Where a manifest is: -1 above, 0 here, 1 below."""
        return -1 if pk in self.above else int(pk != self.here)


class GraphLoader:
    """The manifests that a user may see, in fans and one by one, and their edges. Retired ones are not drawn.

    ``retired`` are those that are drawn nevertheless.
    """

    def __init__(self, seen: QuerySet[Any], *, retired: Collection[int] = ()) -> None:
        self.seen = seen.order_by().values("pk")
        self.is_narrowed = bool(seen.query.where)
        self.retired = retired
        known = Manifest.objects.order_by()
        if self.is_narrowed:
            known = known.filter(pk__in=self.seen)
        self.manifests: QuerySet[Any] = known.annotate(
            parent=self._tree_parent(""), level=_level(""), above_level=_level("depends_on__"), standing=standing()
        )
        self.current = self.manifests.filter(self.is_drawn)

    @property
    def is_drawn(self) -> Q:
        """The condition for manifests that are not retired, or drawn nevertheless."""
        return self._is_drawn("")

    def fans(self, within: Q) -> tuple[list[Fan], bool]:
        """The fans of these manifests, those nearest to the top first, and whether there are more: one query."""
        above = ("depends_on__depends_on_id", "depends_on__group_id", "depends_on__schedule_type", "above_level")
        counted = {"n": Count("pk"), "first": Min("external_id"), "last": Max("external_id"), "least": Min("pk")}
        grouped: Any = self.current.filter(within).values_list(*_FAN, *above, "standing", "group__name")
        grouped = grouped.annotate(**counted, height=Min("depth"))
        rows = list(grouped.order_by("height", "-n", "least")[: MAX_ROWS + 1])
        return _merged(rows[:MAX_ROWS]), len(rows) > MAX_ROWS

    def count(self, within: Q) -> int:
        """How many manifests there are within a condition: one query."""
        return int(self.current.filter(within).count())

    def members(self, fans: Iterable[Fan], *, others: Q | None = None, limit: int) -> list[Member]:
        """The manifests of these fans and of another condition, one by one: one query, or none."""
        chosen = [self.is_drawn & term for term in _terms(fan.key for fan in fans)]
        if others is not None:
            chosen.append(others)
        if not chosen:
            return []
        rows = self.manifests.filter(reduce(or_, chosen)).order_by("external_id")
        return [
            Member(pk, name, FanKey(*fan), NodeState(state), depth)
            for pk, name, state, depth, *fan in rows.values_list("pk", "external_id", "standing", "depth", *_FAN)[
                :limit
            ]
        ]

    def links(self, within: Q, *, opened: Collection[int]) -> tuple[list[Link], bool]:
        """The edges within a condition, between fans and ``opened`` manifests, and whether there are more: one query.

        If not all can be read, those of joins are left out first: there can be more of them than of manifests.
        """
        columns = {
            f"{end}_{name}": column
            for end in ("parent", "child")
            for name, column in {
                "pk": Case(When(id_in(**{end: opened}), then=F(f"{end}_id")), output_field=BigIntegerField()),
                "tree_parent": self._tree_parent(f"{end}__"),
                "group": F(f"{end}__group_id"),
                "kind": F(f"{end}__schedule_type"),
                "level": _level(f"{end}__"),
            }.items()
        }
        grouped: Any = self._edges(within).annotate(**columns).values_list(*columns)
        rows = list(grouped.annotate(n=Count("pk")).order_by("child_level", "-n")[: MAX_LINKS + 1])
        links = [
            Link(End(row[0], FanKey(*row[1:5])), End(row[5], FanKey(*row[6:10])), row[10]) for row in rows[:MAX_LINKS]
        ]
        return links, len(rows) > MAX_LINKS

    def by_group(self, group_ids: Sequence[int]) -> dict[int, dict[NodeState, int]]:
        """How many members of each group are in which state: one query."""
        rows = self.current.filter(id_in(group_id=group_ids)).values_list("group_id", "standing")
        found: dict[int, dict[NodeState, int]] = defaultdict(dict)
        for group, state, number in rows.annotate(n=Count("pk")).order_by():
            found[group][NodeState(state)] = number
        return found

    def between_groups(self, within: Q | None = None, *, limit: int = MAX_GROUP_EDGES) -> dict[tuple[int, int], int]:
        """Which groups depend on which, and by how many manifests; the largest numbers first, in one query."""
        # Edges inside of groups are counted as well: by a condition on both groups PostgreSQL may join all manifests to
        # all others first.
        edges: Any = self._edges(within or Q()).values_list("parent__group_id", "child__group_id")
        rows = edges.annotate(n=Count("child", distinct=True)).order_by("-n")[: limit + MAX_GROUPS]
        return dict([((parent, child), number) for parent, child, number in rows if parent != child][:limit])

    def _edges(self, within: Q) -> QuerySet[Dependency]:
        """The edges within a condition between manifests that are drawn."""
        # As an expression, which PostgreSQL takes to be true of half of the rows: without statistics it expects hardly
        # any row to be NULL, and would look for the parents of each child among all manifests.
        ends = [
            Case(When(self._is_drawn(f"{end}__"), then=Value(True)), default=Value(False))
            for end in ("parent", "child")
        ]
        edges = Dependency.objects.filter(within, *ends).order_by()
        if not self.is_narrowed:
            return edges
        return edges.filter(*(Exists(self.seen.filter(pk=OuterRef(end))) for end in ("parent", "child")))

    def _is_drawn(self, manifest: str) -> Q:
        is_current = Q(**{f"{manifest}retired_at__isnull": True})
        return is_current | Q(id_in(**{f"{manifest}pk": self.retired})) if self.retired else is_current

    def _tree_parent(self, manifest: str) -> Any:
        """The parent that a manifest hangs on, if the user may see it."""
        parent_id = F(f"{manifest}depends_on_id")
        if not self.is_narrowed:
            return parent_id
        # A lookup by index for each row: with a list of all ids PostgreSQL would scan the whole list for each row, once
        # it estimates that the list is too large for a hash table.
        is_seen = Exists(self.seen.filter(pk=OuterRef(f"{manifest}depends_on")))
        return Case(When(is_seen, then=parent_id), output_field=BigIntegerField())


def look_around(manifest_id: int, *, seen: QuerySet[Any] | None = None) -> Around:
    """The manifests around this one by edges of all kinds, the nearest first: one query.

    ``seen`` are the manifests over which the way leads; without it, over all.
    """
    edge, values = "chainsched_dependency e", ()
    if seen is not None:
        ids, ids_values = seen.order_by().values("pk").query.sql_with_params()
        edge = f"(SELECT * FROM chainsched_dependency WHERE child_id IN ({ids}) AND parent_id IN ({ids})) e"  # noqa: S608
        values = (*ids_values, *ids_values)
    # The table is named in each place: a query with a name that is used more than once is carried out as a whole.
    sql = (
        f"WITH RECURSIVE above(id, step) AS (SELECT e.parent_id, 1 FROM {edge} WHERE e.child_id = %s "  # noqa: S608
        f"UNION SELECT e.parent_id, a.step + 1 FROM {edge} JOIN above a ON e.child_id = a.id WHERE a.step <= %s), "
        f"below(id) AS (SELECT e.child_id FROM {edge} WHERE e.parent_id = %s), "
        f"further(id) AS (SELECT id FROM below UNION SELECT e.child_id FROM {edge} JOIN below b ON e.parent_id = b.id) "
        "SELECT step, id FROM (SELECT step, id FROM above LIMIT %s) a UNION ALL "
        "SELECT 0, id FROM (SELECT id FROM further LIMIT %s) b"
    )
    limits = (MAX_AROUND + 1, MAX_AROUND + 1)
    parameters = [*values, manifest_id, *values, MAX_LEVELS, *values, manifest_id, *values, *limits]
    rows = [(step, id_) for step, id_ in bulk.select(sql, parameters) if id_ != manifest_id]
    above = {id_ for step, id_ in rows if 1 <= step <= MAX_LEVELS}
    below = {id_ for step, id_ in rows if step == 0} - above
    is_cut = len(rows) > MAX_AROUND or any(step > MAX_LEVELS for step, _ in rows)
    return Around(manifest_id, above, below, is_cut=is_cut)


_FAN = ("parent", "group_id", "schedule_type", "level")


class _FanRow(NamedTuple):
    """A row that the database returns for a fan: one for each state of its members."""

    parent: int | None
    group: int
    kind: str
    level: int
    above_parent: int | None
    above_group: int
    above_kind: str
    above_level: int
    state: str
    group_name: str
    number: int
    first: str
    last: str
    pk: int
    depth: int


def _level(manifest: str) -> Case:
    """The depth of a join, 0 for any other manifest."""
    is_join = When(**{f"{manifest}is_join": True}, then=F(f"{manifest}depth"))
    return Case(is_join, default=Value(0), output_field=BigIntegerField())


def _merged(rows: Iterable[Sequence[Any]]) -> list[Fan]:
    """A fan for each set of siblings."""
    together: dict[FanKey, list[_FanRow]] = defaultdict(list)
    for row in map(_FanRow._make, rows):
        together[FanKey(*row[:4])].append(row)
    return [_fan(key, found) for key, found in together.items()]


def _fan(key: FanKey, rows: Sequence[_FanRow]) -> Fan:
    states: Mapping[NodeState, int] = {NodeState(row.state): row.number for row in rows}
    return Fan(
        key,
        states,
        min(row.first for row in rows),
        max(row.last for row in rows),
        min(row.pk for row in rows),
        above=None if key.parent is None else FanKey(*rows[0][4:8]),
        group_name=rows[0].group_name,
        depth=min(row.depth for row in rows),
    )


def _terms(keys: Iterable[FanKey]) -> Iterator[Q]:
    """Conditions for the members of these fans, to be joined with OR: few, regardless of the number of fans."""
    parents: dict[tuple[int, str, int], list[int | None]] = defaultdict(list)
    for key in keys:
        parents[key.group, key.kind, key.level].append(key.parent)
    for (group, kind, level), above in parents.items():
        below = Q(id_in(depends_on=[parent for parent in above if parent is not None]))
        siblings = below | Q(parent__isnull=True) if None in above else below
        yield Q(siblings, group_id=group, schedule_type=kind, level=level)
