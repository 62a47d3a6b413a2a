"""The work queue: requested runs that wait for their turn. Only ``flow.run.enqueue`` creates rows."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.core.validators import MaxValueValidator
from django.db import models
from django.db.models import F, Q

from chainsched.db import bulk
from chainsched.db.compiled import AFTER, UNTIL, CompiledQuery, Parameter
from chainsched.db.fields import IdList, PinnedManager, choices, knows, one_of, reference, values
from chainsched.db.id_in import id_in
from chainsched.domain.known import Kinds
from chainsched.domain.parking import ParkedFor
from chainsched.domain.routing import DEFAULT_QUEUE, MAX_QUEUE_LENGTH
from chainsched.domain.states import QueueStatus, Source
from chainsched.models.manifest import KINDS as MANIFEST_KINDS
from chainsched.models.manifest import Manifest
from chainsched.models.manifest_group import ManifestGroup
from chainsched.models.manifest_state import NOT_PUT_ASIDE
from chainsched.models.model_methods import QueueActions
from chainsched.models.named_lock import DISPATCH
from chainsched.models.obstacles import releases_queued_row

IS_QUEUED = Q(status=QueueStatus.QUEUED.value)
IS_IN_LINE = IS_QUEUED & Q(put_aside_at__isnull=True, parked_for="")
# The columns of a row that takes part in dispatch again, whatever held it.
IN_LINE: dict[str, Any] = {**NOT_PUT_ASIDE, "parked_for": ""}
IS_ASIDE = IS_QUEUED & Q(put_aside_at__isnull=False)
OWN_INPUT_SOURCES = (Source.SCHEDULE.value, Source.DEPENDENCY.value)
KINDS: Kinds = {"status": QueueStatus, "source": Source, "parked_for": ParkedFor}
GROUP_ID = models.BigIntegerField()
PRIORITY = models.SmallIntegerField()


def is_parked(reason: ParkedFor) -> Q:
    """Whether a row is parked for this reason."""
    return IS_QUEUED & Q(parked_for=reason.value)


class WorkQueueQuerySet(models.QuerySet["WorkQueue"]):
    """The order of dispatch, and the rows that take part in it."""

    def queued(self) -> WorkQueueQuerySet:
        return self.filter(IS_QUEUED)

    def in_line(self) -> WorkQueueQuerySet:
        """Queued rows that take part in dispatch: all but those that are parked or put aside."""
        return self.filter(IS_IN_LINE)

    def parked(self, *reasons: ParkedFor) -> WorkQueueQuerySet:
        """Queued rows that are parked for one of these reasons."""
        return self.filter(IS_QUEUED, parked_for__in=values(reasons))

    def aside(self) -> WorkQueueQuerySet:
        """Queued rows that are put aside."""
        return self.filter(IS_ASIDE)

    def known(self) -> WorkQueueQuerySet:
        """Without rows that have a value that this version does not know."""
        return self.filter(knows(KINDS))

    def unknown(self) -> WorkQueueQuerySet:
        """Those that have a value that only a newer version knows."""
        return self.exclude(knows(KINDS))

    def with_owners(self) -> WorkQueueQuerySet:
        """With manifest and group, which may be gone, in the same statement; without inputs, which may be large."""
        return self.select_related("manifest", "group").defer("input", "manifest__input")

    def in_order(self) -> WorkQueueQuerySet:
        """The order of dispatch."""
        return self.order_by("-priority", "turn", "id")

    def ready(self, now: datetime | Parameter) -> WorkQueueQuerySet:
        """Waiting rows that are past their ``not_before`` and not held by their manifest or group.

        Rows with a value that this version does not know, their own or their manifest's, wait for a newer one.
        """
        is_time = Q(not_before__isnull=True) | Q(not_before__lte=now)
        is_manifest_known = Q(manifest__isnull=True) | knows(MANIFEST_KINDS, path="manifest__")
        return self.in_line().known().filter(is_time, releases_queued_row(), is_manifest_known)

    def ahead_of(self, row: WorkQueue) -> WorkQueueQuerySet:
        """The rows that come before this one in the order of dispatch."""
        same = Q(priority=row.priority) & (Q(turn__lt=row.turn) | Q(turn=row.turn, id__lt=row.id))
        return self.filter(Q(priority__gt=row.priority) | same)

    def waiting_by_group(self) -> dict[int | None, int]:
        """How many rows of each group wait."""
        counted = self.queued().values_list("group_id").order_by().annotate(waiting=models.Count("id"))
        return dict(counted)

    def outside_groups(self, group_ids: Collection[int]) -> WorkQueueQuerySet:
        """Without the rows of these groups; rows that have no group stay."""
        return self.exclude(group__in=group_ids, group__isnull=False) if group_ids else self

    def last_turns(self, places: Collection[tuple[int, int]]) -> tuple[dict[int, int], dict[tuple[int, int], int]]:
        """The turn that dispatch has reached at each priority, and the last that waits in each (group, priority).

        One look into the index for each place.
        """
        rows_sql, parameters = bulk.expand({"group_id": GROUP_ID, "priority": PRIORITY}, list(places))
        sql = (
            "SELECT v.group_id, v.priority, (SELECT max(q.turn) FROM chainsched_workqueue q WHERE q.status = 'queued' "  # noqa: S608
            "AND q.group_id = v.group_id AND q.priority = v.priority), "
            f"(SELECT l.turns FROM chainsched_namedlock l WHERE l.name = '{DISPATCH}') FROM {rows_sql}"
        )
        found = bulk.select(sql, parameters)
        present = json.loads(found[0][3]) if found and found[0][3] else {}
        last = {(group_id, priority): turn for group_id, priority, turn, _ in found if turn is not None}
        return {int(priority): turn for priority, turn in present.items()}, last

    def bring_forward(self, is_enabled: Mapping[int, bool]) -> set[int]:
        """Let waiting rows of these manifests go at once, as an operator asks; returns those with a row that waited.

        Why a row runs stays what it was. That of a disabled manifest now runs because of the operator.
        """
        moved: set[int] = set()
        for enabled, place in ((True, {}), (False, {"source": Source.TRIGGER})):
            known = [id_ for id_, on in is_enabled.items() if on is enabled]
            rows = [{"manifest": id_, "not_before": None, **IN_LINE, **place} for id_ in known]
            moved |= set(bulk.update(WorkQueue, rows, key="manifest", where={"status": QueueStatus.QUEUED}))
        return moved

    def put_first(self, row_id: int, *, is_enabled: bool) -> bool:
        """Let one waiting row go at once and before all others of its priority; False if it waits no longer."""
        mine = self.queued().filter(id=row_id)
        rivals = self.in_line().filter(priority__in=mine.values("priority")).exclude(id=row_id).order_by("turn")
        first = rivals.values_list("turn", flat=True).first()
        place: dict[str, Any] = {} if first is None else {"turn": first - 1}
        if not is_enabled:
            place["source"] = Source.TRIGGER
        return bool(mine.update(not_before=None, **IN_LINE, **place))

    def with_other_input(self, manifest_ids: Collection[int]) -> set[int]:
        """Those of these manifests whose waiting row has another input than they have: a trigger's, an activation's.

        Rows that schedules and outcomes opened have their manifest's.
        """
        if not manifest_ids:
            return set()
        rows = self.queued().filter(id_in(manifest=manifest_ids)).exclude(source__in=OWN_INPUT_SOURCES)
        inputs = rows.values_list("manifest_id", "input", "manifest__input")
        return {id_ for id_, own, declared in inputs if id_ is not None and own != declared}

    def put_aside(self, reasons: Mapping[int, str], *, now: datetime) -> int:
        """Take rows that cannot be dispatched out of the line, with the reasons."""
        rows = [{"id": id_, "put_aside_at": now, "put_aside_reason": reason} for id_, reason in sorted(reasons.items())]
        return len(bulk.update(WorkQueue, rows, where={"status": QueueStatus.QUEUED}))

    def lock_aside(self, row_ids: Collection[int]) -> list[int]:
        """Lock those of these rows that are put aside, skipping rows that another transaction holds."""
        rows = self.aside().filter(id_in(id=row_ids)).order_by("id")
        return list(rows.select_for_update(no_key=True, skip_locked=True).values_list("id", flat=True))

    def release(self, row_ids: Collection[int]) -> int:
        """Let rows that are put aside take part in dispatch again, at the place that they had."""
        rows = [{"id": id_, **IN_LINE} for id_ in sorted(row_ids)]
        return len(bulk.update(WorkQueue, rows, where={"status": QueueStatus.QUEUED}))

    def cancel_rows(self, row_ids: Collection[int], *, reason: str) -> list[int]:
        """Cancel waiting rows; returns those that still waited."""
        rows = [{"id": id_, "status": QueueStatus.CANCELLED, "cancel_reason": reason} for id_ in sorted(row_ids)]
        return bulk.update(WorkQueue, rows, where={"status": QueueStatus.QUEUED})

    def manifest_of(self, row_id: int) -> list[int]:
        """The manifest of a row, if it has one. It never changes, so it may be read before a lock."""
        found = self.filter(id=row_id, manifest__isnull=False).values_list("manifest_id", flat=True)
        return [manifest_id for manifest_id in found if manifest_id is not None]

    def rename_workflow(self, workflows: Mapping[int, str]) -> int:
        """Let the waiting rows of these manifests run another workflow."""
        rows = [{"manifest": id_, "workflow": workflow, **NOT_PUT_ASIDE} for id_, workflow in workflows.items()]
        renamed = bulk.update(WorkQueue, rows, key="manifest", where={"status": QueueStatus.QUEUED})
        self.filter(is_parked(ParkedFor.NO_WORKER), id_in(manifest=renamed)).update(parked_for="")
        return len(renamed)

    def replace_inputs(self, changes: Mapping[int, tuple[Any, Any]]) -> int:
        """Give waiting rows with their manifest's old input its new one; any other input came with a trigger."""
        waiting = self.queued().filter(manifest__in=list(changes)).values_list("manifest_id", "input")
        rows = [
            {"manifest": id_, "input": changes[id_][1], **NOT_PUT_ASIDE}
            for id_, own in waiting
            if id_ is not None and own == changes[id_][0]
        ]
        return len(bulk.update(WorkQueue, rows, key="manifest", where={"status": QueueStatus.QUEUED}))

    def lock_items(self, manifest_ids: Collection[int]) -> list[WorkQueue]:
        """Lock the waiting rows of these manifests that belong to a run; one that is being dispatched is left out.

        So is one with a value that this version does not know.
        """
        if not manifest_ids:
            return []
        rows = self.queued().known().filter(id_in(manifest=manifest_ids), run__isnull=False).order_by("id")
        return list(rows.select_for_update(no_key=True, skip_locked=True).defer("input"))

    def lock_for_newer_outcome(self, manifest_ids: Collection[int]) -> dict[int, WorkQueue]:
        """Lock rows that wait for their first attempt after an outcome; one that is being dispatched is left out."""
        if not manifest_ids:
            return {}
        rows = self.queued().filter(id_in(manifest=manifest_ids), source=Source.DEPENDENCY, attempt=1)
        free = rows.defer("input").order_by("id").select_for_update(no_key=True, skip_locked=True)
        return {row.manifest_id: row for row in free if row.manifest_id is not None}

    def held_tokens(self, row_ids: Collection[int]) -> list[int]:
        """The tokens that these rows hold, each as often as it is held."""
        rows = self.filter(id_in(id=row_ids), has_tokens=True).values_list("tokens", flat=True)
        return [token for tokens in rows for token in tokens]

    def cancelled_since(self, moment: datetime, *, manifest_ids: Collection[int]) -> dict[int, list[int]]:
        """The tokens of the rows of these manifests that were queued since then and cancelled, by manifest."""
        rows = self.filter(id_in(manifest=manifest_ids), status=QueueStatus.CANCELLED, created_at__gte=moment)
        found: dict[int, list[int]] = defaultdict(list)
        for manifest_id, tokens in rows.values_list("manifest_id", "tokens"):
            found[manifest_id or 0] += tokens
        return found

    def next_not_before(self, *, after: datetime, until: datetime) -> datetime | None:
        """The first ``not_before`` of parked rows after ``after`` and up to ``until``.

        The search has an end because SQL can let a row wait until infinity, which cannot be read.
        """
        at: datetime | None = _NEXT_NOT_BEFORE.value(after=after, until=until)
        return at

    def waiting_of(self, manifest_ids: Collection[int]) -> set[int | None]:
        """Which of these manifests have a row that waits."""
        return set(self.queued().filter(id_in(manifest=manifest_ids)).values_list("manifest_id", flat=True))

    def requeue(self, claims: Mapping[int, int]) -> list[int]:
        """Let rows that were dispatched wait again, at the place they had, and store how often each was claimed."""
        rows = [
            {"id": id_, "status": QueueStatus.QUEUED, "execution": None, "claims": number}
            for id_, number in claims.items()
        ]
        return bulk.update(WorkQueue, rows, where={"status": QueueStatus.DISPATCHED})


_NEXT_NOT_BEFORE = CompiledQuery(
    lambda: (
        WorkQueue.objects.filter(is_parked(ParkedFor.TIME), not_before__gt=AFTER, not_before__lte=UNTIL)
        .order_by("not_before")
        .values_list("not_before")
    ),
    has_limit=True,
)


class WorkQueue(QueueActions, models.Model):
    """One request for one run."""

    manifest = reference(
        Manifest, related_name="queue_rows", help_text="The manifest to run; empty for a job without one."
    )
    group = reference(
        ManifestGroup, related_name="queue_rows", help_text="The group; its job counts against the group's limit."
    )
    manifest_external_id = models.CharField(
        max_length=200, blank=True, default="", help_text="The manifest's name, kept when the manifest is deleted."
    )
    workflow = models.CharField(max_length=200, help_text="The registered name of the workflow.")
    input = models.JSONField(null=True, blank=True, help_text="The input of the workflow.")
    priority = models.PositiveSmallIntegerField(
        validators=[MaxValueValidator(31)], help_text="0 to 31, the boost included; higher goes first."
    )
    queue = models.CharField(
        max_length=MAX_QUEUE_LENGTH,
        default=DEFAULT_QUEUE,
        db_default=DEFAULT_QUEUE,
        help_text="The queue that workers take it from.",
    )
    turn = models.BigIntegerField(help_text="Its place among rows of one priority, so that groups take turns.")
    status = models.CharField(
        max_length=10, choices=choices(QueueStatus), default=QueueStatus.QUEUED.value, help_text="Its current state."
    )
    not_before = models.DateTimeField(null=True, blank=True, help_text="It is not dispatched before this time.")
    scheduled_for = models.DateTimeField(help_text="When it was due.")
    attempt = models.PositiveIntegerField(default=1, help_text="Number of the attempt, counted from 1.")
    claims = models.PositiveIntegerField(
        default=0, db_default=0, help_text="How often processes claimed it before it came back to the queue."
    )
    max_retries = models.PositiveIntegerField(
        null=True, blank=True, help_text="For a job without a manifest: failures before it is dead-lettered."
    )
    timeout_seconds = models.PositiveIntegerField(
        null=True, blank=True, help_text="For a job without a manifest: longest run time in seconds."
    )
    retry_delay_seconds = models.PositiveIntegerField(
        null=True, blank=True, help_text="For a job without a manifest: seconds before the first retry."
    )
    retry_multiplier = models.FloatField(
        null=True, blank=True, help_text="For a job without a manifest: factor between the delays of retries."
    )
    max_retry_delay_seconds = models.PositiveIntegerField(
        null=True, blank=True, help_text="For a job without a manifest: longest delay before a retry."
    )
    source = models.CharField(max_length=12, choices=choices(Source), help_text="The kind of its cause.")
    parent_execution = reference("chainsched.Metadata", help_text="The execution that caused it.")
    root_execution = reference("chainsched.Metadata", help_text="The first execution of the tree it belongs to.")
    causation_id = models.CharField(max_length=200, blank=True, default="", help_text="Its direct cause.")
    root_correlation_id = models.CharField(
        max_length=200, blank=True, default="", help_text="The correlation id at the root of its tree."
    )
    run = reference("chainsched.GraphRun", help_text="The run of the graph it is named after, the newest.")
    tokens = IdList(help_text="Where joins, or the ends of runs, count it as open: one or more in each of its runs.")
    has_tokens = models.BooleanField(
        default=False, db_default=False, help_text="Whether it is counted there; not while it is disabled."
    )
    is_again = models.BooleanField(
        default=False, db_default=False, help_text="Whether an earlier item may have ended in one of its runs."
    )
    dead_letter = reference("chainsched.DeadLetter", help_text="The dead letter that it retries.")
    execution = reference("chainsched.Metadata", help_text="The execution it became.")
    put_aside_at = models.DateTimeField(
        null=True, blank=True, help_text="When it was put aside because it could not be dispatched; empty otherwise."
    )
    put_aside_reason = models.CharField(
        max_length=500, blank=True, default="", db_default="", help_text="Why it could not be dispatched."
    )
    parked_for = models.CharField(
        max_length=10,
        choices=choices(ParkedFor),
        blank=True,
        default="",
        db_default="",
        help_text="Why it is out of the line for now; empty otherwise.",
    )
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
        run_id: int | None

    class Meta:
        base_manager_name = "objects"
        default_permissions = ("view",)
        verbose_name = "queue row"
        constraints = (
            models.UniqueConstraint(fields=["manifest"], condition=IS_QUEUED, name="chainsched_queue_one_per_manifest"),
            one_of("status", QueueStatus, name="chainsched_queue_status"),
            one_of("source", Source, name="chainsched_queue_source"),
            models.CheckConstraint(
                condition=Q(parked_for__in=["", *values(ParkedFor)]), name="chainsched_queue_parked_for"
            ),
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
            models.Index(F("priority").desc(), "turn", "id", condition=IS_IN_LINE, name="chainsched_queue_order"),
            models.Index(fields=["put_aside_at"], condition=IS_ASIDE, name="chainsched_queue_aside"),
            models.Index(
                fields=["group", "priority", "turn"], condition=IS_QUEUED, name="chainsched_queue_group_turns"
            ),
            models.Index(
                fields=["parked_for", "id"], condition=IS_QUEUED & ~Q(parked_for=""), name="chainsched_queue_parked"
            ),
            models.Index(
                fields=["not_before"], condition=is_parked(ParkedFor.TIME), name="chainsched_queue_not_before"
            ),
            models.Index(
                fields=["workflow", "queue"],
                condition=is_parked(ParkedFor.NO_WORKER),
                name="chainsched_queue_no_worker",
            ),
            models.Index(
                "group",
                F("priority").desc(),
                "turn",
                "id",
                condition=is_parked(ParkedFor.GROUP_FULL),
                name="chainsched_queue_group_full",
            ),
            models.Index(fields=["run"], condition=IS_QUEUED & Q(run__isnull=False), name="chainsched_queue_run"),
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
        """Its name for display: its manifest's external id, or the workflow of a job without one."""
        return self.manifest_external_id or self.workflow
