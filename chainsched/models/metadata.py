"""Executions: one row per attempt, the audit trail.

``flow.run.dispatch`` creates a row, ``flow.run.record`` ends it, and from then on it is final.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from django.db import connections, models
from django.db.models import F, Q

from chainsched.db import audit_guard, bulk
from chainsched.db.compiled import CompiledQuery, Ids
from chainsched.db.fields import IdList, PinnedManager, StoredInput, choices, one_of, reference, values
from chainsched.db.id_in import id_in
from chainsched.domain.capacity import Active
from chainsched.domain.routing import DEFAULT_QUEUE, MAX_QUEUE_LENGTH
from chainsched.domain.states import ACTIVE_STATES, TERMINAL_STATES, ExecutionState, Source
from chainsched.exceptions import ExecutionIsFinal
from chainsched.models.manifest import Manifest
from chainsched.models.manifest_group import ManifestGroup
from chainsched.models.metadata_claims import IS_ACTIVE, IS_IN_PROGRESS, IS_PENDING, ClaimQuerySet
from chainsched.models.model_methods import ExecutionActions
from chainsched.models.process import PROCESS_ID, Process
from chainsched.models.taken_over import TakenOver


class Attempt(NamedTuple):
    """The columns of an execution that its end needs. Its input may be large and is not among them."""

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
    run_id: int | None
    tokens: list[int]
    has_tokens: bool
    is_again: bool
    is_tree_cancelled: bool
    ended_at: datetime | None

    @property
    def tree_id(self) -> int:
        """The id of the root of its tree: its own, if it is the root."""
        return self.root_execution_id or self.id


class MetadataQuerySet(ClaimQuerySet):
    """Reads and locks of executions, and the only ways to delete their rows."""

    def active_by_group(self) -> dict[int | None, int]:
        """How many executions each group has pending or running, counted from the rows themselves."""
        counted = self.active().values_list("group_id").order_by().annotate(active=models.Count("id"))
        return dict(counted)

    def count_active(self) -> Active:
        """How many executions are pending or in progress, by group and by process, with the limits of these groups."""
        by_group: Counter[int | None] = Counter()
        by_process: Counter[int | None] = Counter()
        limits: dict[int, int] = {}
        for group_id, process_id, limit, number in _ACTIVE.rows():
            by_group[group_id] += number
            by_process[process_id] += number
            if group_id is not None and limit is not None:
                limits[group_id] = limit
        return Active(by_group, by_process, limits)

    def lock_active_of(self, manifest_ids: Collection[int]) -> list[Metadata]:
        """Lock the pending and running executions of these manifests, so that no process claims or ends them."""
        rows = self.active().filter(id_in(manifest=manifest_ids)).order_by("id")
        return list(rows.select_for_update(no_key=True))

    def lock_active(self, execution_ids: Collection[int]) -> list[Metadata]:
        """Lock the rows that can still be ended, in id order."""
        rows = self.active().filter(id_in(id=execution_ids)).order_by("id")
        return list(rows.select_for_update(no_key=True))

    def lock_attempts(self, execution_ids: Collection[int], *, is_waiting: bool = True) -> list[Attempt]:
        """Lock the rows, ended or not, in id order; without waiting, only those that no other transaction holds."""
        query = _LOCK_ATTEMPTS if is_waiting else _LOCK_FREE_ATTEMPTS
        return [Attempt._make(row) for row in query.rows(ids=execution_ids)]

    def lock_attempts_of(self, process: Process, execution_ids: Collection[int]) -> list[Attempt]:
        """The same where this process speaks of them; none if it was declared lost."""
        return [Attempt._make(row) for row in _LOCK_ATTEMPTS_OF.rows(ids=execution_ids, process_id=process.pk)]

    def request_cancel(self, execution_ids: Collection[int], *, reason: str) -> list[int]:
        """Ask executions that have not ended to stop; returns those that were not asked before."""
        rows = [{"id": id_, "cancel_requested": True, "cancel_reason": reason} for id_ in execution_ids]
        return [
            id_
            for state in ACTIVE_STATES
            for id_ in bulk.update(Metadata, rows, where={"state": state, "cancel_requested": False})
        ]

    def manifests_of(self, execution_ids: Collection[int]) -> list[int]:
        """The manifests of these executions. They never change, so they may be read before a lock."""
        return _MANIFESTS_OF.column(ids=execution_ids)

    def tree(self, root_execution_id: int) -> MetadataQuerySet:
        """An execution and all executions that it led to: the whole tree, in one statement over two indexes."""
        ids = self.filter(id=root_execution_id).order_by().values("id")
        below = self.filter(root_execution=root_execution_id).order_by().values("id")
        return self.filter(id__in=ids.union(below, all=True)).order_by("id")

    def of_run(self, run_id: int) -> MetadataQuerySet:
        """The executions that are named after a run, and those that took it over, oldest first."""
        taken_over = TakenOver.objects.using(self.db).filter(run_id=run_id).values("execution_id")
        named = self.filter(run=run_id).order_by().values("id")
        return self.filter(id__in=named.union(taken_over, all=True)).order_by("id")

    def below(self, execution_id: int) -> list[int]:
        """An execution and all that it led to by parent links, without the runs of joins, which others led to too."""
        sql = (
            "WITH RECURSIVE line(id) AS (SELECT id FROM chainsched_metadata WHERE id = %s "
            "UNION SELECT m.id FROM chainsched_metadata m JOIN line ON m.parent_execution_id = line.id "
            "LEFT JOIN chainsched_manifest f ON f.id = m.manifest_id WHERE NOT coalesce(f.is_join, false)) "
            "SELECT id FROM line ORDER BY id"
        )
        with connections[self.db].cursor() as cursor:
            cursor.execute(sql, [execution_id])
            return [id_ for (id_,) in cursor.fetchall()]

    def mark_tree_cancelled(self, execution_ids: Collection[int]) -> None:
        """Let nothing follow from executions that have not ended, regardless of their outcome."""
        self.active().filter(id_in(id=execution_ids)).update(is_tree_cancelled=True)

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
        rows_sql, parameters = bulk.expand({"manifest_id": models.BigIntegerField()}, [[id_] for id_ in manifest_ids])
        sql = (
            "SELECT v.manifest_id, (SELECT m.id FROM chainsched_metadata m WHERE m.manifest_id = v.manifest_id "  # noqa: S608
            f"AND m.root_execution_id IS NULL ORDER BY m.id DESC LIMIT 1 OFFSET %s) FROM {rows_sql}"
        )
        found = bulk.select(sql, [number - 1, *parameters])
        return {manifest_id: id_ for manifest_id, id_ in found if id_ is not None}

    def purge(self, execution_ids: Collection[int]) -> int:
        """Delete executions that have ended; only ``flow.maintain.clean`` may. Returns how many."""
        ended = self.filter(id__in=execution_ids, state__in=values(TERMINAL_STATES))
        with audit_guard.retention_allowed(connections[self.db]):
            deleted, _ = models.QuerySet.delete(ended)
        return deleted

    def delete(self) -> NoReturn:
        """Refuse: retention removes executions by ``purge``, and recall those that never began by ``withdraw``."""
        raise ExecutionIsFinal("Executions are an audit trail and are removed by retention only, not by delete().")


def _attempts(*, is_waiting: bool) -> models.QuerySet[Metadata, Any]:
    # Not only active(): on a table without statistics PostgreSQL would look for the ids among all active rows.
    rows = Metadata.objects.filter(id_in(id=Ids())).order_by("id")
    return rows.select_for_update(no_key=True, skip_locked=not is_waiting).values_list(*Attempt._fields)


_LOCK_ATTEMPTS = CompiledQuery(lambda: _attempts(is_waiting=True))
_LOCK_FREE_ATTEMPTS = CompiledQuery(lambda: _attempts(is_waiting=False))
_LOCK_ATTEMPTS_OF = CompiledQuery(
    lambda: _attempts(is_waiting=True).filter(models.Exists(Process.objects.trusted().filter(pk=PROCESS_ID)))
)
_MANIFESTS_OF = CompiledQuery(
    lambda: Metadata.objects.filter(id_in(id=Ids()), manifest__isnull=False).values_list("manifest_id")
)
_ACTIVE = CompiledQuery(
    lambda: (
        Metadata.objects.active()
        .values_list("group_id", "process_id", "group__max_active_jobs")
        .order_by()
        .annotate(active=models.Count("id"))
    )
)


class Metadata(ExecutionActions, models.Model):
    """One attempt at one run."""

    external_id = models.UUIDField(
        unique=True, default=uuid.uuid4, help_text="Its public id, and the correlation id of everything it causes."
    )
    manifest = reference(
        Manifest, related_name="executions", help_text="The manifest that ran; empty for a job without one."
    )
    manifest_external_id = models.CharField(
        max_length=200, blank=True, default="", help_text="The manifest's name, kept when the manifest is deleted."
    )
    group = reference(
        ManifestGroup, related_name="executions", help_text="The group; it counts against the group's limit."
    )
    work_queue = reference("chainsched.WorkQueue", help_text="The queue row it was dispatched from.")
    workflow = models.CharField(max_length=200, help_text="The registered name of the workflow.")
    source = models.CharField(max_length=12, choices=choices(Source), help_text="The kind of its cause.")
    state = models.CharField(
        max_length=12,
        choices=choices(ExecutionState),
        default=ExecutionState.PENDING.value,
        help_text="Its current state.",
    )
    priority = models.PositiveSmallIntegerField(default=0, help_text="The priority it was dispatched with.")
    queue = models.CharField(
        max_length=MAX_QUEUE_LENGTH,
        default=DEFAULT_QUEUE,
        db_default=DEFAULT_QUEUE,
        help_text="The queue it was taken from.",
    )
    attempt = models.PositiveIntegerField(default=1, help_text="Number of the attempt, counted from 1.")
    claims = models.PositiveIntegerField(
        default=0, help_text="How often a process claimed it; more than once hints at a failing process."
    )
    timeout_seconds = models.PositiveIntegerField(null=True, blank=True, help_text="Longest run time in seconds.")
    input = StoredInput(null=True, blank=True, help_text="The input of the workflow.")
    output = models.JSONField(null=True, blank=True, help_text="The return value of the workflow.")
    scheduled_for = models.DateTimeField(help_text="When it was due.")
    created_at = models.DateTimeField(help_text="When it was dispatched.")
    claimed_at = models.DateTimeField(null=True, blank=True, help_text="When a process claimed it.")
    started_at = models.DateTimeField(
        null=True, blank=True, help_text="When the user's code began; until it ends, when it was taken."
    )
    ended_at = models.DateTimeField(null=True, blank=True, help_text="When it ended; set exactly in terminal states.")
    failure_type = models.CharField(
        max_length=200, blank=True, default="", help_text="The exception's class, or the engine's name for the failure."
    )
    failure_reason = models.TextField(blank=True, default="", help_text="The reason of the failure in words.")
    failure_traceback = models.TextField(blank=True, default="", help_text="The traceback of the failure.")
    failure_fingerprint = models.CharField(
        max_length=64, blank=True, default="", help_text="The same for failures that look the same."
    )
    process = reference(Process, related_name="executions", help_text="The process that runs or ran it.")
    cancel_requested = models.BooleanField(default=False, help_text="Whether it was asked to stop.")
    cancel_reason = models.CharField(
        max_length=200, blank=True, default="", db_default="", help_text="Why it was asked to stop."
    )
    progress = models.JSONField(null=True, blank=True, help_text="Progress reported by the job.")
    parent_execution = reference("self", related_name="children", help_text="The execution that caused it.")
    root_execution = reference(
        "self", related_name="descendants", help_text="The first execution of its tree; empty for a root."
    )
    run = reference("chainsched.GraphRun", help_text="The run of the graph it is named after, the newest.")
    tokens = IdList(help_text="Where joins, or the ends of runs, count it as open: one or more in each of its runs.")
    has_tokens = models.BooleanField(
        default=False, db_default=False, help_text="Whether it is counted there; not while it is disabled."
    )
    is_again = models.BooleanField(
        default=False, db_default=False, help_text="Whether an earlier item may have ended in one of its runs."
    )
    is_tree_cancelled = models.BooleanField(
        default=False, db_default=False, help_text="Whether what it would lead to was cancelled with it."
    )
    causation_id = models.CharField(max_length=200, blank=True, default="", help_text="Its direct cause.")
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
        run_id: int | None

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
            models.Index(fields=["run", "id"], condition=Q(run__isnull=False), name="chainsched_execution_run"),
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
        """Refuse: only retention removes executions, by ``purge``."""
        raise ExecutionIsFinal(f"Execution {self.id} is part of the audit trail; only retention removes it.")
