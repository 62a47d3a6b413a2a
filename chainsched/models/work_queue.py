"""The work queue: what was asked for and waits for its turn. Rows are born in ``flow.run.enqueue`` only."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.core.validators import MaxValueValidator
from django.db import connections, models
from django.db.models import F, Q

from chainsched.db import bulk
from chainsched.db.fields import PinnedManager, choices, one_of, reference
from chainsched.db.id_in import id_in
from chainsched.domain.states import QueueStatus, Source
from chainsched.models.manifest import Manifest
from chainsched.models.manifest_group import ManifestGroup
from chainsched.models.model_methods import QueueActions
from chainsched.models.obstacles import releases_queued_row

IS_QUEUED = Q(status=QueueStatus.QUEUED.value)
GROUP_ID = models.BigIntegerField()
PRIORITY = models.SmallIntegerField()


class WorkQueueQuerySet(models.QuerySet["WorkQueue"]):
    """The order of dispatch, and what may take part in it."""

    def queued(self) -> WorkQueueQuerySet:
        return self.filter(IS_QUEUED)

    def with_owners(self) -> WorkQueueQuerySet:
        """With manifest and group, which may be gone, in the same statement; without inputs, which may be large."""
        return self.select_related("manifest", "group").defer("input", "manifest__input")

    def in_order(self) -> WorkQueueQuerySet:
        """The order of dispatch."""
        return self.order_by("-priority", "turn", "id")

    def lock_next(self, limit: int) -> WorkQueueQuerySet:
        """The next rows in the order of dispatch, locked; rows that somebody is cancelling are passed over."""
        return self.in_order().select_for_update(of=("self",), skip_locked=True, no_key=True)[:limit]

    def ready(self, now: datetime) -> WorkQueueQuerySet:
        """Waiting rows whose time has come and whose manifest, if they have one, may run."""
        return self.queued().filter(Q(not_before__isnull=True) | Q(not_before__lte=now), releases_queued_row())

    def ahead_of(self, row: WorkQueue) -> WorkQueueQuerySet:
        """The rows that stand before this one in the order of dispatch."""
        same = Q(priority=row.priority) & (Q(turn__lt=row.turn) | Q(turn=row.turn, id__lt=row.id))
        return self.filter(Q(priority__gt=row.priority) | same)

    def waiting_by_group(self) -> dict[int | None, int]:
        """How many rows of each group wait."""
        counted = self.queued().values_list("group_id").order_by().annotate(waiting=models.Count("id"))
        return dict(counted)

    def outside_groups(self, group_ids: Collection[int]) -> WorkQueueQuerySet:
        """Without the rows of these groups; rows that have no group stay."""
        return self.exclude(group__in=group_ids, group__isnull=False) if group_ids else self

    def last_turns(self, places: Collection[tuple[int, int]]) -> dict[tuple[int, int], int]:
        """The last turn that waits in each (group, priority): one look into the index for each place."""
        rows_sql, parameter = bulk.rows_from_json({"group_id": GROUP_ID, "priority": PRIORITY}, list(places))
        sql = (
            "SELECT v.group_id, v.priority, (SELECT max(q.turn) FROM chainsched_workqueue q WHERE q.status = 'queued' "  # noqa: S608
            f"AND q.group_id = v.group_id AND q.priority = v.priority) FROM {rows_sql}"
        )
        with connections[self.db].cursor() as cursor:
            cursor.execute(sql, [parameter])
            return {(group_id, priority): turn for group_id, priority, turn in cursor.fetchall() if turn is not None}

    def bring_forward(self, manifest_ids: Collection[int]) -> set[int]:
        """Let waiting rows go at once, as a person asks; says whose still waited."""
        rows = [{"manifest": id_, "not_before": None, "source": Source.TRIGGER} for id_ in manifest_ids]
        return set(bulk.update(WorkQueue, rows, key="manifest", where={"status": QueueStatus.QUEUED}))

    def put_first(self, row_id: int) -> bool:
        """Let one waiting row go at once and before all others of its priority; False if it waits no longer."""
        mine = self.queued().filter(id=row_id)
        rivals = self.queued().filter(priority__in=mine.values("priority")).exclude(id=row_id).order_by("turn")
        first = rivals.values_list("turn", flat=True).first()
        place = {} if first is None else {"turn": first - 1}
        return bool(mine.update(not_before=None, source=Source.TRIGGER, **place))

    def cancel_row(self, row_id: int, *, reason: str) -> bool:
        """Cancel one waiting row; False if it waits no longer."""
        return bool(self.queued().filter(id=row_id).update(status=QueueStatus.CANCELLED, cancel_reason=reason))

    def cancel_queued(
        self, manifest_ids: Collection[int], *, reason: str, root_execution: int | None = None
    ) -> list[int]:
        """Cancel waiting rows, or only those that belong to one tree; says whose still waited."""
        rows = [{"manifest": id_, "status": QueueStatus.CANCELLED, "cancel_reason": reason} for id_ in manifest_ids]
        of_tree = {} if root_execution is None else {"root_execution": root_execution}
        return bulk.update(WorkQueue, rows, key="manifest", where={"status": QueueStatus.QUEUED, **of_tree})

    def manifest_of(self, row_id: int) -> list[int]:
        """Whose row it is, if anybody's. That never changes, so it may be read before a lock."""
        owner = self.filter(id=row_id, manifest__isnull=False).values_list("manifest_id", flat=True)
        return [manifest_id for manifest_id in owner if manifest_id is not None]

    def rename_workflow(self, workflows: Mapping[int, str]) -> int:
        """Let the waiting rows of these manifests run another workflow."""
        rows = [{"manifest": id_, "workflow": workflow} for id_, workflow in workflows.items()]
        return len(bulk.update(WorkQueue, rows, key="manifest", where={"status": QueueStatus.QUEUED}))

    def replace_inputs(self, changes: Mapping[int, tuple[Any, Any]]) -> int:
        """Give waiting rows that carry their manifest's old input its new one; another input was somebody's wish."""
        waiting = self.queued().filter(manifest__in=list(changes)).values_list("manifest_id", "input")
        rows = [
            {"manifest": id_, "input": changes[id_][1]}
            for id_, own in waiting
            if id_ is not None and own == changes[id_][0]
        ]
        return len(bulk.update(WorkQueue, rows, key="manifest", where={"status": QueueStatus.QUEUED}))

    def move_to_newer_parent(self, lineages: Sequence[bulk.Row]) -> list[int]:
        """Give dependents' rows that wait for their first attempt a newer parent; says whose were moved."""
        expected = {"status": QueueStatus.QUEUED, "source": Source.DEPENDENCY, "attempt": 1}
        return bulk.update(WorkQueue, lineages, key="manifest", where=expected)

    def next_not_before(self, *, after: datetime, until: datetime) -> datetime | None:
        """When the next row that waits for its time up to then may be dispatched.

        There is an end to it because SQL can let a row wait until infinity, which cannot be read.
        """
        waiting = self.queued().filter(not_before__gt=after, not_before__lte=until).order_by("not_before")
        return waiting.values_list("not_before", flat=True).first()

    def waiting_of(self, manifest_ids: Collection[int]) -> set[int | None]:
        """Which of these manifests have a row that waits."""
        return set(self.queued().filter(id_in(manifest=manifest_ids)).values_list("manifest_id", flat=True))

    def requeue(self, claims: Mapping[int, int]) -> list[int]:
        """Let rows that were dispatched wait again, at the place they had, and note how often each was taken."""
        rows = [
            {"id": id_, "status": QueueStatus.QUEUED, "execution": None, "claims": taken}
            for id_, taken in claims.items()
        ]
        return bulk.update(WorkQueue, rows, where={"status": QueueStatus.DISPATCHED})


class WorkQueue(QueueActions, models.Model):
    """One wish for one run."""

    manifest = reference(Manifest, related_name="queue_rows", help_text="What it runs; empty for a job without one.")
    group = reference(ManifestGroup, related_name="queue_rows", help_text="Whose limit it counts against.")
    manifest_external_id = models.CharField(
        max_length=200, blank=True, default="", help_text="The manifest's name, kept when the manifest goes."
    )
    workflow = models.CharField(max_length=200, help_text="The registered name of the workflow.")
    input = models.JSONField(null=True, blank=True, help_text="What the workflow will be called with.")
    priority = models.PositiveSmallIntegerField(
        validators=[MaxValueValidator(31)], help_text="0 to 31, the boost included; higher goes first."
    )
    turn = models.BigIntegerField(help_text="Its place among rows of one priority, so that groups take turns.")
    status = models.CharField(
        max_length=10, choices=choices(QueueStatus), default=QueueStatus.QUEUED.value, help_text="Where it stands."
    )
    not_before = models.DateTimeField(null=True, blank=True, help_text="It is not dispatched before this time.")
    scheduled_for = models.DateTimeField(help_text="The time it was due.")
    attempt = models.PositiveIntegerField(default=1, help_text="Which attempt it will be, counted from 1.")
    claims = models.PositiveIntegerField(
        default=0, db_default=0, help_text="How often processes took it before it came back to the queue."
    )
    max_retries = models.PositiveIntegerField(
        null=True, blank=True, help_text="For a job without a manifest: failures until it is given up."
    )
    timeout_seconds = models.PositiveIntegerField(
        null=True, blank=True, help_text="For a job without a manifest: how long it may run."
    )
    retry_delay_seconds = models.PositiveIntegerField(
        null=True, blank=True, help_text="For a job without a manifest: the wait before the first retry."
    )
    retry_multiplier = models.FloatField(
        null=True, blank=True, help_text="For a job without a manifest: by how much further waits grow."
    )
    max_retry_delay_seconds = models.PositiveIntegerField(
        null=True, blank=True, help_text="For a job without a manifest: the longest wait before a retry."
    )
    source = models.CharField(max_length=12, choices=choices(Source), help_text="What asked for it.")
    parent_execution = reference("chainsched.Metadata", help_text="The execution that caused it.")
    root_execution = reference("chainsched.Metadata", help_text="The first execution of the tree it belongs to.")
    causation_id = models.CharField(max_length=200, blank=True, default="", help_text="What directly caused it.")
    root_correlation_id = models.CharField(
        max_length=200, blank=True, default="", help_text="The correlation id at the root of its tree."
    )
    dead_letter = reference("chainsched.DeadLetter", help_text="The dead letter whose retry this is.")
    execution = reference("chainsched.Metadata", help_text="The execution it became.")
    cancel_reason = models.CharField(max_length=200, blank=True, default="", help_text="Why it was cancelled.")
    created_at = models.DateTimeField(help_text="When it was queued.")

    objects = PinnedManager.from_queryset(WorkQueueQuerySet)()

    if TYPE_CHECKING:
        id: int
        manifest_id: int | None
        group_id: int | None
        parent_execution_id: int | None
        root_execution_id: int | None
        dead_letter_id: int | None
        execution_id: int | None

    class Meta:
        base_manager_name = "objects"
        default_permissions = ("view",)
        verbose_name = "queue row"
        constraints = (
            models.UniqueConstraint(fields=["manifest"], condition=IS_QUEUED, name="chainsched_queue_one_per_manifest"),
            one_of("status", QueueStatus, name="chainsched_queue_status"),
            one_of("source", Source, name="chainsched_queue_source"),
            models.CheckConstraint(
                condition=Q(priority__gte=0, priority__lte=31), name="chainsched_queue_priority_range"
            ),
            models.CheckConstraint(condition=Q(attempt__gte=1), name="chainsched_queue_attempt_positive"),
            models.CheckConstraint(
                condition=Q(status=QueueStatus.DISPATCHED.value, execution__isnull=False)
                | (~Q(status=QueueStatus.DISPATCHED.value) & Q(execution__isnull=True)),
                name="chainsched_queue_dispatched_has_execution",
            ),
        )
        indexes = (
            models.Index(F("priority").desc(), "turn", "id", condition=IS_QUEUED, name="chainsched_queue_order"),
            models.Index(
                fields=["group", "priority", "turn"], condition=IS_QUEUED, name="chainsched_queue_group_turns"
            ),
            models.Index(
                fields=["not_before"],
                condition=IS_QUEUED & Q(not_before__isnull=False),
                name="chainsched_queue_not_before",
            ),
            models.Index(
                fields=["created_at"],
                condition=Q(status=QueueStatus.CANCELLED.value),
                name="chainsched_queue_cancelled",
            ),
        )

    def __str__(self) -> str:
        return f"{self.name} ({self.status})"

    @property
    def name(self) -> str:
        """What people call it: its manifest's external id, or the workflow of a job without one."""
        return self.manifest_external_id or self.workflow
