"""The joins that each manifest leads to first. Derived from the edges; ``flow.schedule.near`` alone writes it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from django.db import models

from chainsched.db import bulk
from chainsched.db.fields import PinnedManager
from chainsched.db.id_in import among_ids, id_in
from chainsched.models.manifest import Manifest

# Stands for the end of a run, where no join follows; no manifest has this id.
RUN_END = 0


class Reach(NamedTuple):
    """One step of the way through a graph: from a head or a join to a join that comes next, or to the run's end."""

    head_id: int
    source_id: int
    join_id: int
    deadline_seconds: int | None
    version: int


class NearQuerySet(models.QuerySet["Near"]):
    """Reads of the joins ahead."""

    def reach_of(self, head_ids: Collection[int]) -> list[Reach]:
        """All joins on the way from these heads to the end of a run, with the version of the graph.

        One statement, so that both belong together. A manifest that leads nowhere has no rows, and is no head.
        """
        if not head_ids:
            return []
        rows_sql, parameters = bulk.expand(
            {"head_id": models.BigIntegerField()}, [[id_] for id_ in sorted(set(head_ids))]
        )
        sql = (
            "WITH RECURSIVE reach(head_id, source_id, join_id) AS ("  # noqa: S608 - the rows are a parameter
            f"SELECT v.head_id, n.manifest_id, n.join_id FROM {rows_sql} "
            "JOIN chainsched_near n ON n.manifest_id = v.head_id "
            "UNION SELECT r.head_id, n.manifest_id, n.join_id FROM reach r "
            "JOIN chainsched_near n ON n.manifest_id = r.join_id) "
            "SELECT r.head_id, r.source_id, r.join_id, m.deadline_seconds, "
            "coalesce((SELECT version FROM chainsched_namedlock WHERE name = 'graph'), 0) "
            "FROM reach r LEFT JOIN chainsched_manifest m ON m.id = r.join_id"
        )
        return [Reach(*row) for row in bulk.select(sql, parameters)]

    def leading_to_joins(self, manifest_ids: Collection[int]) -> set[int]:
        """Those of these manifests that lead to a join."""
        if not manifest_ids:
            return set()
        found = self.filter(id_in(manifest=manifest_ids)).exclude(join_id=RUN_END)
        return set(found.values_list("manifest_id", flat=True))

    def joins_after(self, manifest_ids: Collection[int]) -> set[int]:
        """The joins that these manifests lead to first."""
        return set(self.filter(id_in(manifest=manifest_ids)).values_list("join_id", flat=True)) - {RUN_END}

    def by_edges(self, manifest_ids: Sequence[int]) -> list[tuple[int, int]]:
        """Where the edges of these manifests lead: to each child that is a join, and where other children lead."""
        is_one, parameter = among_ids("e.parent_id", manifest_ids)
        sql = (
            "SELECT DISTINCT e.parent_id, CASE WHEN m.is_join THEN m.id ELSE coalesce(n.join_id, 0) END "  # noqa: S608
            "FROM chainsched_dependency e JOIN chainsched_manifest m ON m.id = e.child_id "
            "LEFT JOIN chainsched_near n ON n.manifest_id = e.child_id AND NOT m.is_join "
            f"WHERE {is_one}"
        )
        return [(manifest_id, join_id) for manifest_id, join_id in bulk.select(sql, [parameter])]


class Near(models.Model):
    """A join that a manifest leads to without passing through another; ``join_id`` 0 is the end of the run.

    Only manifests with children, and joins, have rows: any other leads to the end of the run.
    """

    manifest = models.ForeignKey(
        Manifest, on_delete=models.CASCADE, related_name="+", db_index=False, help_text="The manifest."
    )
    join_id = models.BigIntegerField(help_text="The join that it leads to; 0 for the end of the run.")

    objects = PinnedManager.from_queryset(NearQuerySet)()

    if TYPE_CHECKING:
        id: int
        manifest_id: int

    class Meta:
        base_manager_name = "objects"
        default_permissions = ("view",)
        verbose_name_plural = "joins ahead"
        constraints = (models.UniqueConstraint(fields=["manifest", "join_id"], name="chainsched_near_once"),)

    def __str__(self) -> str:
        return f"manifest {self.manifest_id} leads to {self.join_id or 'the end of the run'}"
