"""Marks on the roots of execution trees that were cancelled as a whole.

A mark is a row of its own, because the root has mostly ended by then, and an execution that has ended never changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from django.db import models

from chainsched.db import bulk
from chainsched.db.fields import PinnedManager, reference
from chainsched.db.id_in import id_in
from chainsched.models.metadata import Metadata


class CancelledTreeQuerySet(models.QuerySet["CancelledTree"]):
    """The marks."""

    def mark(self, root_execution_id: int, *, reason: str, now: datetime) -> None:
        """Mark a root; the first mark stays."""
        row = {"root_execution": root_execution_id, "reason": reason, "cancelled_at": now}
        bulk.insert(CancelledTree, [row], skip_conflicts=True)

    def marked(self, root_execution_ids: Iterable[int | None]) -> set[int]:
        """The roots among these that are marked."""
        wanted = {id_ for id_ in root_execution_ids if id_ is not None}
        if not wanted:
            return set()
        found = self.filter(id_in(root_execution=wanted)).values_list("root_execution_id", flat=True)
        return {id_ for id_ in found if id_ is not None}


class CancelledTree(models.Model):
    """A tree for which no further execution is created."""

    root_execution = reference(Metadata, help_text="The first execution of the tree.")
    reason = models.CharField(max_length=200, blank=True, default="", help_text="Why it was cancelled.")
    cancelled_at = models.DateTimeField(help_text="When it was cancelled.")

    objects = PinnedManager.from_queryset(CancelledTreeQuerySet)()

    if TYPE_CHECKING:
        id: int
        root_execution_id: int | None

    class Meta:
        base_manager_name = "objects"
        default_permissions = ("view",)
        constraints = (
            models.UniqueConstraint(fields=["root_execution"], name="chainsched_cancelled_tree_once"),
            models.CheckConstraint(
                condition=models.Q(root_execution__isnull=False), name="chainsched_cancelled_tree_has_root"
            ),
        )

    def __str__(self) -> str:
        return f"cancelled tree of execution {self.root_execution_id}"
