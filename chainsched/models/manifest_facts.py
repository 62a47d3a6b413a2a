"""The facts that decisions rest on, read in bulk: a constant number of statements for any number of manifests."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db.models import Case, CharField, Value, When

from chainsched.conf import Config, get_config
from chainsched.db.id_in import id_in
from chainsched.domain.due import Facts, OpenItem
from chainsched.domain.items import NO_ITEM, Item
from chainsched.domain.states import ExecutionState, MisfirePolicy, ScheduleType
from chainsched.models.dead_letter import DeadLetter
from chainsched.models.manifest import Manifest
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
    "has_trigger_input": "state__trigger_input",
    "due_run": "state__due_run",
    "due_tokens": "state__due_tokens",
    "due_has_tokens": "state__due_has_tokens",
    "due_is_again": "state__due_is_again",
}


def load_facts(manifest_ids: Collection[int], *, idle: Collection[int] = frozenset()) -> list[Facts]:
    """The facts of these manifests with the open item of each, in id order: two statements.

    ``idle`` are those that have no open item, as the caller knows; if all are idle, it takes one statement.
    """
    config = get_config()
    open_items = load_open_items([id_ for id_ in manifest_ids if id_ not in idle])
    # Both tables by their ids: PostgreSQL reads a whole one to join it to hundreds of rows of the other.
    known = Manifest.objects.filter(id_in(id=manifest_ids), id_in(state=manifest_ids)).order_by("id")
    rows = known.values_list(*_COLUMNS.values())
    return [_facts(dict(zip(_COLUMNS, row, strict=True)), open_items, config) for row in rows]


def load_open_items(manifest_ids: Collection[int]) -> dict[int, OpenItem]:
    """The open item of each of these manifests that has one: one statement over three partial indexes."""
    ids = list(manifest_ids)
    if not ids:
        return {}
    running = When(state=ExecutionState.IN_PROGRESS, then=Value(OpenItem.RUNNING))
    item = Case(running, default=Value(OpenItem.PENDING), output_field=CharField())
    executions = Metadata.objects.active().filter(id_in(manifest=ids)).values_list("manifest_id", item)
    queued = WorkQueue.objects.queued().filter(id_in(manifest=ids)).values_list("manifest_id", _named(OpenItem.QUEUED))
    letters = DeadLetter.objects.awaiting().filter(id_in(manifest=ids))
    awaiting = letters.values_list("manifest_id", _named(OpenItem.DEAD_LETTER))
    found = awaiting.order_by().union(queued.order_by(), executions.order_by(), all=True)
    return {manifest_id: OpenItem(item) for manifest_id, item in found}


def _named(item: OpenItem) -> Value:
    return Value(item.value, output_field=CharField())


def _facts(row: dict[str, Any], open_items: Mapping[int, OpenItem], config: Config) -> Facts:
    """Turn columns into facts, with the project's defaults where the manifest states nothing."""
    threshold = row["misfire_threshold"]
    row["schedule_type"] = ScheduleType(row["schedule_type"])
    row["zone"] = row["zone"] or settings.TIME_ZONE
    row["misfire_policy"] = MisfirePolicy(row["misfire_policy"] or config.misfire_policy)
    row["misfire_threshold"] = timedelta(seconds=config.misfire_threshold if threshold is None else threshold)
    row["is_retired"] = row["is_retired"] is not None
    row["is_done"] = row["is_done"] is not None
    row["has_trigger_input"] = row["has_trigger_input"] is not None
    run_id, tokens = row.pop("due_run"), tuple(row.pop("due_tokens"))
    item = Item(run_id, tokens, row.pop("due_has_tokens"), row.pop("due_is_again"))
    row["due_item"] = item if run_id else NO_ITEM
    is_parent_retired = row.pop("parent_retired_at") is not None
    row["is_parent_enabled"] = bool(row["is_parent_enabled"]) and not is_parent_retired
    return Facts(**row, open_item=open_items.get(row["manifest_id"]))
