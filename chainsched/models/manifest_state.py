"""The run-time state of a manifest: one narrow row, written by the engine only. To lock a manifest, lock this row."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.db import connections, models
from django.db.models import Case, F, Q, Value, When

from chainsched.db import bulk
from chainsched.db.compiled import AFTER, NOW, UNTIL, CompiledQuery, CompiledUpdate, Ids, Parameter
from chainsched.db.fields import IdList, PinnedManager
from chainsched.db.id_in import among_ids, id_in
from chainsched.domain.states import ScheduleType
from chainsched.domain.triggers import Answered
from chainsched.models.manifest import Manifest, manifest_is_known
from chainsched.models.obstacles import OF_THE_ROW, is_free_of

# The columns of a trigger request, with their values while none is waiting.
NO_TRIGGER = {"trigger_at": None, "trigger_input": None, "trigger_causation_id": "", "trigger_root_correlation_id": ""}
# The columns of the item that is due, with their values while none is.
NOTHING_DUE: dict[str, Any] = {"due_run": None, "due_tokens": [], "due_has_tokens": False, "due_is_again": False}
# The columns of a manifest that is put aside, with their values while it is not.
NOT_PUT_ASIDE: dict[str, Any] = {"put_aside_at": None, "put_aside_reason": ""}
TIMED = [schedule_type for schedule_type in ScheduleType if schedule_type.is_timed]


class ManifestStateQuerySet(models.QuerySet["ManifestState"]):
    """The lock on manifests, and the reads that the manager makes."""

    def lock(self, manifest_ids: Collection[int]) -> list[int]:
        """Lock these rows in id order and return those that exist. Facts for a decision are read after this.

        SQLite has no row locks and needs none: the transaction has written before, so it is the only one.
        """
        return _LOCK.column(ids=manifest_ids)

    def lock_of(self, execution_ids: Iterable[int]) -> list[int]:
        """The same for the manifests of these executions. Which they are never changes: it may be read before a lock.

        The ids become a list first: so the rows are found by the index, regardless of the planner's estimates.
        """
        is_postgres = connections[self.db].vendor == "postgresql"
        is_one, parameter = among_ids("m.id", execution_ids)
        of_these = f"(SELECT m.manifest_id FROM chainsched_metadata m WHERE {is_one} AND m.manifest_id IS NOT NULL)"  # noqa: S608
        these, lock = (f"= ANY(ARRAY{of_these})", "FOR NO KEY UPDATE") if is_postgres else (f"IN {of_these}", "")
        sql = f"SELECT manifest_id FROM chainsched_manifeststate WHERE manifest_id {these} ORDER BY manifest_id {lock}"  # noqa: S608
        return [manifest_id for (manifest_id,) in bulk.select(sql, [parameter])]

    def lock_free(self, manifest_ids: Collection[int]) -> list[int]:
        """Lock those of these rows that no other transaction holds, in id order, without waiting."""
        return _LOCK_FREE.column(ids=manifest_ids)

    def lock_due(self, manifest_ids: Collection[int], *, now: datetime) -> list[int]:
        """Lock those that are still due, skipping rows that another transaction holds."""
        rows = self.due(now).filter(id_in(manifest=manifest_ids)).order_by("manifest_id")
        return list(rows.select_for_update(no_key=True, skip_locked=True).values_list("manifest_id", flat=True))

    def known(self) -> ManifestStateQuerySet:
        """Without those of manifests that have a value that this version does not know."""
        return self.filter(manifest_is_known())

    def due(self, now: datetime | Parameter) -> ManifestStateQuerySet:
        """Those with an alarm that is due. The partial index over alarms answers this; nothing may be joined to it.

        Manifests with a value that this version does not know are passed over and stay due for a newer one.
        """
        return self.known().filter(next_run_at__lte=now)

    def lock_due_page(self, now: datetime, *, limit: int) -> list[int]:
        """Lock those that have been due longest, skipping rows that another transaction holds."""
        return _LOCK_DUE_PAGE.column(now=now, limit=limit)

    def without_alarm(self, *, after: int, limit: int) -> list[int]:
        """Manifests that may run by themselves and have no alarm, in pages by id; many of them have open work."""
        # One that was put aside is tried again at its own pace.
        may_run = self.filter(put_aside_at__isnull=True, next_run_at__isnull=True, manifest__gt=after)
        has_reason = Q(manifest__schedule_type__in=TIMED) | Q(due_execution__gt=F("covered_execution"))
        by_itself = has_reason & is_free_of(OF_THE_ROW, manifest="manifest__")
        wanted = may_run.filter(by_itself | Q(trigger_at__isnull=False))
        return list(wanted.order_by("manifest_id").values_list("manifest_id", flat=True)[:limit])

    def with_alarm(self, *, after: int, limit: int) -> list[int]:
        """Manifests that have an alarm, in pages by id."""
        armed = self.filter(next_run_at__isnull=False, manifest__gt=after).order_by("manifest_id")
        return list(armed.values_list("manifest_id", flat=True)[:limit])

    def lock_without_alarm(self, manifest_ids: Collection[int]) -> list[int]:
        """Lock those that still have no alarm, skipping rows that another transaction holds: it deals with them."""
        rows = self.filter(manifest__in=manifest_ids, next_run_at__isnull=True).order_by("manifest_id")
        return list(rows.select_for_update(no_key=True, skip_locked=True).values_list("manifest_id", flat=True))

    def next_alarm(self, *, after: datetime, until: datetime) -> datetime | None:
        """The first alarm after ``after`` and up to ``until``. Another process is handling any alarm before that.

        The search has an end because SQL can set an alarm for infinity, which cannot be read.
        """
        at: datetime | None = _NEXT_ALARM.value(after=after, until=until)
        return at

    def waiting_requests(self, manifest_ids: Collection[int]) -> dict[int, tuple[datetime, Any]]:
        """The trigger requests that wait, by manifest: when they may run, and their input, None for the manifest's."""
        if not manifest_ids:
            return {}
        rows = self.filter(id_in(manifest=manifest_ids), trigger_at__isnull=False)
        columns = rows.values_list("manifest_id", "trigger_at", "trigger_input")
        return {id_: (at, own) for id_, at, own in columns if at is not None}

    def forget_triggers(self, manifest_ids: Collection[int]) -> list[int]:
        """Drop trigger requests that wait; returns the manifests that had one."""
        triggered = self.filter(manifest__in=manifest_ids, trigger_at__isnull=False)
        ids = list(triggered.values_list("manifest_id", flat=True))
        self.filter(manifest__in=ids).update(**NO_TRIGGER)
        return ids

    def note_finished(self, manifest_ids: Collection[int], *, now: datetime) -> None:
        """Record that the occurrence these manifests were queued for is over."""
        self.filter(manifest__in=manifest_ids).update(last_finished_run=now)

    def behind(self, manifest_ids: Collection[int]) -> ManifestStateQuerySet:
        """Those of these that are due for an execution of their parent."""
        return self.filter(manifest__in=manifest_ids, due_execution__gt=F("covered_execution"))

    def with_due_items(self, manifest_ids: Collection[int]) -> ManifestStateQuerySet:
        """Those of these that are due in a run, in id order."""
        return self.behind(manifest_ids).filter(due_run__isnull=False).order_by("manifest_id")

    def cover_without_run(self, manifest_ids: Collection[int]) -> int:
        """Count the executions that these manifests are due for as covered, without a run."""
        return self.filter(manifest__in=manifest_ids).update(covered_execution=F("due_execution"), **NOTHING_DUE)

    def note_queued(
        self, manifest_ids: Collection[int], *, now: datetime, is_covering: bool, answered: Answered
    ) -> int:
        """Record that a queue row was opened: the alarm is off and, if ``is_covering``, due executions are covered.

        ``answered`` says which trigger requests that are due it answers; the others ask for another run.
        """
        return _NOTE_QUEUED[is_covering, answered].run(ids=manifest_ids, now=now)

    def put_aside(self, reasons: Mapping[int, str], *, now: datetime) -> int:
        """Clear alarms that cannot be followed, with the reasons. Occurrences stay, for when they are tried again."""
        rows = [
            {"manifest": id_, "next_run_at": None, "put_aside_at": now, "put_aside_reason": reason}
            for id_, reason in sorted(reasons.items())
        ]
        return len(bulk.update(ManifestState, rows, key="manifest"))

    def aside(self) -> ManifestStateQuerySet:
        """Those that are put aside."""
        return self.filter(put_aside_at__isnull=False)

    def find_put_aside(self, manifest_id: int) -> tuple[str, datetime, str] | None:
        """The external id of a manifest that is put aside, since when and why; None if it is not."""
        columns = ("manifest__external_id", "put_aside_at", "put_aside_reason")
        row = self.aside().filter(manifest=manifest_id).values_list(*columns).first()
        return None if row is None or row[1] is None else (row[0], row[1], row[2])


def _these() -> models.QuerySet[ManifestState]:
    return ManifestState.objects.filter(id_in(manifest=Ids()))


def _locked(rows: models.QuerySet[ManifestState], *, is_waiting: bool) -> models.QuerySet[ManifestState, Any]:
    return rows.select_for_update(no_key=True, skip_locked=not is_waiting).values_list("manifest_id")


def _note_queued(*, is_covering: bool, answered: Answered) -> CompiledUpdate:
    is_answered = Q(trigger_at__lte=NOW)
    if answered is Answered.WITHOUT_INPUT:
        is_answered &= Q(trigger_input__isnull=True)
    request = {
        column: Case(When(is_answered, then=Value(nothing)), default=F(column))
        for column, nothing in NO_TRIGGER.items()
        if answered is not Answered.NONE
    }
    covered: dict[str, Any] = {"covered_execution": F("due_execution"), **NOTHING_DUE} if is_covering else {}
    return CompiledUpdate(_these, next_run_at=None, occurrence_at=None, **covered, **request, **NOT_PUT_ASIDE)


_LOCK = CompiledQuery(lambda: _locked(_these().order_by("manifest_id"), is_waiting=True))
_LOCK_FREE = CompiledQuery(lambda: _locked(_these().order_by("manifest_id"), is_waiting=False))
_LOCK_DUE_PAGE = CompiledQuery(
    lambda: _locked(ManifestState.objects.due(NOW).order_by("next_run_at"), is_waiting=False), has_limit=True
)
_NEXT_ALARM = CompiledQuery(
    lambda: (
        ManifestState.objects.filter(next_run_at__gt=AFTER, next_run_at__lte=UNTIL)
        .order_by("next_run_at")
        .values_list("next_run_at")
    ),
    has_limit=True,
)
_NOTE_QUEUED = {
    (is_covering, answered): _note_queued(is_covering=is_covering, answered=answered)
    for is_covering in (True, False)
    for answered in Answered
}


class ManifestState(models.Model):
    """The engine's own facts about a manifest. No form and no ``save()`` of a manifest touches them."""

    manifest = models.OneToOneField(
        Manifest, primary_key=True, on_delete=models.CASCADE, related_name="state", help_text="The manifest."
    )
    next_run_at = models.DateTimeField(
        null=True, blank=True, help_text="The alarm: when the manager evaluates it. Empty while it has open work."
    )
    occurrence_at = models.DateTimeField(
        null=True, blank=True, help_text="The time of its schedule's next run, without trigger requests."
    )
    trigger_at = models.DateTimeField(
        null=True, blank=True, help_text="When the waiting trigger request runs it; empty if there is none."
    )
    trigger_input = models.JSONField(
        null=True, blank=True, help_text="The input of that trigger request, if it has its own."
    )
    trigger_causation_id = models.CharField(
        max_length=200,
        blank=True,
        default="",
        db_default="",
        help_text="The direct cause of that trigger request: a run, a message.",
    )
    trigger_root_correlation_id = models.CharField(
        max_length=200,
        blank=True,
        default="",
        db_default="",
        help_text="The correlation id at the root of that cause.",
    )
    due_execution = models.BigIntegerField(
        default=0, help_text="The newest execution of its parent that matched its condition; 0 for none."
    )
    covered_execution = models.BigIntegerField(
        default=0, help_text="The execution of its parent that it was last queued for; 0 for none."
    )
    due_run = models.BigIntegerField(
        null=True, blank=True, help_text="The newest run that it is due in; empty if it is due in none."
    )
    due_tokens = IdList(help_text="The tokens of the item that is due: one or more in each of its runs.")
    due_has_tokens = models.BooleanField(
        default=False, db_default=False, help_text="Whether joins wait for the item that is due."
    )
    due_is_again = models.BooleanField(
        default=False, db_default=False, help_text="Whether an earlier item may have ended in a run of the due one."
    )
    put_aside_at = models.DateTimeField(
        null=True, blank=True, help_text="When it was put aside because it could not be queued; empty otherwise."
    )
    put_aside_reason = models.CharField(
        max_length=500, blank=True, default="", db_default="", help_text="Why it could not be queued."
    )
    consecutive_failures = models.PositiveIntegerField(
        default=0, help_text="Failed attempts since the last success or resolution."
    )
    last_successful_run = models.DateTimeField(null=True, blank=True, help_text="When it last succeeded.")
    last_finished_run = models.DateTimeField(
        null=True, blank=True, help_text="When it last succeeded, was cancelled, or had its dead letter resolved."
    )
    succeeded_execution = models.BigIntegerField(
        default=0, help_text="Its newest execution that succeeded; 0 for none."
    )
    dead_lettered_execution = models.BigIntegerField(
        default=0, help_text="Its newest execution that ended in a dead letter; 0 for none."
    )
    finished_execution = models.BigIntegerField(
        default=0, help_text="Its newest execution that counts as an outcome of any kind; 0 for none."
    )

    objects = PinnedManager.from_queryset(ManifestStateQuerySet)()

    if TYPE_CHECKING:
        manifest_id: int

    class Meta:
        base_manager_name = "objects"
        default_permissions = ("view",)
        constraints = (
            models.CheckConstraint(
                condition=Q(due_execution__gte=F("covered_execution")), name="chainsched_state_due_not_behind"
            ),
        )
        indexes = (
            models.Index(fields=["next_run_at"], condition=Q(next_run_at__isnull=False), name="chainsched_state_alarm"),
            models.Index(
                fields=["put_aside_at"], condition=Q(put_aside_at__isnull=False), name="chainsched_state_aside"
            ),
            models.Index(fields=["due_run"], condition=Q(due_run__isnull=False), name="chainsched_state_due_run"),
            models.Index(
                F("consecutive_failures").desc(),
                condition=Q(consecutive_failures__gt=0),
                name="chainsched_state_worst",
            ),
            models.Index(fields=["manifest"], condition=Q(consecutive_failures__gt=0), name="chainsched_state_failing"),
        )

    def __str__(self) -> str:
        return f"state of manifest {self.manifest_id}"
