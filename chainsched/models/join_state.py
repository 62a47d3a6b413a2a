"""How each join waits in each run. ``flow.run.fold_notes`` alone changes a row after its birth."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from django.db import connections, models
from django.db.models import Q

from chainsched.db import bulk
from chainsched.db.compiled import AFTER, NOW, UNTIL, CompiledQuery, Ids
from chainsched.db.fields import IdList, PinnedManager, choices, knows, one_of
from chainsched.db.id_in import id_in
from chainsched.domain.joins import JoinOutcome
from chainsched.domain.known import Kinds
from chainsched.models.graph_run import GraphRun
from chainsched.models.manifest import manifest_is_known
from chainsched.models.near import RUN_END

IS_WAITING = Q(outcome=JoinOutcome.WAITING.value)
KINDS: Kinds = {"outcome": JoinOutcome}
ID = models.BigIntegerField()
# Each place that can hold tokens: the table, the column, and the rows that count.
_HOLDERS = (
    ("chainsched_workqueue", "tokens", "status = 'queued' AND has_tokens"),
    ("chainsched_metadata", "tokens", "state IN ('pending', 'in_progress') AND has_tokens"),
    ("chainsched_manifeststate", "due_tokens", "due_has_tokens"),
    ("chainsched_duenote", "tokens", "true"),
    ("chainsched_joinstate", "tokens", "outcome = 'waiting'"),
)


class Place(NamedTuple):
    """Where a token lies: a join, or the end, of one run."""

    token: int
    run_id: int
    join_id: int
    version: int
    cancelled_at: datetime | None

    @property
    def is_cancelled(self) -> bool:
        return self.cancelled_at is not None


def _token_of(join_id: str | int) -> str:
    """The row of a join in the run of ``v``, as SQL: one look at the unique index a row, in any plan.

    As a join the planner would at times read the rows of all runs, having no statistics of rows that are a parameter.
    """
    return f"(SELECT k.id FROM chainsched_joinstate k WHERE k.run_id = v.run_id AND k.join_id = {join_id})"  # noqa: S608


class JoinStateQuerySet(models.QuerySet["JoinState"]):
    """The tokens of items, and the lock of the folder."""

    def places(self, tokens: Iterable[int]) -> dict[int, Place]:
        """Where these tokens lie; those of a run that is gone are left out."""
        wanted = set(tokens)
        if not wanted:
            return {}
        return {row[0]: Place(*row) for row in _PLACES.rows(ids=wanted)}

    def tokens_for(self, pairs: Collection[tuple[int, int]]) -> dict[tuple[int, int], list[int]]:
        """The tokens that an item of each manifest takes in a run: pairs of manifest and run.

        A join that the run does not have is replaced by the run's end, so that every item has a token in its run.
        """
        if not pairs:
            return {}
        rows_sql, parameters = bulk.expand({"manifest_id": ID, "run_id": ID}, sorted(set(pairs)))
        sql = (
            f"SELECT v.manifest_id, v.run_id, coalesce({_token_of('n.join_id')}, {_token_of(RUN_END)}) "  # noqa: S608
            f"FROM {rows_sql} LEFT JOIN chainsched_near n ON n.manifest_id = v.manifest_id"
        )
        found: dict[tuple[int, int], set[int]] = {}
        for manifest_id, run_id, token in bulk.select(sql, parameters):
            if token is not None:
                found.setdefault((manifest_id, run_id), set()).add(token)
        return {pair: sorted(tokens) for pair, tokens in found.items()}

    def of_joins(self, pairs: Collection[tuple[int, int]]) -> dict[tuple[int, int], int]:
        """The rows of these pairs of join and run, by pair; a run that is without the join has none."""
        if not pairs:
            return {}
        rows_sql, parameters = bulk.expand({"join_id": ID, "run_id": ID}, sorted(set(pairs)))
        sql = f"SELECT v.join_id, v.run_id, {_token_of('v.join_id')} FROM {rows_sql}"  # noqa: S608 - as below
        found = bulk.select(sql, parameters)
        return {(join_id, run_id): token for join_id, run_id, token in found if token is not None}

    def waiting(self) -> JoinStateQuerySet:
        return self.filter(IS_WAITING)

    def known(self) -> JoinStateQuerySet:
        """Without those that have a value that this version does not know, their own or their join's."""
        return self.filter(knows(KINDS), manifest_is_known("join_id"))

    def unknown(self) -> JoinStateQuerySet:
        """Those with an outcome that only a newer version knows."""
        return self.exclude(knows(KINDS))

    def lock_free(self, state_ids: Collection[int]) -> list[JoinState]:
        """Lock those of these that no other transaction holds, in id order; unknown ones are left to a newer version.

        Their notes stay, too.
        """
        rows = self.known().filter(id_in(id=state_ids)).order_by("id")
        return list(rows.select_for_update(no_key=True, skip_locked=True))

    def past_deadline(self, now: datetime, *, limit: int) -> list[int]:
        """Rows that wait although their deadline has passed."""
        return _LATE.column(now=now, limit=limit)

    def next_deadline(self, *, after: datetime, until: datetime) -> datetime | None:
        """The first deadline after ``after`` and up to ``until``."""
        at: datetime | None = _NEXT_DEADLINE.value(after=after, until=until)
        return at

    def wrong_counts(self) -> dict[int, tuple[int, int]]:
        """The counted and the held tokens of each row where they differ: one statement, one snapshot."""
        is_postgres = connections[self.db].vendor == "postgresql"
        token, spread = ("t.token", "unnest({}) AS t(token)") if is_postgres else ("t.value", "json_each({}) AS t")
        held = " UNION ALL ".join(
            f"SELECT {token} AS state_id FROM {table} CROSS JOIN {spread.format(column)} WHERE {rows}"  # noqa: S608
            for table, column, rows in _HOLDERS
        )
        sql = (
            f"WITH held AS (SELECT state_id, count(*) AS number FROM ({held}) h GROUP BY state_id), "  # noqa: S608
            "noted AS (SELECT state_id, sum(open) AS number FROM chainsched_joinnote GROUP BY state_id) "
            "SELECT s.id, s.open + coalesce(n.number, 0), coalesce(h.number, 0) FROM chainsched_joinstate s "
            "LEFT JOIN held h ON h.state_id = s.id LEFT JOIN noted n ON n.state_id = s.id "
            "WHERE s.open + coalesce(n.number, 0) <> coalesce(h.number, 0)"
        )
        return {id_: (int(counted), int(held)) for id_, counted, held in bulk.select(sql)}

    def busy_runs(self, run_ids: Collection[int]) -> set[int]:
        """Those of these runs in which something is open before a join."""
        if not run_ids:
            return set()
        busy = self.filter(id_in(run=run_ids), open__gt=0).exclude(join_id=RUN_END)
        return set(busy.values_list("run_id", flat=True))

    def undecided_runs(self, run_ids: Sequence[int]) -> set[int]:
        """Those of these runs of which no join is decided."""
        decided = self.filter(id_in(run=run_ids)).exclude(IS_WAITING).values_list("run_id", flat=True)
        return set(run_ids) - set(decided)


_LATE = CompiledQuery(
    lambda: JoinState.objects.waiting().known().filter(deadline_at__lte=NOW).order_by("deadline_at").values_list("id"),
    has_limit=True,
)
_NEXT_DEADLINE = CompiledQuery(
    lambda: (
        JoinState.objects.waiting()
        .filter(deadline_at__gt=AFTER, deadline_at__lte=UNTIL)
        .order_by("deadline_at")
        .values_list("deadline_at")
    ),
    has_limit=True,
)
_PLACES = CompiledQuery(
    lambda: JoinState.objects.filter(id_in(id=Ids())).values_list(
        "id", "run_id", "join_id", "run__version", "run__cancelled_at"
    )
)


class JoinState(models.Model):
    """One join in one run, or with ``join_id`` 0 the run's end: how much is open before it, and how much arrived."""

    run = models.ForeignKey(
        GraphRun,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="join_states",
        help_text="The run.",
    )
    join_id = models.BigIntegerField(help_text="The manifest that waits; 0 for the run's own end.")
    open = models.IntegerField(default=0, help_text="How many open items, and undecided joins, lead to it.")
    arrived = models.IntegerField(default=0, help_text="How many of its edges have matched.")
    is_gated = models.BooleanField(default=False, help_text="Whether the gate of a fan-in has matched.")
    newest = models.BigIntegerField(default=0, help_text="The newest execution that arrived; 0 for none.")
    judged = models.IntegerField(default=0, help_text="How many arrivals the last decision knew of.")
    firings = models.IntegerField(default=0, help_text="How often it made its join run.")
    outcome = models.CharField(
        max_length=10,
        choices=choices(JoinOutcome),
        default=JoinOutcome.WAITING.value,
        help_text="Whether it waits, and the decision if not.",
    )
    decided_at = models.DateTimeField(null=True, blank=True, help_text="When it was first decided.")
    deadline_at = models.DateTimeField(null=True, blank=True, help_text="When it is decided by what has arrived.")
    tokens = IdList(help_text="The rows that it holds open while it waits.")

    objects = PinnedManager.from_queryset(JoinStateQuerySet)()

    if TYPE_CHECKING:
        id: int
        run_id: int

    class Meta:
        base_manager_name = "objects"
        default_permissions = ("view",)
        constraints = (
            models.UniqueConstraint(fields=["run", "join_id"], name="chainsched_joinstate_once"),
            one_of("outcome", JoinOutcome, name="chainsched_joinstate_outcome"),
            models.CheckConstraint(condition=Q(open__gte=0), name="chainsched_joinstate_open"),
        )
        indexes = (
            models.Index(
                fields=["deadline_at"],
                condition=IS_WAITING & Q(deadline_at__isnull=False),
                name="chainsched_joinstate_deadline",
            ),
            models.Index(fields=["join_id", "id"], name="chainsched_joinstate_join"),
        )

    def __str__(self) -> str:
        return f"join {self.join_id} in run {self.run_id} ({self.outcome})"
