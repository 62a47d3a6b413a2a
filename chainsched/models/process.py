"""Processes: which are alive, and the workflows that each can run. One heartbeat per process, not per job."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from django.db import models
from django.db.models import Q

from chainsched.db.fields import PinnedManager

IS_TRUSTED = Q(lost_at__isnull=True, stopped_at__isnull=True)


class ProcessQuerySet(models.QuerySet["Process"]):
    """Which processes are alive, by the database's clock."""

    def trusted(self) -> ProcessQuerySet:
        """Those that were not declared lost and have not stopped: only these may claim and finish."""
        return self.filter(IS_TRUSTED)

    def alive(self, *, beaten_since: datetime) -> ProcessQuerySet:
        return self.trusted().filter(heartbeat_at__gte=beaten_since)

    def with_heartbeat(self, *, since: datetime) -> ProcessQuerySet:
        """Those with a heartbeat since then, including those that have stopped since."""
        return self.filter(heartbeat_at__gte=since)

    def ended(self, *, before: datetime) -> ProcessQuerySet:
        """Those that stopped or were declared lost before this time."""
        return self.filter(Q(stopped_at__lt=before) | Q(lost_at__lt=before))

    def beat(self, process: Process, *, now: datetime, turns: Mapping[str, datetime] | None = None) -> bool:
        """Renew the lease and store when its loops last turned; False if it was taken away or given back."""
        turned = {name: at.isoformat() for name, at in (turns or {}).items()}
        return self.trusted().filter(pk=process.pk).update(heartbeat_at=now, turns=turned) == 1

    def declare_lost(self, *, expired_before: datetime, now: datetime) -> int:
        """Take the lease from those with too old a heartbeat; the condition is checked again by the write."""
        return self.trusted().filter(heartbeat_at__lt=expired_before).update(lost_at=now)


class Process(models.Model):
    """A running scheduler or worker."""

    external_id = models.UUIDField(
        unique=True, default=uuid.uuid4, help_text="Random for each start; host and pid may repeat."
    )
    kind = models.CharField(max_length=20, help_text="Scheduler or worker.")
    host = models.CharField(max_length=255, help_text="The name of the host it runs on.")
    pid = models.PositiveIntegerField(help_text="Its process id there.")
    workflows = models.JSONField(default=list, help_text="The names of the workflows that it can run.")
    turns = models.JSONField(
        default=dict,
        blank=True,
        db_default=models.Value({}, models.JSONField()),
        help_text="When each of its loops last took a turn.",
    )
    started_at = models.DateTimeField(help_text="When it started.")
    heartbeat_at = models.DateTimeField(help_text="Its last heartbeat.")
    stopped_at = models.DateTimeField(null=True, blank=True, help_text="When it stopped in an orderly way.")
    lost_at = models.DateTimeField(null=True, blank=True, help_text="When another process declared it lost.")

    objects = PinnedManager.from_queryset(ProcessQuerySet)()

    if TYPE_CHECKING:
        id: int

    class Meta:
        base_manager_name = "objects"
        default_permissions = ("view",)
        verbose_name_plural = "processes"
        indexes = (models.Index(fields=["heartbeat_at"], condition=IS_TRUSTED, name="chainsched_process_trusted"),)

    def __str__(self) -> str:
        return f"{self.kind} {self.host}:{self.pid}"
