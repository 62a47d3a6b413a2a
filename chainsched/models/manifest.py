"""Manifests: the workflow to run, its input, and the schedule or parent that makes it run.

Written by users and by seeding; the engine writes only that a one-time manifest is done.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import ExpressionWrapper, OuterRef, Q, Subquery, Value
from django.db.models.expressions import RawSQL
from django.db.models.functions import Coalesce

from chainsched.db.fields import PinnedManager, choices, knows, one_of, values
from chainsched.db.id_in import id_in
from chainsched.domain.joins import FanIn
from chainsched.domain.known import Kinds
from chainsched.domain.routing import MAX_QUEUE_LENGTH
from chainsched.domain.states import MisfirePolicy, RunCondition, ScheduleType
from chainsched.models.manifest_group import ManifestGroup
from chainsched.models.model_methods import ManifestActions, ManifestScheduling, api

if TYPE_CHECKING:
    from chainsched.models.manifest_state import ManifestState

PARENTED = [kind.value for kind in ScheduleType if kind.has_parent]
# A manifest with another value in one of these columns is left to processes of the newer version that wrote it.
KINDS: Kinds = {
    "schedule_type": ScheduleType,
    "misfire_policy": MisfirePolicy,
    "run_condition": RunCondition,
    "fan_in": FanIn,
}


class ManifestQuerySet(models.QuerySet["Manifest"]):
    """Reads of manifests."""

    def enabled(self) -> ManifestQuerySet:
        return self.filter(is_enabled=True)

    def known(self) -> ManifestQuerySet:
        """Without those that have a value that this version does not know."""
        return self.filter(knows(KINDS))

    def declared_by(self, owner: str) -> ManifestQuerySet:
        """The manifests that this owner's code declared, retired or not."""
        return self.filter(is_declared=True, owner=owner)

    def plain_dependents_of(self, parent_ids: Collection[int]) -> list[int]:
        """The dependents of these manifests that are no joins: they start and stop with their parent."""
        found = self.filter(id_in(depends_on=parent_ids), schedule_type=ScheduleType.DEPENDENT, is_join=False)
        return list(found.order_by("id").values_list("id", flat=True)) if parent_ids else []

    def several_parents(self, manifest_ids: Collection[int]) -> list[int]:
        """Those of these that are joins of several parents."""
        joins = self.filter(id_in(id=manifest_ids), is_join=True, fan_in="")
        return list(joins.order_by("id").values_list("id", flat=True)) if manifest_ids else []

    def delete(self) -> tuple[int, dict[str, int]]:
        """Remove manifests as the engine does it: queued rows are cancelled, letters are closed, history stays."""
        return api.remove(self.values_list("id", flat=True))

    delete.alters_data = True  # type: ignore[attr-defined]
    delete.queryset_only = True  # type: ignore[attr-defined]

    def purge(self) -> tuple[int, dict[str, int]]:
        """Delete the rows and nothing else; only ``flow.operate.remove`` may."""
        return super().delete()

    def lock_free(self, manifest_ids: Collection[int]) -> set[int]:
        """Lock the rows of these that no other transaction holds; known by id. Their states are the usual lock."""
        rows = self.filter(id_in(id=manifest_ids)).order_by("id").select_for_update(no_key=True, skip_locked=True)
        return set(rows.values_list("id", flat=True))

    def mark_done(self, manifest_ids: Collection[int], *, now: datetime) -> int:
        """Mark those of these that run only once as done.

        One that was given a later time while it was under way is left out: that run is still to come.
        """
        one_time = Q(schedule_type=ScheduleType.ONCE, once_at__lte=now) | Q(is_one_time=True)
        return self.filter(one_time, id__in=manifest_ids).update(done_at=now)

    def ancestors_of(self, manifest_id: int, *, limit: int) -> ManifestQuerySet:
        """A manifest, its parents, their parents and so on, as far as the declared edges lead."""
        sql = (
            "WITH RECURSIVE line(id, step) AS (SELECT id, 1 FROM chainsched_manifest WHERE id = %s "
            "UNION SELECT e.parent_id, line.step + 1 FROM chainsched_dependency e "
            "JOIN line ON e.child_id = line.id WHERE NOT e.is_derived AND line.step < %s) SELECT id FROM line"
        )
        return self.filter(pk__in=RawSQL(sql, [manifest_id, limit]))  # noqa: S611 - numbers as parameters


_ReadingManager = PinnedManager.from_queryset(ManifestQuerySet)


class ManifestManager(ManifestScheduling, _ReadingManager["Manifest"]):
    """Finds manifests, and creates and changes them at run time."""


def _shape(schedule_type: ScheduleType) -> Q:
    """The columns that a schedule type fills; all others stay empty."""
    return Q(
        Q(cron_expression="") if schedule_type != ScheduleType.CRON else ~Q(cron_expression=""),
        schedule_type=schedule_type.value,
        interval_seconds__isnull=schedule_type != ScheduleType.INTERVAL,
        once_at__isnull=schedule_type != ScheduleType.ONCE,
    )


def _shapes() -> Q:
    shapes = Q()
    for schedule_type in ScheduleType:
        shapes |= _shape(schedule_type)
    return shapes


def _join_shape() -> Q:
    """Only joins have options of joins; of the two numbers at most one; percents up to 100."""
    plain = Q(
        is_join=False,
        fan_in="",
        at_least__isnull=True,
        at_least_percent__isnull=True,
        deadline_seconds__isnull=True,
        is_eager=False,
        runs_again_on_late=False,
    )
    one_number = Q(at_least__isnull=True) | Q(at_least_percent__isnull=True)
    percent = Q(at_least_percent__isnull=True) | Q(at_least_percent__lte=100)
    return plain | (Q(is_join=True) & one_number & percent)


def manifest_is_known(column: str = "manifest_id") -> Coalesce:
    """Whether the manifest that this column names has only values that this version knows, or is gone.

    A subquery, so that it is one look by key for each row, regardless of the planner's estimates.
    """
    named = Manifest.objects.filter(id=OuterRef(column)).order_by()
    known = named.values(is_known=ExpressionWrapper(knows(KINDS), output_field=models.BooleanField()))
    return Coalesce(Subquery(known), Value(value=True), output_field=models.BooleanField())


class Manifest(ManifestActions, models.Model):
    """The definition of a job."""

    external_id = models.CharField(max_length=200, unique=True, help_text="Its unique name in code and in the admin.")
    group = models.ForeignKey(
        ManifestGroup,
        on_delete=models.PROTECT,
        related_name="manifests",
        help_text="Its group, with a limit and a switch for all members.",
    )
    workflow = models.CharField(max_length=200, help_text="The registered name of the workflow that it runs.")
    input = models.JSONField(
        null=True, blank=True, help_text="The input of the workflow; must fit the workflow's input type."
    )

    schedule_type = models.CharField(
        max_length=20,
        choices=choices(ScheduleType),
        default=ScheduleType.ON_DEMAND.value,
        help_text="How its runs come about.",
    )
    cron_expression = models.CharField(
        max_length=200, blank=True, default="", help_text="For cron: 5 fields, or 6 with the seconds first."
    )
    timezone = models.CharField(
        max_length=64, blank=True, default="", help_text="The time zone of its schedule. Default: TIME_ZONE."
    )
    interval_seconds = models.PositiveBigIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)], help_text="For intervals: seconds between runs."
    )
    once_at = models.DateTimeField(null=True, blank=True, help_text="For once: the time of the run.")
    jitter_seconds = models.PositiveIntegerField(
        default=0, help_text="A run may begin up to this many seconds later, to spread the load."
    )
    exclusions = models.JSONField(default=list, blank=True, help_text="Days and hours in which it does not run.")
    misfire_policy = models.CharField(
        max_length=10,
        blank=True,
        default="",
        choices=choices(MisfirePolicy),
        help_text="Whether a late run starts or is skipped. Default: MISFIRE_POLICY.",
    )
    misfire_threshold_seconds = models.PositiveIntegerField(
        null=True, blank=True, help_text="Up to how late a run counts as on time. Default: MISFIRE_THRESHOLD."
    )

    depends_on = models.ForeignKey(
        "self",
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="dependents",
        help_text="Its parent: it runs after outcomes of this manifest. Empty for a join of several parents.",
    )
    run_condition = models.PositiveSmallIntegerField(
        choices=choices(RunCondition),
        default=RunCondition.NONE.value,
        help_text="Which outcome of the parent it runs for; only for dependents.",
    )
    is_join = models.BooleanField(
        default=False, help_text="Waits in each run for several manifests: for its parents, or as a fan-in."
    )
    fan_in = models.CharField(
        max_length=10,
        blank=True,
        default="",
        choices=choices(FanIn),
        help_text="A fan-in over the other children of its parent, or over all that ends below its parent.",
    )
    at_least = models.PositiveIntegerField(
        null=True, blank=True, help_text="For joins: how many have to arrive. Default: all; 0 for a fan-in."
    )
    at_least_percent = models.PositiveSmallIntegerField(
        null=True, blank=True, help_text="For joins: how many of 100 have to arrive, rounded up."
    )
    deadline_seconds = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="For joins: seconds after the start of a run when it decides by what has arrived.",
    )
    is_eager = models.BooleanField(
        default=False, help_text="For joins: runs as soon as enough has arrived, while the rest is under way."
    )
    runs_again_on_late = models.BooleanField(
        default=False, help_text="For joins: runs again when something arrives after it has run."
    )
    depth = models.PositiveSmallIntegerField(
        default=0, help_text="The number of manifests above it, on the longest way up."
    )

    max_retries = models.PositiveIntegerField(
        null=True, blank=True, help_text="Failures before it is dead-lettered. Default: MAX_RETRIES."
    )
    retry_delay_seconds = models.PositiveIntegerField(
        null=True, blank=True, help_text="Seconds before the first retry. Default: RETRY_DELAY."
    )
    retry_multiplier = models.FloatField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="Factor between the delays of successive retries. Default: RETRY_MULTIPLIER.",
    )
    max_retry_delay_seconds = models.PositiveIntegerField(
        null=True, blank=True, help_text="The longest delay before a retry, in seconds. Default: MAX_RETRY_DELAY."
    )
    timeout_seconds = models.PositiveIntegerField(
        null=True, blank=True, help_text="Longest run time in seconds. Default: JOB_TIMEOUT."
    )
    priority = models.PositiveSmallIntegerField(
        null=True,
        blank=True,
        validators=[MaxValueValidator(31)],
        help_text="0 to 31; higher is dispatched first. Default: the group's priority.",
    )
    queue = models.CharField(
        max_length=MAX_QUEUE_LENGTH,
        blank=True,
        default="",
        db_default="",
        help_text="The queue that its jobs wait in. Default: its workflow's, else the group's, else 'default'.",
    )

    is_enabled = models.BooleanField(default=True, help_text="While off, it runs only when triggered by hand.")
    owner = models.CharField(max_length=100, blank=True, default="", help_text="The project that declared it.")
    batch = models.CharField(max_length=200, blank=True, default="", help_text="The named batch it is a member of.")
    is_declared = models.BooleanField(default=False, help_text="Declared in code, not created at run time.")
    retired_at = models.DateTimeField(null=True, blank=True, help_text="When its declaration disappeared.")
    is_one_time = models.BooleanField(default=False, help_text="Runs for one outcome of its parent and is then done.")
    done_at = models.DateTimeField(null=True, blank=True, help_text="When a one-time manifest ran.")

    objects = ManifestManager()

    if TYPE_CHECKING:
        id: int
        group_id: int
        depends_on_id: int | None
        state: ManifestState

    class Meta:
        base_manager_name = "objects"
        default_permissions = ("view",)
        permissions = (
            ("trigger_manifest", "Can trigger manifests and groups, run executions again, bring queue rows forward"),
            ("activate_manifest", "Can activate dormant manifests"),
            ("switch_manifest", "Can enable and disable manifests and groups"),
            ("cancel_manifest", "Can cancel manifests, groups, executions, trees and queue rows"),
        )
        ordering = ("external_id",)
        constraints = (
            one_of("schedule_type", ScheduleType, name="chainsched_manifest_schedule_type"),
            models.CheckConstraint(condition=_shapes(), name="chainsched_manifest_schedule_shape"),
            models.CheckConstraint(
                condition=Q(interval_seconds__isnull=True) | Q(interval_seconds__gte=1),
                name="chainsched_manifest_interval_positive",
            ),
            models.CheckConstraint(
                condition=Q(schedule_type__in=PARENTED, run_condition__gte=1, run_condition__lte=3)
                | (~Q(schedule_type__in=PARENTED) & Q(run_condition=0)),
                name="chainsched_manifest_run_condition",
            ),
            models.CheckConstraint(
                condition=Q(schedule_type__in=PARENTED) | Q(depends_on__isnull=True, is_join=False),
                name="chainsched_manifest_parent_only_dependents",
            ),
            models.CheckConstraint(condition=_join_shape(), name="chainsched_manifest_join_shape"),
            one_of("fan_in", FanIn, name="chainsched_manifest_fan_in"),
            models.CheckConstraint(
                condition=Q(depends_on__isnull=True) | ~Q(depends_on=models.F("id")),
                name="chainsched_manifest_not_own_parent",
            ),
            models.CheckConstraint(
                condition=Q(priority__isnull=True) | Q(priority__gte=0, priority__lte=31),
                name="chainsched_manifest_priority_range",
            ),
            models.CheckConstraint(
                condition=Q(retry_multiplier__isnull=True) | Q(retry_multiplier__gte=1),
                name="chainsched_manifest_retry_multiplier",
            ),
            models.CheckConstraint(
                condition=Q(misfire_policy__in=["", *values(MisfirePolicy)]), name="chainsched_manifest_misfire_policy"
            ),
        )
        indexes = (
            models.Index(fields=["owner", "batch"], name="chainsched_manifest_batch"),
            models.Index(fields=["workflow", "external_id"], name="chainsched_manifest_workflow"),
            models.Index(fields=["schedule_type", "external_id"], name="chainsched_manifest_schedule"),
            models.Index(fields=["external_id"], condition=Q(is_enabled=False), name="chainsched_manifest_disabled"),
            models.Index(
                fields=["external_id"], condition=Q(retired_at__isnull=False), name="chainsched_manifest_retired"
            ),
            models.Index(fields=["external_id"], condition=Q(done_at__isnull=False), name="chainsched_manifest_done"),
        )

    def __str__(self) -> str:
        return self.external_id

    @property
    def next_run_at(self) -> datetime | None:
        """When the manager evaluates it next; None while it has open work or may not run."""
        return self.state.next_run_at

    @property
    def last_successful_run(self) -> datetime | None:
        return self.state.last_successful_run

    @property
    def last_finished_run(self) -> datetime | None:
        return self.state.last_finished_run

    @property
    def consecutive_failures(self) -> int:
        return self.state.consecutive_failures
