"""The further runs that an execution stands for, besides the one it is named after."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import models

from chainsched.db.fields import PinnedManager


class TakenOverQuerySet(models.QuerySet["TakenOver"]):
    """Reads of runs that were taken over."""

    def executions_for(self, run_id: int) -> list[int]:
        """The executions that stand for a run besides the one they are named after."""
        return list(self.filter(run_id=run_id).values_list("execution_id", flat=True))


class TakenOver(models.Model):
    """An execution stands for this run too: it took the run over while it waited."""

    run_id = models.BigIntegerField(help_text="The run.")
    execution_id = models.BigIntegerField(help_text="The execution that stands for it.")

    objects = PinnedManager.from_queryset(TakenOverQuerySet)()

    if TYPE_CHECKING:
        id: int

    class Meta:
        base_manager_name = "objects"
        default_permissions = ("view",)
        verbose_name_plural = "runs taken over"
        constraints = (models.UniqueConstraint(fields=["run_id", "execution_id"], name="chainsched_takenover_once"),)
        indexes = (models.Index(fields=["execution_id"], name="chainsched_takenover_execution"),)

    def __str__(self) -> str:
        return f"run {self.run_id} by execution {self.execution_id}"
