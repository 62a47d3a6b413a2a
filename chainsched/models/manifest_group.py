"""Groups of manifests, with the limit, the priority and the switch that their members share at dispatch."""

from __future__ import annotations

from collections.abc import Sequence

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import connections, models
from django.db.models import Q

from chainsched.db.fields import PinnedManager
from chainsched.domain.routing import MAX_QUEUE_LENGTH
from chainsched.models.model_methods import GroupActions


class ManifestGroupQuerySet(models.QuerySet["ManifestGroup"]):
    """Reads of groups, and their locks, which come before those on their members' states."""

    def join(self, names: Sequence[str]) -> None:
        """Keep the switches of these groups as they are until members that are being written are visible.

        Any number of transactions may hold this lock at once. SQLite needs no lock: the transaction has written
        before, so it is the only one.
        """
        connection = connections[self.db]
        if connection.vendor != "postgresql" or not names:
            return
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT id FROM chainsched_manifestgroup WHERE name = ANY(%s) ORDER BY name FOR SHARE", [list(names)]
            )

    def lock(self, names: Sequence[str]) -> None:
        """Lock groups that are about to change, in the order of their names."""
        list(self.filter(name__in=names).order_by("name").select_for_update(no_key=True).values_list("id"))


class ManifestGroup(GroupActions, models.Model):
    """A named set of manifests with its own limit, priority and switch."""

    name = models.CharField(max_length=200, unique=True, help_text="Its unique name in declarations.")
    max_active_jobs = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="Most jobs that may be pending or running at once. Default: no limit of its own.",
    )
    priority = models.PositiveSmallIntegerField(
        default=0,
        validators=[MaxValueValidator(31)],
        help_text="0 to 31; higher is dispatched first. For manifests that state no priority of their own.",
    )
    queue = models.CharField(
        max_length=MAX_QUEUE_LENGTH,
        blank=True,
        default="",
        db_default="",
        help_text="The queue that workers take its jobs from. For manifests that state no queue of their own.",
    )
    is_enabled = models.BooleanField(default=True, help_text="While off, nothing of the group is queued or dispatched.")

    objects = PinnedManager.from_queryset(ManifestGroupQuerySet)()

    class Meta:
        base_manager_name = "objects"
        default_permissions = ("view",)
        permissions = (("limit_manifestgroup", "Can change the limit and the priority of groups"),)
        ordering = ("name",)
        constraints = (
            models.CheckConstraint(
                condition=Q(max_active_jobs__isnull=True) | Q(max_active_jobs__gte=1),
                name="chainsched_group_limit_positive",
            ),
            models.CheckConstraint(
                condition=Q(priority__gte=0, priority__lte=31), name="chainsched_group_priority_range"
            ),
        )

    def __str__(self) -> str:
        return self.name
