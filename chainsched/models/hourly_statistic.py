"""The hourly roll-up of how executions ended.

``flow.run.record`` appends rows, ``flow.maintain.roll_up`` merges them into one row a kind and hour.
Appending takes no lock, while with one counter for each hour all processes that record would wait for one another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from django.db import connections, models
from django.db.models import Q

from chainsched.conf import get_config
from chainsched.db import bulk
from chainsched.db.compiled import binding_cursor
from chainsched.db.fields import PinnedManager, choices, values
from chainsched.domain.states import TERMINAL_STATES, ExecutionState
from chainsched.domain.statistics import Share, Slow, Statistics, Sum, merge

IS_MERGED = Q(is_merged=True)
KIND = ("hour", "group", "workflow", "state")


class HourlyStatisticQuerySet(models.QuerySet["HourlyStatistic"]):
    """Appending, merging and summing. A row counts the same whether it is merged or not."""

    def append(self, shares: Iterable[Share]) -> None:
        """Add executions that have just ended, in rows of their own."""
        bulk.insert(HourlyStatistic, [share._asdict() for share in merge(shares)], returning=("id",))

    def merge_appended(self, *, limit: int) -> int:
        """Add up to so many appended rows to those of their kind, passing over rows that another process merges."""
        appended = self.exclude(IS_MERGED).order_by("id").select_for_update(skip_locked=True)
        rows = list(appended.values_list("id", *Share._fields)[:limit])
        if rows:
            self.filter(id__in=[id_ for id_, *_ in rows]).delete()
            self._add(merge(Share(*share) for _, *share in rows))
        return len(rows)

    def _add(self, shares: list[Share]) -> None:
        connection = connections[get_config().database]
        quote = connection.ops.quote_name
        fields = {name: HourlyStatistic._meta.get_field(name) for name in (*Share._fields, "is_merged")}
        rows_sql, parameters = bulk.expand(fields, [[*share, True] for share in shares])  # type: ignore[arg-type]
        columns = ", ".join(quote(name) for name in fields)
        table = quote(HourlyStatistic._meta.db_table)
        # PostgreSQL must be given the constraint. SQLite needs none, and compares conditions by their text.
        kind = ", ".join(quote(name) for name in KIND)
        target = f"({kind}) WHERE is_merged" if connection.vendor == "postgresql" else ""
        sql = (
            f"INSERT INTO {table} AS t ({columns}) SELECT {columns} FROM {rows_sql} WHERE true "  # noqa: S608 - our names
            f"ON CONFLICT {target} DO UPDATE SET "
            "executions = t.executions + excluded.executions, seconds = t.seconds + excluded.seconds, "
            "slowest_execution = CASE WHEN excluded.slowest_seconds > t.slowest_seconds "
            "THEN excluded.slowest_execution ELSE t.slowest_execution END, "
            "slowest_seconds = CASE WHEN excluded.slowest_seconds > t.slowest_seconds "
            "THEN excluded.slowest_seconds ELSE t.slowest_seconds END"
        )
        with binding_cursor(connection) as cursor:
            cursor.execute(sql, parameters)

    def since(self, moment: datetime) -> HourlyStatisticQuerySet:
        """The hours that begin at this moment or later."""
        return self.filter(hour__gte=moment)

    def statistics(self) -> Statistics:
        """The sums of these rows: a row for each hour, workflow and state, for any number of groups."""
        kinds = self.order_by().values_list("hour", "workflow", "state")
        summed = kinds.annotate(models.Sum("executions"), models.Sum("seconds"), models.Max("slowest_seconds"))
        return Statistics([Sum(*row) for row in summed])

    def slowest_executions(self, slowest: Sequence[Slow]) -> dict[str, int]:
        """The longest execution of each of these workflows; left out if a longer one has been recorded since."""
        workflows, seconds = [slow.workflow for slow in slowest], [slow.longest for slow in slowest]
        named = self.filter(workflow__in=workflows, slowest_seconds__in=seconds, state=ExecutionState.COMPLETED)
        return dict(named.order_by("slowest_seconds").values_list("workflow", "slowest_execution"))


class HourlyStatistic(models.Model):
    """How many executions of one kind ended in an hour, or a part of them that is not merged yet."""

    hour = models.DateTimeField(help_text="The beginning of the hour in which they ended, in UTC.")
    group = models.BigIntegerField(help_text="The id of their group; 0 for none. The group may be gone.")
    workflow = models.CharField(max_length=200, help_text="The workflow that they ran.")
    state = models.CharField(max_length=11, choices=choices(ExecutionState), help_text="How they ended.")
    executions = models.PositiveBigIntegerField(help_text="Number of executions, each attempt counted.")
    seconds = models.FloatField(help_text="Their total run time.")
    slowest_seconds = models.FloatField(help_text="The run time of the slowest of them.")
    slowest_execution = models.BigIntegerField(help_text="The id of the slowest; its row may be gone.")
    is_merged = models.BooleanField(
        default=False, help_text="Whether it is the one row of its kind that others are added to."
    )

    objects = PinnedManager.from_queryset(HourlyStatisticQuerySet)()

    class Meta:
        base_manager_name = "objects"
        default_permissions = ()
        verbose_name_plural = "hourly statistics"
        constraints = (
            models.UniqueConstraint(fields=KIND, condition=IS_MERGED, name="chainsched_statistic_one_merged"),
            models.CheckConstraint(
                condition=Q(state__in=values(TERMINAL_STATES)), name="chainsched_statistic_terminal_state"
            ),
        )
        indexes = (
            models.Index(fields=["hour"], name="chainsched_statistic_hour"),
            models.Index(fields=["id"], condition=~IS_MERGED, name="chainsched_statistic_appended"),
        )

    def __str__(self) -> str:
        return f"{self.executions} {self.state} of {self.workflow} in {self.hour:%Y-%m-%d %H}h"
