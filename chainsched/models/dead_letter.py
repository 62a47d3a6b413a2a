"""Dead letters: runs that failed for good and wait for somebody's decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.conf import settings
from django.db import models
from django.db.models import Q

from chainsched.domain.states import DeadLetterStatus
from chainsched.models.base import PinnedManager, choices, one_of, reference
from chainsched.models.doors import DeadLetterActions
from chainsched.models.manifest import Manifest

IS_AWAITING = Q(status=DeadLetterStatus.AWAITING_INTERVENTION.value)


class DeadLetterQuerySet(models.QuerySet["DeadLetter"]):
    """Reads of dead letters."""

    def awaiting(self) -> DeadLetterQuerySet:
        return self.filter(IS_AWAITING)

    def resolved(self) -> DeadLetterQuerySet:
        return self.exclude(IS_AWAITING)


class DeadLetter(DeadLetterActions, models.Model):
    """What failed, why, and what was decided about it."""

    manifest = reference(Manifest, related_name="dead_letters", help_text="What failed; empty for a job without one.")
    execution = reference(
        "chainsched.Metadata", related_name="dead_letters", help_text="The attempt that was the last."
    )
    status = models.CharField(
        max_length=22,
        choices=choices(DeadLetterStatus),
        default=DeadLetterStatus.AWAITING_INTERVENTION.value,
        help_text="Whether somebody has decided.",
    )
    reason = models.TextField(help_text="Why it was given up.")
    failure_count = models.PositiveIntegerField(default=0, help_text="How many attempts had failed.")
    fingerprint = models.CharField(
        max_length=64, blank=True, default="", help_text="The same for failures that look the same."
    )
    dead_lettered_at = models.DateTimeField(help_text="When it was given up.")
    resolved_at = models.DateTimeField(null=True, blank=True, help_text="When somebody decided.")
    resolved_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        # Users may live in another database than the one that CHAINSCHED names.
        db_constraint=False,
        related_name="+",
        help_text="Who decided; empty for the system.",
    )
    note = models.TextField(blank=True, default="", help_text="What they said.")
    retry_execution = reference("chainsched.Metadata", help_text="The execution that a retry led to.")

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
        )

    def __str__(self) -> str:
        return f"dead letter {self.id} ({self.status})"
