"""Parked rows of the queue: which are to be parked, which come into line again. ``domain/parking.py`` has the rules."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from django.db import connections, models
from django.db.models import BooleanField, Case, Q, When

from chainsched.conf import get_config
from chainsched.db import bulk
from chainsched.db.compiled import NOW
from chainsched.db.id_in import among_names, id_in
from chainsched.domain.parking import ParkedFor, Waiting
from chainsched.domain.routing import Pool
from chainsched.domain.states import QueueStatus
from chainsched.models.manifest_group import ManifestGroup
from chainsched.models.obstacles import releases_queued_row
from chainsched.models.work_queue import GROUP_ID, WorkQueue, is_parked

Rows = models.QuerySet[WorkQueue]

# The rows of the line that one look reads.
PAGE = 1000
# If none of so many at its head is blocked, those who take rows find enough there.
HEAD = 100


def find_blocked(
    pools: Collection[Pool], *, now: datetime, limit: int = PAGE, only: Collection[int] | None = None
) -> list[Waiting]:
    """Those that may be unable to start, limited groups' included, in the order of the line.

    Looked for among its first rows or, if given, among ``only`` these.
    """
    line = WorkQueue.objects.in_line().known()
    head = line.in_order().values("id")[:limit] if only is None else line.filter(id_in(id=only)).values("id")
    is_taken = Q()
    for pool in pools:
        of_pool = Q(workflow__in=list(pool.workflows))
        is_taken |= of_pool if pool.queues is None else of_pool & Q(queue__in=list(pool.queues))
    is_later, is_limited = Q(not_before__gt=now), Q(group__max_active_jobs__isnull=False)
    is_held = ~_is_released()
    is_blocked = is_later | is_limited | is_held | (~is_taken if pools else Q(id__isnull=False))
    rows = WorkQueue.objects.filter(is_blocked, id__in=head).in_order()
    held = rows.annotate(is_held=Case(When(is_held, then=True), default=False, output_field=BooleanField()))
    columns = ("id", "manifest_id", "group_id", "workflow", "queue", "not_before", "group__max_active_jobs", "is_held")
    return [Waiting(*row) for row in held.values_list(*columns)]


def _is_released() -> Q:
    """Whether no obstacle holds it; a row whose manifest is gone is none of ours to park."""
    return releases_queued_row() | Q(manifest__isnull=False, manifest__id__isnull=True)


def park(reasons: Mapping[int, ParkedFor]) -> int:
    """Take rows out of the line; returns how many. One that another transaction holds stays."""
    still = WorkQueue.objects.in_line().filter(id_in(id=reasons)).order_by("id")
    free = still.select_for_update(no_key=True, skip_locked=True).values_list("id", flat=True)
    rows = [{"id": id_, "parked_for": reasons[id_]} for id_ in free]
    return len(bulk.update(WorkQueue, rows, where={"status": QueueStatus.QUEUED}))


def release(rows: models.QuerySet[Any, Any], *, limit: int = PAGE) -> int:
    """Let the first of these parked rows into line again; returns how many. Rows that others hold come later."""
    free = rows.select_for_update(of=("self",), no_key=True, skip_locked=True).values_list("id", flat=True)[:limit]
    found = [{"id": id_, "parked_for": ""} for id_ in free]
    return len(bulk.update(WorkQueue, found, where={"status": QueueStatus.QUEUED}))


def find_releasable(pools: Collection[Pool], *, now: datetime) -> set[ParkedFor]:
    """The reasons that may be gone for some parked rows: a time has come, or one of these takes it.

    A full group counts as soon as a row is parked for one.
    """
    connection = connections[get_config().database]
    is_taken, names = _is_taken(pools)
    sql = (
        f"SELECT EXISTS (SELECT 1 FROM {_parked(ParkedFor.TIME)} AND not_before <= %s), "  # noqa: S608 - our own words
        f"EXISTS (SELECT 1 FROM {_parked(ParkedFor.NO_WORKER)} AND ({is_taken})), "
        f"EXISTS (SELECT 1 FROM {_parked(ParkedFor.GROUP_FULL)})"
    )
    ((*found,),) = bulk.select(sql, [NOW.adapt(now, connection), *names])
    reasons = (ParkedFor.TIME, ParkedFor.NO_WORKER, ParkedFor.GROUP_FULL)
    return {reason for reason, is_there in zip(reasons, found, strict=True) if is_there}


def _is_taken(pools: Collection[Pool]) -> tuple[str, list[str]]:
    """The condition that one of these takes a row, and its parameters."""
    conditions, names = ["false"], []
    for pool in pools:
        taken = [among_names("workflow", pool.workflows)]
        if pool.queues is not None:
            taken.append(among_names("queue", pool.queues))
        conditions.append(" AND ".join(condition for condition, _ in taken))
        names += [parameter for _, parameter in taken]
    return " OR ".join(conditions), names


def _parked(reason: ParkedFor) -> str:
    return f"chainsched_workqueue WHERE status = '{QueueStatus.QUEUED}' AND parked_for = '{reason}'"


def due(now: datetime) -> Rows:
    """The rows that were parked until a time that has come."""
    return WorkQueue.objects.filter(is_parked(ParkedFor.TIME), not_before__lte=now).order_by("not_before")


def taken_by(pool: Pool) -> Rows:
    """The rows that were parked because no process took them, and that this pool takes."""
    rows = WorkQueue.objects.filter(is_parked(ParkedFor.NO_WORKER), workflow__in=list(pool.workflows))
    return (rows if pool.queues is None else rows.filter(queue__in=list(pool.queues))).order_by("id")


def enabled_again(manifest_ids: Collection[int]) -> Rows:
    """The rows of these manifests that were parked because of an obstacle, and that none holds any more."""
    rows = WorkQueue.objects.filter(is_parked(ParkedFor.DISABLED), id_in(manifest=manifest_ids))
    return rows.filter(_is_released()).order_by("id")


def without_obstacle() -> Rows:
    """All rows that were parked because of an obstacle, and that none holds any more."""
    return WorkQueue.objects.filter(is_parked(ParkedFor.DISABLED)).filter(_is_released()).order_by("id")


def of_groups_with_room(active: Mapping[int | None, int]) -> Rows:
    """Rows that are parked because their group was full, of groups that have room and no row in line."""
    limits = limits_of_parked()
    free = [id_ for id_, limit in limits.items() if limit is None or active.get(id_, 0) < limit]
    in_line = set(WorkQueue.objects.in_line().filter(group__in=free).values_list("group_id", flat=True).distinct())
    stuck = [id_ for id_ in free if id_ not in in_line]
    return WorkQueue.objects.filter(is_parked(ParkedFor.GROUP_FULL), group__in=stuck).order_by("id")


def named(row_ids: Collection[int]) -> Rows:
    """Those of these rows that are parked."""
    return WorkQueue.objects.queued().filter(id_in(id=row_ids)).exclude(parked_for="").order_by("id")


def limits_of_parked() -> dict[int, int | None]:
    """The groups that rows are parked for because they were full, with their limits now.

    One look into the index for each group, however many rows of it are parked.
    """
    parked = _parked(ParkedFor.GROUP_FULL)
    sql = (
        f"WITH RECURSIVE g(id) AS (SELECT min(group_id) FROM {parked} UNION ALL "  # noqa: S608 - our own words
        f"SELECT (SELECT min(group_id) FROM {parked} AND group_id > g.id) "
        "FROM g WHERE g.id IS NOT NULL) SELECT id FROM g WHERE id IS NOT NULL"
    )
    ids = [id_ for (id_,) in bulk.select(sql)]
    limits = dict(ManifestGroup.objects.filter(id_in(id=ids)).values_list("id", "max_active_jobs")) if ids else {}
    return {id_: limits.get(id_) for id_ in ids}


def pairs_without_worker(*, limit: int) -> list[tuple[str, str]]:
    """The first workflows, with their queues, of rows that are parked because no process takes them.

    One look into the index for each, however many rows have it.
    """
    found: list[tuple[str, str]] = []
    while len(found) < limit:
        after = "AND (workflow, queue) > (%s, %s)" if found else ""
        sql = (
            f"SELECT workflow, queue FROM {_parked(ParkedFor.NO_WORKER)} {after} "  # noqa: S608 - our own words
            "ORDER BY workflow, queue LIMIT 1"
        )
        rows = bulk.select(sql, found[-1] if found else ())
        if not rows:
            break
        found.append((rows[0][0], rows[0][1]))
    return found


def let_in(numbers: Mapping[int, int], *, pool: Pool) -> int:
    """Let so many parked rows of full groups into line that the pool takes, those that come first; returns how many."""
    if not numbers:
        return 0
    connection = connections[get_config().database]
    rows_sql, parameters = bulk.expand({"group_id": GROUP_ID, "number": GROUP_ID}, list(numbers.items()))
    is_taken, names = _is_taken([pool])
    first = _FIRST_OF_GROUPS[connection.vendor].format(
        rows=rows_sql,
        parked=f"status = '{QueueStatus.QUEUED}' AND parked_for = '{ParkedFor.GROUP_FULL}' AND ({is_taken})",
    )
    changed = f"UPDATE chainsched_workqueue SET parked_for = '' WHERE id IN ({first}) RETURNING id"  # noqa: S608
    return len(bulk.select(changed, [*parameters, *names]))


# PostgreSQL looks into the index once for each group. SQLite has no LATERAL, and numbers the rows of these groups.
_FIRST_OF_GROUPS = {
    "postgresql": (
        "SELECT first.id FROM {rows} CROSS JOIN LATERAL (SELECT id FROM chainsched_workqueue WHERE {parked} "
        "AND group_id = v.group_id ORDER BY priority DESC, turn, id LIMIT v.number FOR NO KEY UPDATE SKIP LOCKED) first"
    ),
    "sqlite": (
        "SELECT id FROM (SELECT q.id, v.number, row_number() OVER (PARTITION BY q.group_id "
        "ORDER BY q.priority DESC, q.turn, q.id) AS place FROM {rows} JOIN chainsched_workqueue q "
        "ON q.group_id = v.group_id WHERE {parked}) WHERE place <= number"
    ),
}
