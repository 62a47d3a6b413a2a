"""The facts that decisions rest on, read in bulk: a constant number of statements for any number of manifests."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db.models import Case, CharField, Value, When

from chainsched.conf import Config, get_config
from chainsched.domain.due import Facts, OpenItem
from chainsched.domain.states import ExecutionState, MisfirePolicy, ScheduleType
from chainsched.models.among import among
from chainsched.models.dead_letter import DeadLetter
from chainsched.models.manifest_state import ManifestState, is_waiting_for_siblings
from chainsched.models.metadata import Metadata
from chainsched.models.work_queue import WorkQueue

_COLUMNS = {
    "manifest_id": "manifest_id",
    "external_id": "manifest__external_id",
    "schedule_type": "manifest__schedule_type",
    "cron_expression": "manifest__cron_expression",
    "zone": "manifest__timezone",
    "interval_seconds": "manifest__interval_seconds",
    "once_at": "manifest__once_at",
    "jitter_seconds": "manifest__jitter_seconds",
    "exclusions": "manifest__exclusions",
    "misfire_policy": "manifest__misfire_policy",
    "misfire_threshold": "manifest__misfire_threshold_seconds",
    "is_enabled": "manifest__is_enabled",
    "is_group_enabled": "manifest__group__is_enabled",
    "is_retired": "manifest__retired_at",
    "is_done": "manifest__done_at",
    "parent_id": "manifest__depends_on_id",
    "is_parent_enabled": "manifest__depends_on__is_enabled",
    "parent_retired_at": "manifest__depends_on__retired_at",
    "next_run_at": "next_run_at",
    "trigger_at": "trigger_at",
    "due_execution": "due_execution",
    "covered_execution": "covered_execution",
    "last_finished_run": "last_finished_run",
    "occurrence_at": "occurrence_at",
    "is_waiting_for_siblings": "is_waiting",
}


def load_facts(manifest_ids: Collection[int]) -> list[Facts]:
    """The facts of these manifests with the open item of each, in id order: two statements."""
    open_items = load_open_items(manifest_ids)
    return [replace(facts, open_item=open_items.get(facts.manifest_id)) for facts in load_unopened(manifest_ids)]


def load_unopened(manifest_ids: Collection[int]) -> list[Facts]:
    """The facts of manifests that the caller knows to have nothing open: one statement."""
    config = get_config()
    is_waiting = is_waiting_for_siblings(manifest="manifest__")
    rows = ManifestState.objects.filter(among(manifest=manifest_ids)).annotate(is_waiting=is_waiting)
    rows = rows.order_by("manifest_id")
    return [_facts(dict(zip(_COLUMNS, row, strict=True)), config) for row in rows.values_list(*_COLUMNS.values())]


def load_open_items(manifest_ids: Collection[int]) -> dict[int, OpenItem]:
    """Which of these manifests have something open, and what: one statement over three partial indexes."""
    ids = list(manifest_ids)
    running = When(state=ExecutionState.IN_PROGRESS, then=Value(OpenItem.RUNNING))
    item = Case(running, default=Value(OpenItem.PENDING), output_field=CharField())
    executions = Metadata.objects.active().filter(among(manifest=ids)).values_list("manifest_id", item)
    queued = WorkQueue.objects.queued().filter(among(manifest=ids)).values_list("manifest_id", _named(OpenItem.QUEUED))
    letters = DeadLetter.objects.awaiting().filter(among(manifest=ids))
    awaiting = letters.values_list("manifest_id", _named(OpenItem.DEAD_LETTER))
    found = awaiting.order_by().union(queued.order_by(), executions.order_by(), all=True)
    return {manifest_id: OpenItem(item) for manifest_id, item in found}


def _named(item: OpenItem) -> Value:
    return Value(item.value, output_field=CharField())


def _facts(row: dict[str, Any], config: Config) -> Facts:
    """Turn columns into facts, with the project's defaults where the manifest states nothing."""
    threshold = row["misfire_threshold"]
    row["schedule_type"] = ScheduleType(row["schedule_type"])
    row["zone"] = row["zone"] or settings.TIME_ZONE
    row["misfire_policy"] = MisfirePolicy(row["misfire_policy"] or config.misfire_policy)
    row["misfire_threshold"] = timedelta(seconds=config.misfire_threshold if threshold is None else threshold)
    row["is_retired"] = row["is_retired"] is not None
    row["is_done"] = row["is_done"] is not None
    is_parent_retired = row.pop("parent_retired_at") is not None
    row["is_parent_enabled"] = bool(row["is_parent_enabled"]) and not is_parent_retired
    return Facts(**row)
