"""Dead letters: runs that failed for good and wait for an operator's decision."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.models import Count, F, Max, Min, Q, QuerySet, Window
from django.db.models.functions import RowNumber

from chainsched.db.fields import PinnedManager, choices, knows, one_of, reference, user_reference
from chainsched.domain.known import Kinds
from chainsched.domain.states import DeadLetterStatus
from chainsched.models.manifest import Manifest
from chainsched.models.model_methods import DeadLetterActions

IS_AWAITING = Q(status=DeadLetterStatus.AWAITING_INTERVENTION.value)
KINDS: Kinds = {"status": DeadLetterStatus}


class DeadLetterQuerySet(models.QuerySet["DeadLetter"]):
    """Reads of dead letters."""

    def awaiting(self) -> DeadLetterQuerySet:
        return self.filter(IS_AWAITING)

    def resolved(self) -> DeadLetterQuerySet:
        """Those with a decision that this version knows."""
        return self.exclude(IS_AWAITING).filter(knows(KINDS))

    def in_unknown_status(self) -> DeadLetterQuerySet:
        """Those without a decision that are in a status that only a newer version knows."""
        return self.exclude(IS_AWAITING).filter(resolved_at__isnull=True)

    def count_by_fingerprint(self) -> QuerySet[Any, Any]:
        """How many there are of each fingerprint, the first and last time, and the newest; the most frequent first."""
        counted = self.order_by().values("fingerprint")
        found = counted.annotate(
            number=Count("id"), first_at=Min("dead_lettered_at"), last_at=Max("dead_lettered_at"), example=Max("id")
        )
        return found.order_by("-number", "fingerprint")

    def newest_by_fingerprint(self, fingerprints: Collection[str], *, number: int) -> QuerySet[Any, Any]:
        """The fingerprints and manifests of the newest ``number`` letters of each of these fingerprints."""
        place = Window(RowNumber(), partition_by="fingerprint", order_by=F("id").desc())
        ranked = self.order_by().filter(fingerprint__in=fingerprints).annotate(place=place)
        return ranked.filter(place__lte=number).values_list("fingerprint", "manifest_id")


class DeadLetter(DeadLetterActions, models.Model):
    """A run that failed for good, the reason, and the decision about it."""

    manifest = reference(
        Manifest, related_name="dead_letters", help_text="The manifest that failed; empty for a job without one."
    )
    execution = reference("chainsched.Metadata", related_name="dead_letters", help_text="The last attempt.")
    status = models.CharField(
        max_length=22,
        choices=choices(DeadLetterStatus),
        default=DeadLetterStatus.AWAITING_INTERVENTION.value,
        help_text="Whether it awaits a decision, and the decision if not.",
    )
    reason = models.TextField(help_text="Why it was dead-lettered.")
    failure_count = models.PositiveIntegerField(default=0, help_text="Number of failed attempts.")
    fingerprint = models.CharField(
        max_length=64, blank=True, default="", help_text="The same for failures that look the same."
    )
    dead_lettered_at = models.DateTimeField(help_text="When it was dead-lettered.")
    resolved_at = models.DateTimeField(null=True, blank=True, help_text="When the decision was made.")
    resolved_by = user_reference(help_text="The user who decided; empty for the system.")
    note = models.TextField(blank=True, default="", help_text="The user's note on the decision.")
    retry_execution = reference("chainsched.Metadata", help_text="The execution that the retry led to.")

    objects = PinnedManager.from_queryset(DeadLetterQuerySet)()

    if TYPE_CHECKING:
        id: int
        manifest_id: int | None
        execution_id: int | None
        retry_execution_id: int | None

    class Meta:
        base_manager_name = "objects"
        default_permissions = ("view",)
        permissions = (
            ("retry_deadletter", "Can retry dead letters"),
            ("acknowledge_deadletter", "Can acknowledge dead letters"),
        )
        constraints = (
            models.UniqueConstraint(fields=["manifest"], condition=IS_AWAITING, name="chainsched_letter_one_awaiting"),
            one_of("status", DeadLetterStatus, name="chainsched_letter_status"),
            models.CheckConstraint(
                condition=(IS_AWAITING & Q(resolved_at__isnull=True)) | (~IS_AWAITING & Q(resolved_at__isnull=False)),
                name="chainsched_letter_resolved_when_decided",
            ),
        )
        indexes = (
            models.Index(fields=["fingerprint"], condition=IS_AWAITING, name="chainsched_letter_fingerprint"),
            models.Index(fields=["resolved_at"], condition=~IS_AWAITING, name="chainsched_letter_resolved"),
            models.Index(fields=["manifest"], name="chainsched_letter_manifest"),
            # For lists, which are in the order of time, of every status and of one, with and without a fingerprint.
            models.Index(fields=["dead_lettered_at", "id"], name="chainsched_letter_time"),
            models.Index(fields=["status", "dead_lettered_at", "id"], name="chainsched_letter_status_time"),
            models.Index(fields=["fingerprint", "dead_lettered_at", "id"], name="chainsched_letter_kind_time"),
            models.Index(
                fields=["status", "fingerprint", "dead_lettered_at", "id"], name="chainsched_letter_status_kind"
            ),
        )

    @property
    def is_awaiting(self) -> bool:
        return self.status == DeadLetterStatus.AWAITING_INTERVENTION

    def __str__(self) -> str:
        return f"dead letter {self.id} ({self.status})"
