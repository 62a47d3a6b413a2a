"""Executions: one row an attempt, the audit trail. Born in ``flow.dispatch``, ended in ``flow.record``, then final."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from django.db import connections, models
from django.db.models import F, Q, Value
from django.db.models.functions import Coalesce, Greatest

from chainsched.domain.states import ACTIVE_STATES, TERMINAL_STATES, ExecutionState, Source
from chainsched.exceptions import ExecutionIsFinal
from chainsched.models import bulk, guard
from chainsched.models.among import among
from chainsched.models.base import PinnedManager, StoredInput, choices, one_of, reference, values
from chainsched.models.clock import database_now
from chainsched.models.doors import ExecutionActions
from chainsched.models.manifest import Manifest
from chainsched.models.manifest_group import ManifestGroup
from chainsched.models.process import Process

IS_ACTIVE = Q(state__in=values(ACTIVE_STATES))
IS_PENDING = Q(state=ExecutionState.PENDING.value)
IS_IN_PROGRESS = Q(state=ExecutionState.IN_PROGRESS.value)


class Taken(NamedTuple):
    """What a worker needs of an execution that it has claimed; whole rows are dear to load by the thousand.

    The last two are of its manifest, and None if that is gone.
    """

    id: int
    manifest_id: int | None
    manifest_external_id: str
    external_id: uuid.UUID
    workflow: str
    input: Any
    scheduled_for: datetime
    attempt: int
    timeout_seconds: int | None
    parent_execution_id: int | None
    root_execution_id: int | None
    causation_id: str
    root_correlation_id: str
    manifest__cron_expression: str | None
    manifest__depends_on_id: int | None


class Attempt(NamedTuple):
    """An execution as far as its end is concerned. Its input may be large and is not needed for that."""

    id: int
    manifest_id: int | None
    group_id: int | None
    workflow: str
    state: str
    source: str
    attempt: int
    scheduled_for: datetime
    claimed_at: datetime | None
    started_at: datetime | None
    process_id: int | None
    cancel_requested: bool
    parent_execution_id: int | None
    root_execution_id: int | None
    causation_id: str
    root_correlation_id: str

    @property
    def tree_id(self) -> int:
        """The id of the root of its tree: its own, if it is the root."""
        return self.root_execution_id or self.id


class MetadataQuerySet(models.QuerySet["Metadata"]):
    """Reads of executions, and the steps between their states as compare-and-set writes."""

    def active(self) -> MetadataQuerySet:
        return self.filter(IS_ACTIVE)

    def pending(self) -> MetadataQuerySet:
        return self.filter(IS_PENDING)

    def in_progress(self) -> MetadataQuerySet:
        return self.filter(IS_IN_PROGRESS)

    def in_claim_order(self) -> MetadataQuerySet:
        return self.order_by("-priority", "id")

    def active_by_group(self) -> dict[int | None, int]:
        """How many executions each group has pending or running, counted from the rows themselves."""
        counted = self.active().values_list("group_id").order_by().annotate(active=models.Count("id"))
        return dict(counted)

    def claim(
        self, *, process: Process, workflows: Collection[str], limit: int, is_begun: bool, now: datetime | None = None
    ) -> list[Taken]:
        """Take up to ``limit`` pending executions for a process; nothing if the process is no longer trusted.

        ``is_begun`` says that their code runs at once; else ``begin`` notes it when it does.
        """
        candidates = self.pending().filter(workflow__in=workflows).in_claim_order()
        locked = candidates.select_for_update(skip_locked=True, no_key=True)[:limit]
        trusted = Process.objects.using(self.db).trusted().filter(pk=process.pk)
        ids = list(locked.values_list("id", flat=True))
        claimed = self.pending().filter(models.Exists(trusted), among(id=ids))
        at = now or database_now()
        taken_by = {"state": ExecutionState.IN_PROGRESS, "process": process, "claimed_at": at}
        if not ids or not claimed.update(**taken_by, started_at=at if is_begun else None, claims=F("claims") + 1):
            return []
        taken = self.in_progress().filter(among(id=ids), process=process)
        return [Taken(*row) for row in taken.in_claim_order().values_list(*Taken._fields)]

    def _free_claims(self, execution_ids: Iterable[int], *, process_ids: Collection[int]) -> MetadataQuerySet:
        """Lock those of these that the processes hold, but wait for nobody: a worker has others to write for."""
        held = self.in_progress().filter(among(id=execution_ids), process__in=process_ids)
        return held.order_by("id").select_for_update(no_key=True, skip_locked=True)

    def begin(self, delays: Mapping[int, float], *, process: Process) -> int:
        """Note when the code of claims began: so many seconds after the claim. It will be noted anyway when it ends."""
        unnoted = self._free_claims(delays, process_ids=[process.pk]).filter(started_at__isnull=True)
        rows = [
            {"id": id_, "started_at": claimed_at + timedelta(seconds=delays[id_])}
            for id_, claimed_at in unnoted.values_list("id", "claimed_at")
            if claimed_at is not None
        ]
        return len(bulk.update(Metadata, rows))

    def note_start(self, execution_id: int, *, at: datetime) -> None:
        """Note that the code of one claim has begun, unless that is known; no earlier than it was claimed."""
        begun = self.in_progress().filter(id=execution_id, started_at__isnull=True)
        begun.update(started_at=Greatest(Coalesce("claimed_at", Value(at)), Value(at)))

    def note_progress(self, progress: Mapping[int, Any], *, process: Process) -> set[int]:
        """Show how far executions of this process say they are; returns those whose rows somebody else holds."""
        free = list(self._free_claims(progress, process_ids=[process.pk]).values_list("id", flat=True))
        bulk.update(Metadata, [{"id": id_, "progress": progress[id_]} for id_ in free])
        if len(free) == len(progress):
            return set()
        own = self.in_progress().filter(among(id=progress), process=process)
        return set(own.values_list("id", flat=True)).difference(free)

    def hand_back(self, *, process: Process, known: Collection[int]) -> int:
        """Give back what stands under a process and is not in its hands.

        That is a claim it never heard of, or an end that a server which took another's place has forgotten.
        """
        strays = self.in_progress().filter(process=process).exclude(id__in=known)
        return strays.update(state=ExecutionState.PENDING, process=None, claimed_at=None, started_at=None)

    def release(self, execution_ids: Iterable[int], *, process_ids: Collection[int], is_counted: bool) -> int:
        """Give back claims whose run never began, and count them if they should not come back too often.

        What somebody holds just now stays as it is.
        """
        free = self._free_claims(execution_ids, process_ids=process_ids).filter(started_at__isnull=True)
        unstarted = self.filter(among(id=free.values_list("id", flat=True)))
        claims = F("claims") if is_counted else Greatest(F("claims") - 1, Value(0))
        return unstarted.update(state=ExecutionState.PENDING, process=None, claimed_at=None, claims=claims)

    def unstarted(self, execution_ids: Iterable[int], *, process: Process) -> set[int]:
        """Those of these that a process has claimed and that have not begun."""
        claimed = self.in_progress().filter(among(id=execution_ids), process=process, started_at__isnull=True)
        return set(claimed.values_list("id", flat=True))

    def lock_active_of(self, manifest_ids: Collection[int]) -> list[Metadata]:
        """Lock what these manifests have pending or running, so that nobody claims or ends it meanwhile."""
        rows = self.active().filter(among(manifest=manifest_ids)).order_by("id")
        return list(rows.select_for_update(no_key=True))

    def lock_active(self, execution_ids: Collection[int]) -> list[Metadata]:
        """Lock the rows that can still be ended, in id order."""
        rows = self.active().filter(among(id=execution_ids)).order_by("id")
        return list(rows.select_for_update(no_key=True))

    def lock_attempts(self, execution_ids: Collection[int], *, is_waiting: bool = True) -> list[Attempt]:
        """Lock the rows, ended or not, in id order; without waiting, only those that nobody holds."""
        # Not only active(): on a table without statistics PostgreSQL would look for the ids among all that is active.
        rows = self.filter(among(id=execution_ids)).order_by("id")
        free = rows.select_for_update(no_key=True, skip_locked=not is_waiting)
        return [Attempt(*row) for row in free.values_list(*Attempt._fields)]

    def request_cancel(self, execution_ids: Collection[int], *, reason: str) -> list[int]:
        """Ask executions that have not ended to stop; returns those that were not asked before."""
        rows = [{"id": id_, "cancel_requested": True, "cancel_reason": reason} for id_ in execution_ids]
        return [
            id_
            for state in ACTIVE_STATES
            for id_ in bulk.update(Metadata, rows, where={"state": state, "cancel_requested": False})
        ]

    def manifests_of(self, execution_ids: Collection[int]) -> list[int]:
        """Whose executions these are. That never changes, so it may be read before a lock."""
        rows = self.filter(among(id=execution_ids), manifest__isnull=False)
        return [manifest_id for manifest_id in rows.values_list("manifest_id", flat=True) if manifest_id is not None]

    def tree(self, root_execution_id: int) -> MetadataQuerySet:
        """An execution and everything that it led to: the whole tree, in one statement over two indexes."""
        ids = self.filter(id=root_execution_id).order_by().values("id")
        below = self.filter(root_execution=root_execution_id).order_by().values("id")
        return self.filter(id__in=ids.union(below, all=True)).order_by("id")

    def ancestors(self, execution_id: int, *, limit: int) -> list[Metadata]:
        """An execution, its parent and so on, up to the root or the first that is gone; without their payloads."""
        sql = (
            "WITH RECURSIVE line(id, parent_id, step) AS ("
            "SELECT id, parent_execution_id, 1 FROM chainsched_metadata WHERE id = %s "
            "UNION ALL SELECT m.id, m.parent_execution_id, line.step + 1 FROM chainsched_metadata m "
            "JOIN line ON m.id = line.parent_id WHERE line.step < %s) SELECT id FROM line ORDER BY step"
        )
        with connections[self.db].cursor() as cursor:
            cursor.execute(sql, [execution_id, limit])
            ids = [id_ for (id_,) in cursor.fetchall()]
        found = self.defer("input", "output", "progress", "failure_traceback").in_bulk(ids)
        return [found[id_] for id_ in dict.fromkeys(ids) if id_ in found]

    def oldest_of_newest(self, manifest_ids: Collection[int], *, number: int) -> dict[int, int]:
        """The oldest of the newest ``number`` roots of each manifest; those that have fewer are left out."""
        unfolded, parameter = bulk.unfold({"manifest_id": models.BigIntegerField()}, [[id_] for id_ in manifest_ids])
        sql = (
            "SELECT v.manifest_id, (SELECT m.id FROM chainsched_metadata m WHERE m.manifest_id = v.manifest_id "  # noqa: S608
            f"AND m.root_execution_id IS NULL ORDER BY m.id DESC LIMIT 1 OFFSET %s) FROM {unfolded}"
        )
        with connections[self.db].cursor() as cursor:
            cursor.execute(sql, [number - 1, parameter])
            return {manifest_id: id_ for manifest_id, id_ in cursor.fetchall() if id_ is not None}

    def purge(self, execution_ids: Collection[int]) -> int:
        """Delete executions that have ended; only ``flow.clean`` may. Returns how many."""
        ended = self.filter(id__in=execution_ids, state__in=values(TERMINAL_STATES))
        with guard.open_door(connections[self.db]):
            deleted, _ = models.QuerySet.delete(ended)
        return deleted

    def delete(self) -> NoReturn:
        """Refuse: only retention removes executions, through its own door, and recall those that nobody has begun."""
        raise ExecutionIsFinal("Executions are an audit trail and are removed by retention only, not by delete().")

    def stranded(self, workflows: Collection[str]) -> MetadataQuerySet:
        """Pending executions that run none of these workflows, the oldest first."""
        return self.pending().exclude(workflow__in=workflows).order_by("id")

    def lock_unclaimed(self, execution_ids: Collection[int]) -> list[Metadata]:
        """Lock those that are still pending, in id order, passing over what a worker is claiming; without payloads."""
        payloads = ("input", "output", "progress", "failure_traceback")
        rows = self.pending().filter(among(id=execution_ids)).order_by("id").defer(*payloads)
        return list(rows.select_for_update(skip_locked=True))

    def withdraw(self, execution_ids: Collection[int]) -> int:
        """Delete executions that nobody has begun; only ``flow.recall`` may. Returns how many."""
        deleted, _ = models.QuerySet.delete(self.pending().filter(among(id=execution_ids)))
        return deleted


class Metadata(ExecutionActions, models.Model):
    """One attempt at one run."""

    external_id = models.UUIDField(
        unique=True, default=uuid.uuid4, help_text="Its public id, and the correlation id of all it causes."
    )
    manifest = reference(Manifest, related_name="executions", help_text="What ran; empty for a job without a manifest.")
    manifest_external_id = models.CharField(
        max_length=200, blank=True, default="", help_text="The manifest's name, kept when the manifest goes."
    )
    group = reference(ManifestGroup, related_name="executions", help_text="Whose limit it counts against.")
    work_queue = reference("chainsched.WorkQueue", help_text="The queue row it was dispatched from.")
    workflow = models.CharField(max_length=200, help_text="The registered name of the workflow.")
    source = models.CharField(max_length=12, choices=choices(Source), help_text="What asked for it.")
    state = models.CharField(
        max_length=12,
        choices=choices(ExecutionState),
        default=ExecutionState.PENDING.value,
        help_text="Where it stands.",
    )
    priority = models.PositiveSmallIntegerField(default=0, help_text="The priority it was dispatched with.")
    attempt = models.PositiveIntegerField(default=1, help_text="Which attempt it is, counted from 1.")
    claims = models.PositiveIntegerField(default=0, help_text="How often a process took it; more than once is a sign.")
    timeout_seconds = models.PositiveIntegerField(null=True, blank=True, help_text="How long it may run.")
    input = StoredInput(null=True, blank=True, help_text="What the workflow was called with.")
    output = models.JSONField(null=True, blank=True, help_text="What the workflow returned.")
    scheduled_for = models.DateTimeField(help_text="The time it was due.")
    created_at = models.DateTimeField(help_text="When it was dispatched.")
    claimed_at = models.DateTimeField(null=True, blank=True, help_text="When a process took it.")
    started_at = models.DateTimeField(null=True, blank=True, help_text="When the user's code began.")
    ended_at = models.DateTimeField(null=True, blank=True, help_text="When it ended; set exactly in terminal states.")
    failure_type = models.CharField(
        max_length=200, blank=True, default="", help_text="The exception's class, or what else ended it."
    )
    failure_reason = models.TextField(blank=True, default="", help_text="What went wrong, in words.")
    failure_traceback = models.TextField(blank=True, default="", help_text="Where it went wrong.")
    failure_fingerprint = models.CharField(
        max_length=64, blank=True, default="", help_text="The same for failures that look the same."
    )
    process = reference(Process, related_name="executions", help_text="The process that runs or ran it.")
    cancel_requested = models.BooleanField(default=False, help_text="Somebody asked it to stop.")
    cancel_reason = models.CharField(
        max_length=200, blank=True, default="", db_default="", help_text="Why it was asked to stop."
    )
    progress = models.JSONField(null=True, blank=True, help_text="How far it says it is.")
    parent_execution = reference("self", related_name="children", help_text="The execution that caused it.")
    root_execution = reference(
        "self", related_name="descendants", help_text="The first execution of its tree; empty for a root."
    )
    causation_id = models.CharField(max_length=200, blank=True, default="", help_text="What directly caused it.")
    root_correlation_id = models.CharField(
        max_length=200, blank=True, default="", help_text="The correlation id at the root of its tree."
    )

    objects = PinnedManager.from_queryset(MetadataQuerySet)()

    if TYPE_CHECKING:
        id: int
        manifest_id: int | None
        group_id: int | None
        work_queue_id: int | None
        process_id: int | None
        parent_execution_id: int | None
        root_execution_id: int | None

    class Meta:
        base_manager_name = "objects"
        default_permissions = ("view",)
        permissions = (("view_payloads", "Can see inputs, outputs, progress and tracebacks"),)
        verbose_name = "execution"
        get_latest_by = "id"
        constraints = (
            models.UniqueConstraint(fields=["manifest"], condition=IS_ACTIVE, name="chainsched_execution_one_active"),
            one_of("state", ExecutionState, name="chainsched_execution_state"),
            one_of("source", Source, name="chainsched_execution_source"),
            models.CheckConstraint(
                condition=Q(state__in=values(TERMINAL_STATES), ended_at__isnull=False)
                | Q(state__in=values(ACTIVE_STATES), ended_at__isnull=True),
                name="chainsched_execution_ended_when_terminal",
            ),
            models.CheckConstraint(condition=Q(attempt__gte=1), name="chainsched_execution_attempt_positive"),
        )
        indexes = (
            models.Index(F("priority").desc(), "id", condition=IS_PENDING, name="chainsched_execution_claims"),
            models.Index(fields=["group"], condition=IS_ACTIVE, name="chainsched_execution_active"),
            models.Index(fields=["process"], condition=IS_IN_PROGRESS, name="chainsched_execution_running"),
            models.Index(
                "manifest", F("id").desc(), condition=Q(manifest__isnull=False), name="chainsched_execution_history"
            ),
            models.Index(
                fields=["parent_execution"],
                condition=Q(parent_execution__isnull=False),
                name="chainsched_execution_parent",
            ),
            models.Index(
                fields=["root_execution"], condition=Q(root_execution__isnull=False), name="chainsched_execution_root"
            ),
        )

    def __str__(self) -> str:
        return f"{self.manifest_external_id or self.workflow} #{self.id} ({self.state})"

    @property
    def tree_id(self) -> int:
        """The id of the root of its tree: its own, if it is the root."""
        return self.root_execution_id or self.id

    def delete(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Refuse: only retention removes executions, through its own door."""
        raise ExecutionIsFinal(f"Execution {self.id} is part of the audit trail; only retention removes it.")
