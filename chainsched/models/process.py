"""Processes: which are alive, and the workflows that each can run. One heartbeat per process, not per job."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.models import Q

from chainsched.db.compiled import AFTER, CompiledQuery, Parameter
from chainsched.db.fields import PinnedManager
from chainsched.domain.capacity import Rival
from chainsched.domain.routing import Pool

PROCESS_ID = Parameter("process_id", models.BigIntegerField())
IS_TRUSTED = Q(lost_at__isnull=True, stopped_at__isnull=True)


class ProcessQuerySet(models.QuerySet["Process"]):
    """Which processes are alive, by the database's clock."""

    def trusted(self) -> ProcessQuerySet:
        """Those that were not declared lost and have not stopped: only these may take work and finish it."""
        return self.filter(IS_TRUSTED)

    def is_trusted(self, process: Process) -> bool:
        """Whether this process may take work and finish it."""
        return bool(_TRUSTED.rows(process_id=process.pk))

    def alive(self, *, beaten_since: datetime) -> ProcessQuerySet:
        return self.trusted().filter(heartbeat_at__gte=beaten_since)

    def with_heartbeat(self, *, since: datetime) -> ProcessQuerySet:
        """Those with a heartbeat since then, including those that have stopped since."""
        return self.filter(heartbeat_at__gte=since)

    def ended(self, *, before: datetime) -> ProcessQuerySet:
        """Those that stopped or were declared lost before this time."""
        return self.filter(Q(stopped_at__lt=before) | Q(lost_at__lt=before))

    def beat(
        self,
        process: Process,
        *,
        now: datetime,
        turns: Mapping[str, datetime] | None = None,
        deaf_since: datetime | None = None,
        signals: Mapping[str, Any] | None = None,
    ) -> bool:
        """Renew the lease; store when its loops last turned, and its waiting signals. False if the lease was taken."""
        turned = {name: at.isoformat() for name, at in (turns or {}).items()}
        columns = {"heartbeat_at": now, "turns": turned, "deaf_since": deaf_since, "signals": dict(signals or {})}
        return self.trusted().filter(pk=process.pk).update(**columns) == 1

    def slots_by_process(self) -> dict[int, int]:
        """How many jobs each process runs at once, of those that state it and have not stopped in an orderly way."""
        return dict(_SLOTS.rows())

    def rivals_of(self, process: Process, *, beaten_since: datetime) -> list[Rival]:
        """The other live processes that run jobs."""
        return [Rival(*row) for row in _RIVALS.rows(process_id=process.pk, after=beaten_since)]

    def pools(self) -> list[Pool]:
        """The workflows and queues that these take jobs of, those that take the same as one."""
        taken = {
            (frozenset(workflows), None if queues is None else frozenset(queues))
            for workflows, queues in self.order_by().values_list("workflows", "queues")
            if workflows
        }
        return [Pool(workflows, queues) for workflows, queues in taken]

    def heartbeats(self) -> dict[int, datetime]:
        """The last heartbeat of each process that is trusted."""
        return dict(self.trusted().values_list("pk", "heartbeat_at"))

    def declare_lost(self, silent: Mapping[int, datetime], *, now: datetime) -> int:
        """Take the lease from processes that sent no heartbeat after this one; returns how many lost it.

        One by one, because each has a heartbeat of its own, and few are lost at once.
        """
        trusted = self.trusted()
        return sum(trusted.filter(pk=pk, heartbeat_at=at).update(lost_at=now) for pk, at in sorted(silent.items()))


_SLOTS = CompiledQuery(
    lambda: Process.objects.filter(slots__isnull=False, stopped_at__isnull=True).values_list("pk", "slots")
)
_RIVALS = CompiledQuery(
    lambda: (
        Process.objects.trusted()
        .filter(heartbeat_at__gt=AFTER, slots__gt=0)
        .exclude(pk=PROCESS_ID)
        .values_list("pk", "slots", "workflows", "queues")
    )
)
_TRUSTED = CompiledQuery(lambda: Process.objects.trusted().filter(pk=PROCESS_ID).values_list("pk"))


class Process(models.Model):
    """A running scheduler or worker."""

    external_id = models.UUIDField(
        unique=True, default=uuid.uuid4, help_text="Random for each start; host and pid may repeat."
    )
    kind = models.CharField(max_length=20, help_text="Scheduler or worker.")
    host = models.CharField(max_length=255, help_text="The name of the host it runs on.")
    pid = models.PositiveIntegerField(help_text="Its process id there.")
    workflows = models.JSONField(default=list, help_text="The names of the workflows that it can run.")
    queues = models.JSONField(
        null=True, blank=True, help_text="The queues that it takes jobs from; empty if it takes them from all."
    )
    slots = models.PositiveIntegerField(
        null=True, blank=True, help_text="How many jobs it runs at once; empty if it states no number."
    )
    turns = models.JSONField(
        default=dict,
        blank=True,
        db_default=models.Value({}, models.JSONField()),
        help_text="When each of its loops last took a turn.",
    )
    deaf_since = models.DateTimeField(
        null=True, blank=True, help_text="Since when it hears no notices of other processes; empty while it does."
    )
    signals = models.JSONField(
        default=dict,
        blank=True,
        db_default=models.Value({}, models.JSONField()),
        help_text="How many of its signals wait for receivers, for how long, and how many were dropped.",
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

    @property
    def pool(self) -> Pool:
        """The workflows and queues that it takes jobs of."""
        return Pool(self.workflows, self.queues)
