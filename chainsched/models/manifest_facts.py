"""The facts that decisions rest on, read in bulk: a constant number of statements for any number of manifests."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from functools import cache, lru_cache
from typing import Any, NamedTuple, Self

from django.conf import settings
from django.db.models import Case, CharField, Exists, OuterRef, Q, QuerySet, Subquery, TextField, Value, When
from django.db.models.functions import Cast, Coalesce

from chainsched.conf import get_config
from chainsched.db.compiled import CompiledQuery, Ids
from chainsched.db.id_in import id_in
from chainsched.domain.due import Facts, OpenItem
from chainsched.domain.items import NO_ITEM, Item
from chainsched.domain.known import find_unknown
from chainsched.domain.states import ExecutionState, MisfirePolicy, ScheduleType
from chainsched.models import dead_letter, metadata_claims, work_queue
from chainsched.models.dead_letter import DeadLetter
from chainsched.models.manifest import KINDS, Manifest
from chainsched.models.metadata import Metadata
from chainsched.models.near import Near
from chainsched.models.work_queue import WorkQueue

_COLUMNS = (
    "id",
    "external_id",
    "schedule_type",
    "cron_expression",
    "timezone",
    "interval_seconds",
    "once_at",
    "jitter_seconds",
    "excluded",
    "misfire_policy",
    "run_condition",
    "fan_in",
    "misfire_threshold_seconds",
    "is_enabled",
    "group__is_enabled",
    "is_retired",
    "is_done",
    "depends_on_id",
    "has_enabled_parent",
    "state__next_run_at",
    "state__trigger_at",
    "state__due_execution",
    "state__covered_execution",
    "state__last_finished_run",
    "state__occurrence_at",
    "is_join",
    "is_put_aside",
    "has_trigger_input",
    "is_one_time",
    "state__consecutive_failures",
    "state__due_run",
    "state__due_tokens",
    "state__due_has_tokens",
    "state__due_is_again",
)


FACTS = len(_COLUMNS)
# So many manifests are few.
FEW = 8
# Whether a manifest has children, or is a join, so that a run of it may be one of the graph.
LEADS_ON = "leads_on"
_TEXT = CharField()
# Conditions that are computed in the database. Exclusions come as text: most manifests have none, and a document takes
# longer to read than all other columns. An input that cannot be read is no concern of those who only
# ask whether there is one.
_COMPUTED: dict[str, Any] = {
    "excluded": Cast("exclusions", TextField()),
    "is_retired": Q(retired_at__isnull=False),
    "is_done": Q(done_at__isnull=False),
    "has_enabled_parent": Case(
        When(depends_on__is_enabled=True, depends_on__retired_at__isnull=True, then=Value(value=True)),
        default=Value(value=False),
    ),
    "is_put_aside": Q(state__put_aside_at__isnull=False),
    "has_trigger_input": Q(state__trigger_input__isnull=False),
}


def load_facts(manifest_ids: Collection[int], *, idle: Collection[int] = frozenset()) -> list[Facts]:
    """The facts of these manifests with the open item of each, in id order: two statements, or one for a few.

    ``idle`` are those that have no open item, as the caller knows; if all are idle, it takes one statement.
    """
    return load_facts_with((), manifest_ids, idle=idle)[0]


def load_facts_with(
    columns: tuple[str, ...], manifest_ids: Collection[int], *, idle: Collection[int] = frozenset()
) -> tuple[list[Facts], dict[int, dict[str, Any]]]:
    """The same with further columns of each manifest, by its id; for a few of them also whether each ``LEADS_ON``."""
    busy = [id_ for id_ in manifest_ids if id_ not in idle]
    is_for_few = bool(busy) and len(manifest_ids) <= FEW
    rows = _query(columns, is_for_few=is_for_few).rows(ids=manifest_ids)
    in_row = {row[0]: row[FACTS] for row in rows} if is_for_few else None
    open_items: Mapping[int, str | None] = load_open_items(busy) if in_row is None else in_row
    defaults = Defaults.of_project()
    facts = [_facts(row, None if row[0] in idle else open_items.get(row[0]), defaults) for row in rows]
    return facts, _further(columns, rows, is_for_few=is_for_few) if columns else {}


def _further(columns: tuple[str, ...], rows: Sequence[Any], *, is_for_few: bool) -> dict[int, dict[str, Any]]:
    names, at = ((*columns, LEADS_ON), FACTS + 1) if is_for_few else (columns, FACTS)
    return {row[0]: dict(zip(names, row[at:], strict=True)) for row in rows}


@cache
def _query(columns: tuple[str, ...], *, is_for_few: bool) -> CompiledQuery:
    """The columns of facts, and further ones.

    Of a few manifests all is asked in the same statement; of many that takes longer than statements of their own.
    """
    return CompiledQuery(lambda: _of_few(columns) if is_for_few else _fact_rows().values_list(*_COLUMNS, *columns))


def _fact_rows() -> QuerySet[Manifest, Any]:
    # Both tables by their ids: PostgreSQL reads a whole one to join it to hundreds of rows of the other.
    return Manifest.objects.filter(id_in(id=Ids()), id_in(state=Ids())).order_by("id").annotate(**_COMPUTED)


def _of_few(columns: tuple[str, ...]) -> QuerySet[Manifest, Any]:
    own = {"manifest": OuterRef("id")}
    kinds = (
        Metadata.objects.active().filter(**own).order_by().values(kind=_active()),
        WorkQueue.objects.queued().filter(**own).order_by().values(kind=_named(OpenItem.QUEUED)),
        DeadLetter.objects.awaiting().filter(**own).order_by().values(kind=_named(OpenItem.DEAD_LETTER)),
    )
    item = Coalesce(*(Subquery(kind[:1]) for kind in kinds))
    further = {"open_item": item, LEADS_ON: Exists(Near.objects.filter(**own))}
    return _fact_rows().annotate(**further).values_list(*_COLUMNS, "open_item", *columns, LEADS_ON)


def _active() -> Case:
    running = When(state=ExecutionState.IN_PROGRESS, then=_named(OpenItem.RUNNING))
    return Case(running, default=_named(OpenItem.PENDING), output_field=_TEXT)


def load_open_items(manifest_ids: Collection[int]) -> dict[int, OpenItem]:
    """The open item of each of these manifests that has one: one statement over three partial indexes."""
    ids = list(manifest_ids)
    if not ids:
        return {}
    return {manifest_id: OpenItem(item) for manifest_id, item in _OPEN_ITEMS.rows(ids=ids)}


def _open_items() -> QuerySet[Any, Any]:
    of_these = id_in(manifest=Ids())
    executions = Metadata.objects.active().filter(of_these).values_list("manifest_id", _active())
    queued = WorkQueue.objects.queued().filter(of_these).values_list("manifest_id", _named(OpenItem.QUEUED))
    awaiting = DeadLetter.objects.awaiting().filter(of_these).values_list("manifest_id", _named(OpenItem.DEAD_LETTER))
    return awaiting.order_by().union(queued.order_by(), executions.order_by(), all=True)


_OPEN_ITEMS = CompiledQuery(_open_items)


def load_unknown_items(manifest_ids: Collection[int], *, with_rows: bool) -> dict[int, str]:
    """What is open of these manifests and has a value that this version does not know, in words: one statement.

    ``with_rows`` adds queue rows: no index leads to those that do not wait, so the whole table is read.
    """
    executions = Metadata.objects.unknown().filter(id_in(manifest=manifest_ids), ended_at__isnull=True)
    letters = DeadLetter.objects.in_unknown_status().filter(id_in(manifest=manifest_ids))
    rows = WorkQueue.objects.unknown().filter(id_in(manifest=manifest_ids))
    found = executions.order_by().values_list("manifest_id", "id", "state", "source", _text("execution"))
    others: list[QuerySet[Any, Any]] = [
        letters.order_by().values_list("manifest_id", "id", "status", _text(""), _text("dead letter"))
    ]
    if with_rows:
        others.append(rows.order_by().values_list("manifest_id", "id", "status", "source", _text("queue row")))
    return {
        manifest_id: f"{_find_unknown(name, state, source)} of {name} {id_}"
        for manifest_id, id_, state, source, name in found.union(*others, all=True)
    }


def _find_unknown(name: str, state: str, source: str) -> str:
    """The unknown value of an item; its state is the one column whose name depends on its kind."""
    kinds = {"dead letter": dead_letter.KINDS, "queue row": work_queue.KINDS}.get(name, metadata_claims.KINDS)
    return find_unknown(kinds, {"state": state, "status": state, "source": source})


def _text(value: str) -> Value:
    return Value(value, output_field=_TEXT)


def _named(item: OpenItem) -> Value:
    return _text(item.value)


class Defaults(NamedTuple):
    """What counts for manifests that state nothing."""

    zone: str
    misfire_policy: MisfirePolicy
    misfire_threshold: timedelta

    @classmethod
    def of_project(cls) -> Self:
        config = get_config()
        return cls(
            settings.TIME_ZONE, MisfirePolicy(config.misfire_policy), timedelta(seconds=config.misfire_threshold)
        )


def _facts(row: tuple[Any, ...], open_item: str | None, defaults: Defaults) -> Facts:
    """Turn ``_COLUMNS`` into facts. By their places: thousands are made in a second."""
    schedule_type, misfire_policy, unknown = _kinds(row[2], row[9], row[10], row[11])
    item = Item(row[30], tuple(row[31]), row[32], row[33]) if row[30] else NO_ITEM
    threshold = defaults.misfire_threshold if row[12] is None else timedelta(seconds=row[12])
    timing = (schedule_type, row[3], row[4] or defaults.zone, *row[5:8], _exclusions(row[8]))
    policy = (misfire_policy or defaults.misfire_policy, threshold)
    return Facts._make((*row[:2], *timing, *policy, *row[13:30], item, open_item and OpenItem(open_item), unknown))


@lru_cache
def _kinds(
    schedule_type: str, misfire_policy: str, run_condition: int, fan_in: str
) -> tuple[ScheduleType, MisfirePolicy | None, str]:
    """The type and policy of a manifest, and the first of its values that this version does not know."""
    stored = {
        "schedule_type": schedule_type,
        "misfire_policy": misfire_policy,
        "run_condition": run_condition,
        "fan_in": fan_in,
    }
    if unknown := find_unknown(KINDS, stored):
        return ScheduleType.ON_DEMAND, None, unknown
    return ScheduleType(schedule_type), MisfirePolicy(misfire_policy) if misfire_policy else None, ""


@lru_cache(maxsize=1024)
def _exclusions(text: str) -> Any:
    return json.loads(text)
