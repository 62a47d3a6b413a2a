"""Edges of the graph: which manifest runs after which. ``flow.schedule.edges`` alone writes them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import models
from django.db.models import F, Q

from chainsched.db import bulk
from chainsched.db.compiled import CompiledQuery, Ids
from chainsched.db.fields import PinnedManager, choices, knows
from chainsched.db.id_in import among_ids, id_in
from chainsched.domain.known import Kinds
from chainsched.domain.states import RunCondition, ScheduleType
from chainsched.models.manifest import Manifest

ID = models.BigIntegerField()
KINDS: Kinds = {"condition": RunCondition}


class FiringEdge(NamedTuple):
    """An edge as the end of a run sees it."""

    parent_id: int
    child_id: int
    condition: int
    is_gate: bool
    since: int
    is_to_join: bool
    child_type: str


class Counted(NamedTuple):
    """A number of edges: those that count, and all that are stored."""

    present: int
    stored: int


# Not members of a fan-in that are retired, or were one-time children and are done.
_PRESENT = Q(is_derived=False) | Q(parent__done_at__isnull=True, parent__retired_at__isnull=True)


class DependencyQuerySet(models.QuerySet["Dependency"]):
    """Reads of edges."""

    def explicit(self) -> DependencyQuerySet:
        """The edges that a declaration names; the others follow from a fan-in."""
        return self.filter(is_derived=False)

    def unknown_children(self) -> set[int]:
        """The manifests to which an edge leads with a condition that only a newer version knows."""
        return set(self.exclude(knows(KINDS)).values_list("child_id", flat=True))

    def leaving(self, parent_ids: Collection[int]) -> list[FiringEdge]:
        """The edges over which outcomes of these manifests fire.

        Dormant children fire by activation only, and a one-time child that is done never again. Also those of which
        this version cannot say whether they fire: their condition or child is of a newer one.
        """
        return [FiringEdge(*row) for row in _LEAVING.rows(ids=parent_ids)]

    def joins_groups(self, above: int, below: int, *, without: Collection[int]) -> bool:
        """Whether an edge leads from one group to another, to a manifest that is not retired and none of these."""
        return self._live(without).filter(parent__group=above, child__group=below).exists()

    def between_groups(self, above: Collection[int], *, without: Collection[int]) -> list[tuple[int, int]]:
        """The pairs of groups with an edge that leads from one of these groups to another one."""
        leaving = self._live(without).filter(id_in(parent__group=above)).exclude(parent__group=F("child__group"))
        return list(leaving.order_by().values_list("parent__group_id", "child__group_id").distinct())

    def _live(self, without: Collection[int]) -> DependencyQuerySet:
        return self.explicit().filter(child__retired_at__isnull=True).exclude(id_in(child=without))

    def remove(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Delete the edges of these pairs of child and parent."""
        rows_sql, parameters = bulk.expand({"child_id": ID, "parent_id": ID}, pairs)
        sql = (
            f"DELETE FROM chainsched_dependency WHERE EXISTS (SELECT 1 FROM {rows_sql} "  # noqa: S608
            "WHERE v.child_id = chainsched_dependency.child_id AND v.parent_id = chainsched_dependency.parent_id) "
            "RETURNING id"
        )
        bulk.select(sql, parameters)

    def below(self, manifest_id: int) -> set[int]:
        """All manifests that edges of any kind lead to from this one."""
        sql = (
            "WITH RECURSIVE below(id) AS (SELECT child_id FROM chainsched_dependency WHERE parent_id = %s "
            "UNION SELECT e.child_id FROM chainsched_dependency e JOIN below b ON e.parent_id = b.id) "
            "SELECT id FROM below"
        )
        return {id_ for (id_,) in bulk.select(sql, [manifest_id])}

    def with_ancestors(self, manifest_ids: Collection[int]) -> set[int]:
        """These manifests, and all above them by declared edges."""
        if not manifest_ids:
            return set()
        is_one, parameter = among_ids("m.id", sorted(manifest_ids))
        sql = (
            f"WITH RECURSIVE line(id) AS (SELECT m.id FROM chainsched_manifest m WHERE {is_one} "  # noqa: S608
            "UNION SELECT e.parent_id "
            "FROM chainsched_dependency e JOIN line ON e.child_id = line.id WHERE NOT e.is_derived) SELECT id FROM line"
        )
        return {id_ for (id_,) in bulk.select(sql, [parameter])}

    def leaves_below(self, gate_id: int) -> set[int]:
        """The leaves below a gate, except those that lie below a fan-in over the same tree, and those that are done.

        The way down follows declared edges; a member of a fan-in that lies below the gate as well is no leaf.
        """
        others = "SELECT id FROM chainsched_manifest WHERE depends_on_id = %s AND fan_in = 'tree'"
        sql = (
            "WITH RECURSIVE below(id) AS (SELECT e.child_id FROM chainsched_dependency e "  # noqa: S608
            f"WHERE e.parent_id = %s AND NOT e.is_derived AND e.child_id NOT IN ({others}) "
            "UNION SELECT e.child_id FROM chainsched_dependency e JOIN below b ON e.parent_id = b.id "
            f"WHERE NOT e.is_derived AND e.child_id NOT IN ({others})) "
            "SELECT b.id FROM below b JOIN chainsched_manifest m ON m.id = b.id WHERE m.done_at IS NULL AND NOT EXISTS "
            "(SELECT 1 FROM chainsched_dependency e JOIN below c ON c.id = e.child_id WHERE e.parent_id = b.id)"
        )
        return {id_ for (id_,) in bulk.select(sql, [gate_id] * 3)}

    def of_present_members(self, join_ids: Collection[int]) -> DependencyQuerySet:
        """The edges that lead to these joins and count.

        Gates do not, nor members of a fan-in that are retired, or were one-time children and are done.
        """
        return self.filter(_PRESENT, id_in(child=join_ids), is_gate=False)

    def counted(self, join_ids: Collection[int]) -> dict[int, dict[int, Counted]]:
        """How many edges lead to each of these joins, by the version since which they do; gates do not count."""
        edges = self.filter(id_in(child=join_ids), is_gate=False)
        numbers = {"present": models.Count("id", filter=_PRESENT), "stored": models.Count("id")}
        rows = edges.order_by().values_list("child_id", "since").annotate(**numbers)
        found: dict[int, dict[int, Counted]] = {}
        for child_id, since, present, stored in rows:
            found.setdefault(child_id, {})[since] = Counted(present, stored)
        return found


def _leaving() -> models.QuerySet[Dependency, Any]:
    types = [kind.value for kind in ScheduleType if kind is not ScheduleType.DEPENDENT]
    dependents = Dependency.objects.filter(child__done_at__isnull=True).exclude(child__schedule_type__in=types)
    firing = dependents.filter(id_in(parent=Ids())).order_by("id")
    columns = ("parent_id", "child_id", "condition", "is_gate", "since", "child__is_join", "child__schedule_type")
    return firing.values_list(*columns)


_LEAVING = CompiledQuery(_leaving)


class Dependency(models.Model):
    """One edge: outcomes of the parent that match the condition let the child run, or arrive at it if it is a join."""

    child = models.ForeignKey(
        Manifest,
        on_delete=models.CASCADE,
        related_name="parent_edges",
        db_index=False,
        help_text="The manifest that runs after the parent.",
    )
    parent = models.ForeignKey(
        Manifest, on_delete=models.CASCADE, related_name="child_edges", help_text="The manifest that runs before."
    )
    condition = models.PositiveSmallIntegerField(
        choices=choices(RunCondition), help_text="Which outcome of the parent counts."
    )
    is_gate = models.BooleanField(
        default=False, help_text="A fan-in runs only in runs in which this edge matched; it is no arrival."
    )
    is_derived = models.BooleanField(default=False, help_text="Follows from a fan-in; not declared by itself.")
    since = models.BigIntegerField(default=0, help_text="The version of the graph that it belongs to from then on.")

    objects = PinnedManager.from_queryset(DependencyQuerySet)()

    if TYPE_CHECKING:
        id: int
        child_id: int
        parent_id: int

    class Meta:
        base_manager_name = "objects"
        default_permissions = ("view",)
        verbose_name_plural = "dependencies"
        constraints = (
            models.UniqueConstraint(fields=["child", "parent"], name="chainsched_dependency_once"),
            models.CheckConstraint(
                condition=Q(condition__gte=1, condition__lte=3), name="chainsched_dependency_condition"
            ),
            models.CheckConstraint(condition=~Q(child=models.F("parent")), name="chainsched_dependency_no_loop"),
        )

    def __str__(self) -> str:
        return f"manifest {self.child_id} after manifest {self.parent_id}"
