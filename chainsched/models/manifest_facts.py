"""The facts that decisions rest on, read in bulk: a constant number of statements for any number of manifests."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db.models import Case, CharField, Q, QuerySet, Value, When

from chainsched.conf import Config, get_config
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
from chainsched.models.work_queue import WorkQueue

_COLUMNS = {
    "manifest_id": "id",
    "external_id": "external_id",
    "schedule_type": "schedule_type",
    "cron_expression": "cron_expression",
    "zone": "timezone",
    "interval_seconds": "interval_seconds",
    "once_at": "once_at",
    "jitter_seconds": "jitter_seconds",
    "exclusions": "exclusions",
    "misfire_policy": "misfire_policy",
    "run_condition": "run_condition",
    "fan_in": "fan_in",
    "misfire_threshold": "misfire_threshold_seconds",
    "is_enabled": "is_enabled",
    "is_group_enabled": "group__is_enabled",
    "is_retired": "retired_at",
    "is_done": "done_at",
    "parent_id": "depends_on_id",
    "is_parent_enabled": "depends_on__is_enabled",
    "parent_retired_at": "depends_on__retired_at",
    "next_run_at": "state__next_run_at",
    "trigger_at": "state__trigger_at",
    "due_execution": "state__due_execution",
    "covered_execution": "state__covered_execution",
    "last_finished_run": "state__last_finished_run",
    "occurrence_at": "state__occurrence_at",
    "is_join": "is_join",
    "is_put_aside": "state__put_aside_at",
    "has_trigger_input": "has_trigger_input",
    "due_run": "state__due_run",
    "due_tokens": "state__due_tokens",
    "due_has_tokens": "state__due_has_tokens",
    "due_is_again": "state__due_is_again",
}


_TEXT = CharField()
_HAS_INPUT = Q(state__trigger_input__isnull=False)


def load_facts(manifest_ids: Collection[int], *, idle: Collection[int] = frozenset()) -> list[Facts]:
    """The facts of these manifests with the open item of each, in id order: two statements.

    ``idle`` are those that have no open item, as the caller knows; if all are idle, it takes one statement.
    """
    config = get_config()
    open_items = load_open_items([id_ for id_ in manifest_ids if id_ not in idle])
    return [_facts(dict(zip(_COLUMNS, row, strict=True)), open_items, config) for row in _FACTS.rows(ids=manifest_ids)]


def _fact_rows() -> QuerySet[Manifest, Any]:
    # Both tables by their ids: PostgreSQL reads a whole one to join it to hundreds of rows of the other.
    known = Manifest.objects.filter(id_in(id=Ids()), id_in(state=Ids())).order_by("id")
    # An input that cannot be read is no concern of those who only ask whether there is one.
    return known.annotate(has_trigger_input=_HAS_INPUT).values_list(*_COLUMNS.values())


def load_open_items(manifest_ids: Collection[int]) -> dict[int, OpenItem]:
    """The open item of each of these manifests that has one: one statement over three partial indexes."""
    ids = list(manifest_ids)
    if not ids:
        return {}
    return {manifest_id: OpenItem(item) for manifest_id, item in _OPEN_ITEMS.rows(ids=ids)}


def _open_items() -> QuerySet[Any, Any]:
    running = When(state=ExecutionState.IN_PROGRESS, then=Value(OpenItem.RUNNING.value))
    item = Case(running, default=Value(OpenItem.PENDING.value), output_field=_TEXT)
    of_these = id_in(manifest=Ids())
    executions = Metadata.objects.active().filter(of_these).values_list("manifest_id", item)
    queued = WorkQueue.objects.queued().filter(of_these).values_list("manifest_id", _named(OpenItem.QUEUED))
    awaiting = DeadLetter.objects.awaiting().filter(of_these).values_list("manifest_id", _named(OpenItem.DEAD_LETTER))
    return awaiting.order_by().union(queued.order_by(), executions.order_by(), all=True)


_FACTS = CompiledQuery(_fact_rows)
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


def _facts(row: dict[str, Any], open_items: Mapping[int, OpenItem], config: Config) -> Facts:
    """Turn columns into facts, with the project's defaults where the manifest states nothing."""
    threshold = row["misfire_threshold"]
    row["unknown"] = find_unknown(KINDS, row)
    if row["unknown"]:
        row |= {"schedule_type": ScheduleType.ON_DEMAND, "misfire_policy": ""}
    row["schedule_type"] = ScheduleType(row["schedule_type"])
    row["zone"] = row["zone"] or settings.TIME_ZONE
    row["misfire_policy"] = MisfirePolicy(row["misfire_policy"] or config.misfire_policy)
    del row["run_condition"], row["fan_in"]
    row["misfire_threshold"] = timedelta(seconds=config.misfire_threshold if threshold is None else threshold)
    row["is_retired"] = row["is_retired"] is not None
    row["is_done"] = row["is_done"] is not None
    row["is_put_aside"] = row["is_put_aside"] is not None
    run_id, tokens = row.pop("due_run"), tuple(row.pop("due_tokens"))
    item = Item(run_id, tokens, row.pop("due_has_tokens"), row.pop("due_is_again"))
    row["due_item"] = item if run_id else NO_ITEM
    is_parent_retired = row.pop("parent_retired_at") is not None
    row["is_parent_enabled"] = bool(row["is_parent_enabled"]) and not is_parent_retired
    return Facts(**row, open_item=open_items.get(row["manifest_id"]))
