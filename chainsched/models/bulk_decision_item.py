"""The letters of a bulk decision: chosen when it was asked for, each with its outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import models

from chainsched.db.fields import PinnedManager, choices, one_of, reference
from chainsched.domain.states import BulkDecisionOutcome
from chainsched.models.bulk_decision import BulkDecision
from chainsched.models.dead_letter import DeadLetter


class BulkDecisionItemQuerySet(models.QuerySet["BulkDecisionItem"]):
    """Reads of the letters that are left."""

    def waiting_of(self, bulk_decision_id: int) -> BulkDecisionItemQuerySet:
        """The letters of a bulk decision that have no outcome yet, in their order."""
        return self.filter(bulk_decision=bulk_decision_id, outcome=BulkDecisionOutcome.WAITING).order_by("id")


class BulkDecisionItem(models.Model):
    """One dead letter that a bulk decision is about."""

    bulk_decision = models.ForeignKey(
        BulkDecision, on_delete=models.CASCADE, related_name="items", db_index=False, help_text="The bulk decision."
    )
    dead_letter = reference(DeadLetter, help_text="The dead letter.")
    outcome = models.CharField(
        max_length=8,
        choices=choices(BulkDecisionOutcome),
        default=BulkDecisionOutcome.WAITING.value,
        help_text="Its outcome.",
    )
    explanation = models.CharField(max_length=200, blank=True, default="", help_text="The outcome in words.")
    decided_at = models.DateTimeField(null=True, blank=True, help_text="When it got its outcome.")

    objects = PinnedManager.from_queryset(BulkDecisionItemQuerySet)()

    if TYPE_CHECKING:
        id: int
        bulk_decision_id: int
        dead_letter_id: int | None

    class Meta:
        base_manager_name = "objects"
        default_permissions = ("view",)
        constraints = (
            models.UniqueConstraint(fields=["bulk_decision", "dead_letter"], name="chainsched_bulk_item_once"),
            one_of("outcome", BulkDecisionOutcome, name="chainsched_bulk_item_outcome"),
            models.CheckConstraint(
                condition=models.Q(outcome=BulkDecisionOutcome.WAITING.value, decided_at__isnull=True)
                | (~models.Q(outcome=BulkDecisionOutcome.WAITING.value) & models.Q(decided_at__isnull=False)),
                name="chainsched_bulk_item_decided",
            ),
        )
        indexes = (models.Index(fields=["bulk_decision", "outcome", "id"], name="chainsched_bulk_item_next"),)

    def __str__(self) -> str:
        return f"dead letter {self.dead_letter_id} of bulk decision {self.bulk_decision_id} ({self.outcome})"
