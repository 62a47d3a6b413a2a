"""Bulk decisions: one decision about many dead letters, which a scheduler processes in parts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.models import F, Q

from chainsched.db.fields import PinnedManager, choices, knows, one_of, user_reference, values
from chainsched.domain.known import Kinds
from chainsched.domain.states import OPEN_BULK_DECISIONS, BulkDecisionStatus, BulkDecisionVerb
from chainsched.models.model_methods import BulkDecisionActions

IS_OPEN = Q(status__in=values(OPEN_BULK_DECISIONS))
KINDS: Kinds = {"verb": BulkDecisionVerb, "status": BulkDecisionStatus}


class BulkDecisionQuerySet(models.QuerySet["BulkDecision"]):
    """Which bulk decision is next, its lock, and its steps as compare-and-set writes."""

    def open(self) -> BulkDecisionQuerySet:
        return self.filter(IS_OPEN)

    def known(self) -> BulkDecisionQuerySet:
        """Without those that have a value that this version does not know."""
        return self.filter(knows(KINDS))

    def lock_open(self, bulk_decision_id: int) -> BulkDecision | None:
        """Lock a bulk decision that is not over; None if it is over, or if another process holds it."""
        return self.open().filter(id=bulk_decision_id).select_for_update(skip_locked=True, no_key=True).first()

    def begin(self, bulk_decision_id: int, *, now: datetime) -> int:
        """Mark it as under way; 0 if it was already."""
        waiting = self.filter(id=bulk_decision_id, status=BulkDecisionStatus.WAITING)
        return waiting.update(status=BulkDecisionStatus.UNDER_WAY, started_at=now)

    def count_up(self, bulk_decision_id: int, *, done: int, skipped: int) -> int:
        """Count letters that were decided about or left out."""
        mine = self.open().filter(id=bulk_decision_id)
        return mine.update(done_count=F("done_count") + done, skipped_count=F("skipped_count") + skipped)

    def finish(self, bulk_decision_id: int, *, now: datetime) -> int:
        """Close a bulk decision after its last letter has an outcome; 0 if it was closed already."""
        return self.open().filter(id=bulk_decision_id).update(status=BulkDecisionStatus.DONE, finished_at=now)

    def cancel(self, bulk_decision_id: int, *, reason: str, now: datetime) -> int:
        """Close a bulk decision before its end; 0 if it was closed already."""
        closed: Mapping[str, Any] = {
            "status": BulkDecisionStatus.CANCELLED,
            "cancel_reason": reason,
            "finished_at": now,
        }
        return self.open().filter(id=bulk_decision_id).update(**closed)


class BulkDecision(BulkDecisionActions, models.Model):
    """A user's decision about many dead letters, and how many of them have been processed."""

    verb = models.CharField(max_length=12, choices=choices(BulkDecisionVerb), help_text="The action for each letter.")
    status = models.CharField(
        max_length=10,
        choices=choices(BulkDecisionStatus),
        default=BulkDecisionStatus.WAITING.value,
        help_text="Its current state.",
    )
    asked_by = user_reference(help_text="The user who asked for it; empty if the account was deleted.")
    note = models.TextField(blank=True, default="", help_text="The user's note; copied to each letter.")
    selection = models.TextField(blank=True, default="", help_text="The filters of the list that it was made from.")
    total = models.PositiveIntegerField(help_text="Number of chosen letters.")
    done_count = models.PositiveIntegerField(default=0, help_text="Number of letters it took effect on.")
    skipped_count = models.PositiveIntegerField(default=0, help_text="Number of skipped letters; each says why.")
    created_at = models.DateTimeField(help_text="When it was asked for.")
    started_at = models.DateTimeField(null=True, blank=True, help_text="When its first letter was processed.")
    finished_at = models.DateTimeField(null=True, blank=True, help_text="When it was done or cancelled.")
    cancel_reason = models.CharField(max_length=200, blank=True, default="", help_text="Why it was cancelled.")

    objects = PinnedManager.from_queryset(BulkDecisionQuerySet)()

    if TYPE_CHECKING:
        id: int
        asked_by_id: Any

    class Meta:
        base_manager_name = "objects"
        default_permissions = ("view",)
        constraints = (
            one_of("verb", BulkDecisionVerb, name="chainsched_bulk_verb"),
            one_of("status", BulkDecisionStatus, name="chainsched_bulk_status"),
            models.CheckConstraint(
                condition=(IS_OPEN & Q(finished_at__isnull=True)) | (~IS_OPEN & Q(finished_at__isnull=False)),
                name="chainsched_bulk_finished_when_closed",
            ),
            models.CheckConstraint(
                condition=Q(total__gte=F("done_count") + F("skipped_count")), name="chainsched_bulk_counts"
            ),
        )
        indexes = (
            models.Index(fields=["id"], condition=IS_OPEN, name="chainsched_bulk_open"),
            models.Index(fields=["finished_at"], condition=~IS_OPEN, name="chainsched_bulk_finished"),
        )

    def __str__(self) -> str:
        return f"bulk decision {self.id}: {self.verb} {self.total} ({self.status.replace('_', ' ')})"

    @property
    def left(self) -> int:
        """How many letters still have no outcome."""
        return self.total - self.done_count - self.skipped_count
