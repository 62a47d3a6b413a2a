"""The run-time state of a manifest: one narrow row, written by the engine only. To lock a manifest, lock this row."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from django.db import models
from django.db.models import Case, Exists, F, OuterRef, Q, Subquery, Value, When
from django.db.models.functions import Greatest

from chainsched.db.fields import PinnedManager
from chainsched.db.id_in import id_in
from chainsched.domain.states import ScheduleType
from chainsched.models.dead_letter import DeadLetter
from chainsched.models.manifest import Manifest
from chainsched.models.obstacles import OF_THE_ROW, is_free_of

# The columns of a trigger request, with their values while none is waiting.
NO_TRIGGER = {"trigger_at": None, "trigger_input": None, "trigger_causation_id": "", "trigger_root_correlation_id": ""}
TIMED = [schedule_type for schedule_type in ScheduleType if schedule_type.is_timed]


class ManifestStateQuerySet(models.QuerySet["ManifestState"]):
    """The lock on manifests, and the reads that the manager makes."""

    def lock(self, manifest_ids: Collection[int]) -> list[int]:
        """Lock these rows in id order and return those that exist. Facts for a decision are read after this.

        SQLite has no row locks and needs none: the transaction has written before, so it is the only one.
        """
        rows = self.filter(id_in(manifest=manifest_ids)).order_by("manifest_id")
        return list(rows.select_for_update(no_key=True).values_list("manifest_id", flat=True))

    def lock_family(self, manifest_ids: Collection[int]) -> list[int]:
        """Lock these rows, those of their dependents, and those of the continuations that may wait for them.

        All in id order, in one statement. The members of the family are read before it, because PostgreSQL would read
        every state to join them; the caller reads them again after the lock.
        """
        return self.lock(self._family_of(manifest_ids))

    def lock_free_family(self, manifest_ids: Collection[int]) -> tuple[list[int], set[int]]:
        """The same without waiting: the locked ids, and those of the given manifests that have to wait.

        A manifest has to wait if another transaction holds its row or the row of a relative.
        """
        family = self.filter(id_in(manifest=self._family_of(manifest_ids))).order_by("manifest_id")
        free = family.select_for_update(no_key=True, skip_locked=True)
        locked = list(free.values_list("manifest_id", flat=True))
        held = set(family.values_list("manifest_id", flat=True)) - set(locked)
        return locked, Manifest.objects.using(self.db).held_by_others(manifest_ids, by=held) if held else set()

    def _family_of(self, manifest_ids: Collection[int]) -> set[int]:
        dependents, continuations = Manifest.objects.using(self.db).family_of(manifest_ids)
        return {*manifest_ids, *(row["id"] for row in dependents.union(continuations).order_by())}

    def note_outstanding_parts(self, manifest_ids: Iterable[int]) -> None:
        """Recompute for which of these manifests the continuations of their parent have to wait.

        A manifest that an obstacle or a dead letter stops has no part to do.
        """
        self.filter(manifest__in=list(manifest_ids)).update(outstanding_for=self._outstanding_part())

    def _outstanding_part(self) -> Case:
        letters = DeadLetter.objects.using(self.db).awaiting().filter(manifest=OuterRef("id"))
        parents = Manifest.objects.using(self.db).having_parts().filter(~Exists(letters), id=OuterRef("manifest_id"))
        has_part = When(due_execution__gt=F("settled_execution"), then=Subquery(parents.values("depends_on_id")[:1]))
        return Case(has_part, default=None, output_field=models.BigIntegerField())

    def wrong_outstanding_parts(self, manifest_ids: Collection[int]) -> dict[int, tuple[int | None, int | None]]:
        """Those of these with a wrong ``outstanding_for``: the stored value, and the right one."""
        rows = (
            self.filter(manifest__in=manifest_ids)
            .annotate(outstanding_part=self._outstanding_part())
            .order_by("manifest_id")
        )
        noted = rows.values_list("manifest_id", "outstanding_for", "outstanding_part")
        return {
            manifest_id: (outstanding_for, outstanding_part)
            for manifest_id, outstanding_for, outstanding_part in noted
            if outstanding_for != outstanding_part
        }

    def lock_due(self, manifest_ids: Collection[int], *, now: datetime) -> list[int]:
        """Lock those that are still due, skipping rows that another transaction holds."""
        rows = self.due(now).filter(id_in(manifest=manifest_ids)).order_by("manifest_id")
        return list(rows.select_for_update(no_key=True, skip_locked=True).values_list("manifest_id", flat=True))

    def due(self, now: datetime) -> ManifestStateQuerySet:
        """Those with an alarm that is due. The partial index over alarms answers this; nothing may be joined to it."""
        return self.filter(next_run_at__lte=now)

    def lock_due_page(self, now: datetime, *, limit: int) -> list[int]:
        """Lock those that have been due longest, skipping rows that another transaction holds."""
        rows = self.due(now).order_by("next_run_at").select_for_update(no_key=True, skip_locked=True)
        return list(rows.values_list("manifest_id", flat=True)[:limit])

    def without_alarm(self, *, after: int, limit: int) -> list[int]:
        """Manifests that may run by themselves and have no alarm, in pages by id; many of them have open work."""
        has_reason = Q(manifest__schedule_type__in=TIMED) | Q(due_execution__gt=F("covered_execution"))
        by_itself = has_reason & is_free_of(OF_THE_ROW, manifest="manifest__")
        may_run = self.filter(by_itself | Q(trigger_at__isnull=False), next_run_at__isnull=True, manifest__gt=after)
        return list(may_run.order_by("manifest_id").values_list("manifest_id", flat=True)[:limit])

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
        armed = self.filter(next_run_at__gt=after, next_run_at__lte=until).order_by("next_run_at")
        return armed.values_list("next_run_at", flat=True).first()

    def forget_triggers(self, manifest_ids: Collection[int]) -> list[int]:
        """Drop trigger requests that wait; returns the manifests that had one."""
        triggered = self.filter(manifest__in=manifest_ids, trigger_at__isnull=False)
        ids = list(triggered.values_list("manifest_id", flat=True))
        self.filter(manifest__in=ids).update(**NO_TRIGGER)
        return ids

    def settle(self, manifest_ids: Collection[int], *, now: datetime) -> None:
        """Record that the work these manifests were queued for is over; their numbers never go back."""
        settled = Greatest(F("settled_execution"), F("covered_execution"))
        self.filter(manifest__in=manifest_ids).update(last_finished_run=now, settled_execution=settled)

    def behind(self, manifest_ids: Collection[int]) -> ManifestStateQuerySet:
        """Those of these that are due for an execution of their parent."""
        return self.filter(manifest__in=manifest_ids, due_execution__gt=F("covered_execution"))

    def cover_without_run(self, manifest_ids: Collection[int]) -> int:
        """Count the executions that these manifests are due for as covered and over, without a run."""
        return self.filter(manifest__in=manifest_ids).update(
            covered_execution=F("due_execution"), settled_execution=F("due_execution")
        )

    def possibly_outstanding(self, *, after: int, limit: int) -> list[int]:
        """Manifests that continuations wait for, or should, in pages by id."""
        is_behind = Q(due_execution__gt=F("settled_execution"))
        found = self.filter(Q(outstanding_for__isnull=False) | is_behind, manifest__gt=after).order_by("manifest_id")
        return list(found.values_list("manifest_id", flat=True)[:limit])

    def note_queued(self, manifest_ids: Iterable[int], *, now: datetime, is_covering: bool) -> int:
        """Record that a queue row was opened: the alarm is off and, if ``is_covering``, due executions are covered."""
        opened = self.filter(id_in(manifest=manifest_ids))
        request = {
            column: Case(When(trigger_at__lte=now, then=Value(nothing)), default=F(column))
            for column, nothing in NO_TRIGGER.items()
        }
        covered = F("due_execution") if is_covering else F("covered_execution")
        return opened.update(next_run_at=None, occurrence_at=None, covered_execution=covered, **request)


def is_waiting_for_siblings(*, manifest: str = "") -> Case:
    """Whether a continuation has siblings with a part to do; ``manifest`` is the lookup path to the manifest's columns.

    The CASE evaluates it for continuations only, so that it costs nothing for all others.
    """
    outstanding = ManifestState.objects.filter(outstanding_for=OuterRef(f"{manifest}depends_on_id"))
    is_continuation = Q(**{f"{manifest}is_fan_in_continuation": True})
    return Case(When(is_continuation, then=Exists(outstanding)), default=Value(False))


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
    settled_execution = models.BigIntegerField(
        default=0, help_text="Up to which execution of its parent its part is done; 0 for none."
    )
    outstanding_for = models.BigIntegerField(
        null=True, blank=True, help_text="The parent, if continuations of the parent wait for its part."
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
                fields=["outstanding_for"],
                condition=Q(outstanding_for__isnull=False),
                name="chainsched_state_outstanding",
            ),
            models.Index(
                F("consecutive_failures").desc(),
                condition=Q(consecutive_failures__gt=0),
                name="chainsched_state_worst",
            ),
            models.Index(fields=["manifest"], condition=Q(consecutive_failures__gt=0), name="chainsched_state_failing"),
        )

    def __str__(self) -> str:
        return f"state of manifest {self.manifest_id}"
