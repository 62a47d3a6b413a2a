"""The letters of an errand: chosen when it was asked for, each with what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import models

from chainsched.domain.states import ErrandOutcome
from chainsched.models.base import PinnedManager, choices, one_of, reference
from chainsched.models.dead_letter import DeadLetter
from chainsched.models.errand import Errand


class ErrandLetterQuerySet(models.QuerySet["ErrandLetter"]):
    """Reads of what is left to do."""

    def waiting_of(self, errand_id: int) -> ErrandLetterQuerySet:
        """The letters of an errand that nothing was decided about yet, in their order."""
        return self.filter(errand=errand_id, outcome=ErrandOutcome.WAITING).order_by("id")


class ErrandLetter(models.Model):
    """One dead letter that an errand is about."""

    errand = models.ForeignKey(
        Errand, on_delete=models.CASCADE, related_name="letters", db_index=False, help_text="The errand."
    )
    dead_letter = reference(DeadLetter, help_text="The dead letter.")
    outcome = models.CharField(
        max_length=8,
        choices=choices(ErrandOutcome),
        default=ErrandOutcome.WAITING.value,
        help_text="What became of it.",
    )
    said = models.CharField(max_length=200, blank=True, default="", help_text="The same, in words.")
    decided_at = models.DateTimeField(null=True, blank=True, help_text="When it had its outcome.")

    objects = PinnedManager.from_queryset(ErrandLetterQuerySet)()

    if TYPE_CHECKING:
        id: int
        errand_id: int
        dead_letter_id: int | None

    class Meta:
        base_manager_name = "objects"
        default_permissions = ("view",)
        constraints = (
            models.UniqueConstraint(fields=["errand", "dead_letter"], name="chainsched_errand_letter_once"),
            one_of("outcome", ErrandOutcome, name="chainsched_errand_letter_outcome"),
            models.CheckConstraint(
                condition=models.Q(outcome=ErrandOutcome.WAITING.value, decided_at__isnull=True)
                | (~models.Q(outcome=ErrandOutcome.WAITING.value) & models.Q(decided_at__isnull=False)),
                name="chainsched_errand_letter_decided",
            ),
        )
        indexes = (models.Index(fields=["errand", "outcome", "id"], name="chainsched_errand_letter_next"),)

    def __str__(self) -> str:
        return f"dead letter {self.dead_letter_id} of errand {self.errand_id} ({self.outcome})"
