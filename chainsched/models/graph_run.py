"""Runs of the graph: one passage from a head through everything that follows from it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from django.db import models
from django.db.models import Q

from chainsched.db.compiled import CompiledQuery, Ids
from chainsched.db.fields import PinnedManager, reference
from chainsched.db.id_in import id_in
from chainsched.models.manifest import Manifest
from chainsched.models.model_methods import RunActions

IS_OPEN = Q(closed_at__isnull=True)


class GraphRunQuerySet(models.QuerySet["GraphRun"]):
    """Reads and marks of runs."""

    def open(self) -> GraphRunQuerySet:
        return self.filter(IS_OPEN)

    def cancelled_among(self, run_ids: Iterable[int | None]) -> set[int]:
        """Those of these runs that were cancelled."""
        wanted = {id_ for id_ in run_ids if id_ is not None}
        if not wanted:
            return set()
        return set(_CANCELLED.column(ids=wanted))

    def open_of(self, head_ids: Collection[int]) -> dict[int, list[int]]:
        """The open runs of these heads that were not cancelled, the oldest first."""
        rows = self.open().filter(id_in(head=head_ids), cancelled_at__isnull=True)
        found: dict[int, list[int]] = {}
        for head_id, run_id in rows.order_by("id").values_list("head_id", "id"):
            found.setdefault(head_id or 0, []).append(run_id)
        return found

    def lock_free(self, run_ids: Collection[int]) -> set[int]:
        """Lock those of these runs that no other transaction holds."""
        rows = self.filter(id_in(id=run_ids)).order_by("id").select_for_update(no_key=True, skip_locked=True)
        return set(rows.values_list("id", flat=True))

    def mark_cancelled(self, run_id: int, *, reason: str, now: datetime) -> bool:
        """Mark a run as cancelled; False if it was. Only a second cancel waits for this row."""
        unmarked = self.filter(id=run_id, cancelled_at__isnull=True)
        return bool(unmarked.update(cancelled_at=now, cancel_reason=reason))


_CANCELLED = CompiledQuery(
    lambda: GraphRun.objects.filter(id_in(id=Ids()), cancelled_at__isnull=False).values_list("id")
)


class GraphRun(RunActions, models.Model):
    """One passage through the graph, born with the queue row of its head."""

    head = reference(Manifest, related_name="graph_runs", help_text="The manifest that it began with.")
    head_external_id = models.CharField(
        max_length=200, blank=True, default="", help_text="The head's name, kept when the manifest is deleted."
    )
    version = models.BigIntegerField(default=0, help_text="The version of the graph at its birth.")
    scheduled_for = models.DateTimeField(help_text="When its head was due.")
    created_at = models.DateTimeField(help_text="When it was born.")
    closed_at = models.DateTimeField(null=True, blank=True, help_text="When nothing of it was open any more.")
    cancelled_at = models.DateTimeField(null=True, blank=True, help_text="When it was cancelled.")
    cancel_reason = models.CharField(max_length=200, blank=True, default="", help_text="Why it was cancelled.")

    objects = PinnedManager.from_queryset(GraphRunQuerySet)()

    if TYPE_CHECKING:
        id: int
        head_id: int | None

    class Meta:
        base_manager_name = "objects"
        default_permissions = ("view",)
        verbose_name = "run"
        get_latest_by = "id"
        indexes = (
            models.Index(fields=["head", "id"], condition=IS_OPEN, name="chainsched_run_open"),
            models.Index(fields=["head", "id"], name="chainsched_run_head"),
            models.Index(fields=["closed_at"], condition=~IS_OPEN, name="chainsched_run_closed"),
        )

    @property
    def state(self) -> str:
        """In one word: open, closed or cancelled."""
        if self.cancelled_at is not None:
            return "cancelled"
        return "open" if self.closed_at is None else "closed"

    def __str__(self) -> str:
        return f"run {self.id} of {self.head_external_id}"
