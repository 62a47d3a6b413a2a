"""How dispatch looks into the queue: which rows may start next. Each look is a statement that is built once."""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import models
from django.db.models import Q, Value
from django.db.models.functions import Coalesce

from chainsched.db.compiled import NOW, CompiledQuery, Ids, Names, Parameter
from chainsched.db.id_in import IdIn, id_in, name_in
from chainsched.domain.capacity import Candidate
from chainsched.domain.routing import Pool
from chainsched.models.work_queue import GROUP_ID, PRIORITY, WorkQueue, WorkQueueQuerySet

LOOK_COLUMNS = (
    "id",
    "group_id",
    "priority",
    "turn",
    "run_id",
    "tokens",
    "root_correlation_id",
    "dead_letter_id",
    "timeout_seconds",
    "manifest__timeout_seconds",
    "claims",
    "group__max_active_jobs",
)
OWN_PRIORITY, OWN_TURN = Parameter("priority", PRIORITY), Parameter("turn", GROUP_ID)
# The id of no group.
NO_GROUP = Value(0)
HIGHER = Q(priority__gt=OWN_PRIORITY)
EARLIER = Q(priority=OWN_PRIORITY, turn__lte=OWN_TURN)


def has_any_ready(now: datetime, *, pool: Pool | None = None) -> bool:
    """Whether any row is ready, or any that the pool takes."""
    if pool is None:
        return _ANY_READY.value(now=now) is not None
    return _ready_of(has_queues=pool.queues is not None).value(now=now, **_names_of(pool)) is not None


def is_any_in_line() -> bool:
    """Whether any row is in line, ready or not."""
    return _ANY_IN_LINE.value() is not None


def first_of(pool: Pool, *, full_groups: Collection[int], now: datetime) -> Candidate | None:
    """The first ready row that the pool takes outside of these groups, without a lock."""
    query = _candidates(Q(), has_queues=pool.queues is not None)
    found = query.rows(now=now, **_names_of(pool), full=full_groups, limit=1)
    return Candidate(*found[0]) if found else None


def before(first: Candidate, *, pool: Pool, full_groups: Collection[int], now: datetime, limit: int) -> list[Candidate]:
    """The same for the rows that come before this one, up to so many: only those are read."""
    given = {"now": now, **_names_of(pool), "full": full_groups, "limit": limit, "priority": first.priority}
    has_queues = pool.queues is not None
    rows = _candidates(HIGHER, has_queues=has_queues).rows(**given)
    if len(rows) < limit:
        rows = [*rows, *_candidates(EARLIER, has_queues=has_queues).rows(**given, turn=first.turn)]
    return [row for row in (Candidate(*columns) for columns in rows) if row.place < first.place][:limit]


@dataclass(frozen=True, slots=True)
class Looked:
    """Which rows a turn of dispatch looks for: ready now, that the pool takes, and outside of these groups.

    Left out are those that it has ``taken`` already; with ``only`` all but these.
    """

    now: datetime
    pool: Pool
    full_groups: Collection[int]
    taken: Collection[int]
    only: Collection[int] | None = None

    def lock(self, *, limit: int) -> list[dict[str, Any]]:
        """Lock the next rows in the order of dispatch; rows that another transaction holds are skipped."""
        return [dict(zip(LOOK_COLUMNS, row, strict=True)) for row in self._rows(LOOK_COLUMNS, limit=limit)]

    def ids(self, *, limit: int) -> list[int]:
        """The same, where a value of one of them cannot be read."""
        return [id_ for (id_,) in self._rows(("id",), limit=limit)]

    def _rows(self, columns: tuple[str, ...], *, limit: int) -> list[Any]:
        given = {"now": self.now, **_names_of(self.pool), "full": self.full_groups, "taken": self.taken}
        look = _look(columns, has_only=self.only is not None, has_queues=self.pool.queues is not None)
        return look.rows(**given, **({} if self.only is None else {"ids": self.only}), limit=limit)


def _names_of(pool: Pool) -> dict[str, Collection[str]]:
    """The names of workflows and, if it takes not all, of queues as the parameters that looks have."""
    return {"names": pool.workflows} | ({} if pool.queues is None else {"queues": pool.queues})


def _of_pool(rows: WorkQueueQuerySet, *, has_queues: bool) -> WorkQueueQuerySet:
    """Those that a pool takes, whose names are parameters."""
    rows = rows.filter(name_in(workflow=Names()))
    return rows.filter(name_in(queue=Names("queues"))) if has_queues else rows


def _outside(rows: WorkQueueQuerySet) -> WorkQueueQuerySet:
    # Of the column itself PostgreSQL knows how many values it has: where that is one, it would expect that no row is
    # left, and sort them all.
    return rows.exclude(IdIn(Coalesce("group_id", NO_GROUP), Ids("full", may_be_empty=True)))


@functools.cache
def _look(columns: tuple[str, ...], *, has_only: bool, has_queues: bool) -> CompiledQuery:
    def rows() -> models.QuerySet[Any, Any]:
        left = _outside(WorkQueue.objects.all()).exclude(id_in(id=Ids("taken", may_be_empty=True)))
        left = _of_pool(left, has_queues=has_queues)
        left = left.filter(id_in(id=Ids())) if has_only else left
        ready = left.ready(NOW).in_order().values_list(*columns)
        return ready.select_for_update(of=("self",), skip_locked=True, no_key=True)

    return CompiledQuery(rows, has_limit=True)


@functools.cache
def _candidates(condition: Q, *, has_queues: bool) -> CompiledQuery:
    """Ready rows that a pool takes, in order, by the facts that decide their place."""
    return CompiledQuery(
        lambda: (
            _outside(_of_pool(WorkQueue.objects.ready(NOW).filter(condition), has_queues=has_queues))
            .in_order()
            .values_list("id", "group_id", "turn", "priority", "group__max_active_jobs")
        ),
        has_limit=True,
    )


@functools.cache
def _ready_of(*, has_queues: bool) -> CompiledQuery:
    return CompiledQuery(
        lambda: _of_pool(WorkQueue.objects.ready(NOW), has_queues=has_queues).in_order().values_list("id"),
        has_limit=True,
    )


_ANY_READY = CompiledQuery(lambda: WorkQueue.objects.ready(NOW).values_list("id"), has_limit=True)
_ANY_IN_LINE = CompiledQuery(lambda: WorkQueue.objects.in_line().in_order().values_list("id"), has_limit=True)
