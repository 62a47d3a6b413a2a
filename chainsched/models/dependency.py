"""Edges of the graph: which manifest runs after which. ``flow.schedule.edges`` alone writes them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from django.db import models
from django.db.models import Q

from chainsched.db import bulk
from chainsched.db.fields import PinnedManager, choices
from chainsched.db.id_in import id_in
from chainsched.domain.states import RunCondition, ScheduleType
from chainsched.models.manifest import Manifest

ID = models.BigIntegerField()


class FiringEdge(NamedTuple):
    """An edge as the end of a run sees it."""

    parent_id: int
    child_id: int
    condition: int
    is_gate: bool
    since: int
    is_to_join: bool


class DependencyQuerySet(models.QuerySet["Dependency"]):
    """Reads of edges."""

    def explicit(self) -> DependencyQuerySet:
        """The edges that a declaration names; the others follow from a fan-in."""
        return self.filter(is_derived=False)

    def leaving(self, parent_ids: Collection[int]) -> list[FiringEdge]:
        """The edges over which outcomes of these manifests fire; dormant children fire by activation only."""
        firing = self.filter(id_in(parent=parent_ids), child__schedule_type=ScheduleType.DEPENDENT)
        columns = ("parent_id", "child_id", "condition", "is_gate", "since", "child__is_join")
        return [FiringEdge(*row) for row in firing.order_by("id").values_list(*columns)]

    def remove(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Delete the edges of these pairs of child and parent."""
        rows_sql, parameter = bulk.rows_from_json({"child_id": ID, "parent_id": ID}, pairs)
        sql = (
            f"DELETE FROM chainsched_dependency WHERE EXISTS (SELECT 1 FROM {rows_sql} "  # noqa: S608
            "WHERE v.child_id = chainsched_dependency.child_id AND v.parent_id = chainsched_dependency.parent_id) "
            "RETURNING id"
        )
        bulk.select(sql, [parameter])

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
        rows_sql, parameter = bulk.rows_from_json({"id": ID}, [[id_] for id_ in sorted(manifest_ids)])
        sql = (
            f"WITH RECURSIVE line(id) AS (SELECT v.id FROM {rows_sql} UNION SELECT e.parent_id "  # noqa: S608
            "FROM chainsched_dependency e JOIN line ON e.child_id = line.id WHERE NOT e.is_derived) SELECT id FROM line"
        )
        return {id_ for (id_,) in bulk.select(sql, [parameter])}

    def leaves_below(self, gate_id: int) -> set[int]:
        """What ends below a gate, except what lies below a fan-in over the same tree, and what is done.

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

    def counted(self, join_ids: Collection[int]) -> dict[int, dict[int, int]]:
        """How many edges lead to each of these joins, by the version since which they do.

        Gates do not count, nor members of a fan-in that are retired, or were one-time children and are done.
        """
        edges = self.filter(id_in(child=join_ids), is_gate=False).filter(
            Q(is_derived=False) | Q(parent__done_at__isnull=True, parent__retired_at__isnull=True)
        )
        rows = edges.order_by().values_list("child_id", "since").annotate(number=models.Count("id"))
        found: dict[int, dict[int, int]] = {}
        for child_id, since, number in rows:
            found.setdefault(child_id, {})[since] = number
        return found


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
