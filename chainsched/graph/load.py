"""Reads the nodes of the graphs on the pages: counted by the database, with a limit on rows and queries.

``seen`` are always the manifests that the user may see; a parent that is not among them is no parent here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

from django.db.models import Case, Count, Exists, F, Max, Min, OuterRef, Q, QuerySet, When

from chainsched.db.id_in import id_in
from chainsched.graph.collapse import Edge, Fan, FanKey
from chainsched.graph.states import NodeState, standing
from chainsched.models import Manifest

# For each fan, one row is read for each state of its members.
MAX_ROWS = 10_000
MAX_GROUPS = 2_000
MAX_GROUP_EDGES = 10_000

IS_NOT_RETIRED = Q(retired_at__isnull=True)


@dataclass(frozen=True, slots=True)
class Member:
    """A manifest that is drawn by itself."""

    pk: int
    name: str
    fan: FanKey
    state: NodeState


class GraphLoader:
    """The manifests that a user may see, in fans and one by one. Retired ones have no children here.

    For a part of the forest, ``parents`` limits the manifests that can be parents, so that no others are read.
    """

    def __init__(self, seen: QuerySet[Any], *, parents: Q | None = None) -> None:
        ids = seen.order_by().values("pk")
        # A lookup by index for each row: with a list of all ids PostgreSQL would scan the whole list for each row, once
        # it estimates that the list is too large for a hash table.
        is_known = Exists((ids if parents is None else ids.filter(parents)).filter(pk=OuterRef("depends_on")))
        parent = Case(When(is_known, then=F("depends_on_id")))
        known = Manifest.objects.filter(pk__in=ids).order_by()
        self.manifests: QuerySet[Any] = known.annotate(parent=parent, standing=standing())
        self.current = self.manifests.filter(IS_NOT_RETIRED)

    def fans(self, within: Q) -> tuple[list[Fan], bool]:
        """The fans of these manifests, those nearest to the top first, and whether there are more: one query."""
        own = ("parent", "group_id", "schedule_type", "standing")
        above = ("depends_on__depends_on_id", "depends_on__group_id", "depends_on__schedule_type", "group__name")
        counted = {"n": Count("pk"), "first": Min("external_id"), "last": Max("external_id"), "least": Min("pk")}
        grouped: Any = self.current.filter(within).values_list(*own, *above)
        grouped = grouped.annotate(**counted, height=Min("depth"))
        rows = list(grouped.order_by("height", "-n", "least")[: MAX_ROWS + 1])
        return _merged(rows[:MAX_ROWS]), len(rows) > MAX_ROWS

    def count(self, within: Q) -> int:
        """How many manifests there are within a condition: one query."""
        return int(self.current.filter(within).count())

    def members(self, fans: Iterable[Fan], *, others: Q | None = None, limit: int) -> list[Member]:
        """The manifests of these fans and of another condition, one by one: one query, or none."""
        chosen = [IS_NOT_RETIRED & term for term in _terms(fan.key for fan in fans)]
        if others is not None:
            chosen.append(others)
        if not chosen:
            return []
        columns = ("pk", "external_id", "parent", "group_id", "schedule_type", "standing")
        rows = self.manifests.filter(reduce(or_, chosen)).order_by("external_id").values_list(*columns)
        return [
            Member(pk, name, FanKey(parent, group, kind), NodeState(state))
            for pk, name, parent, group, kind, state in rows[:limit]
        ]

    def by_group(self, group_ids: Sequence[int]) -> dict[int, dict[NodeState, int]]:
        """How many members of each group are in which state: one query."""
        rows = self.current.filter(id_in(group_id=group_ids)).values_list("group_id", "standing")
        found: dict[int, dict[NodeState, int]] = defaultdict(dict)
        for group, state, number in rows.annotate(n=Count("pk")).order_by():
            found[group][NodeState(state)] = number
        return found

    def between_groups(self, *, limit: int = MAX_GROUP_EDGES) -> dict[Edge, int]:
        """Which groups depend on which, and by how many manifests; the largest numbers first, in one query."""
        across = self.current.filter(parent__isnull=False).exclude(group_id=F("depends_on__group_id"))
        rows = across.values_list("depends_on__group_id", "group_id").annotate(n=Count("pk"))
        return {(parent, child): number for parent, child, number in rows.order_by("-n")[:limit]}


def _merged(rows: Iterable[Sequence[Any]]) -> list[Fan]:
    """A fan for each set of siblings; the database returns one row for each of their states."""
    together: dict[FanKey, list[Sequence[Any]]] = defaultdict(list)
    for row in rows:
        together[FanKey(row[0], row[1], row[2])].append(row)
    return [_fan(key, found) for key, found in together.items()]


def _fan(key: FanKey, rows: Sequence[Sequence[Any]]) -> Fan:
    states: Mapping[NodeState, int] = {NodeState(row[3]): row[8] for row in rows}
    above = None if key.parent is None else FanKey(rows[0][4], rows[0][5], rows[0][6])
    first, last = min(row[9] for row in rows), max(row[10] for row in rows)
    return Fan(key, states, first, last, min(row[11] for row in rows), above, rows[0][7])


def _terms(keys: Iterable[FanKey]) -> Iterator[Q]:
    """Conditions for the members of these fans, to be joined with OR: few, regardless of the number of fans."""
    parents: dict[tuple[int, str], list[int | None]] = defaultdict(list)
    for key in keys:
        parents[key.group, key.kind].append(key.parent)
    for (group, kind), above in parents.items():
        below = Q(id_in(depends_on=[parent for parent in above if parent is not None]))
        yield Q(below | Q(parent__isnull=True) if None in above else below, group_id=group, schedule_type=kind)
