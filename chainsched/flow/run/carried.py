"""Part of enqueue: the item that a new queue row carries, in the runs of the graph that it stands for.

Reads:  what manifests are due for; runs that were cancelled.
Writes: through runs, the runs that begin; the alarms of manifests that were due in cancelled runs alone.
Next:   enqueue inserts the rows.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from chainsched.domain.items import NO_ITEM, Item
from chainsched.domain.obstacles import find_obstacle_to_row
from chainsched.domain.states import Source
from chainsched.domain.triggers import Answered
from chainsched.flow.run import alarm
from chainsched.flow.run.requests import QueueRequest, given_input
from chainsched.flow.run.runs import Head, begin_runs, forget_runs
from chainsched.flow.run.tokens import TokenLedger
from chainsched.models import GraphRun, JoinState
from chainsched.models.manifest_facts import LEADS_ON
from chainsched.models.manifest_state import NOTHING_DUE
from chainsched.models.obstacles import RowStanding

logger = logging.getLogger(__name__)

Jobs = Mapping[int, dict[str, Any]]


def takes_due(request: QueueRequest, job: Mapping[str, Any], *, now: datetime) -> bool:
    """Whether the run is the one that the manifest is due for. A trigger with an input of its own asks for another."""
    if request.is_continued or request.item is not None:
        return False
    return request.source is not Source.TRIGGER or "input" not in given_input(request, job, now=now)


def begin_carried_runs(
    requests: Sequence[QueueRequest], jobs: Jobs, covering: Collection[int], *, ledger: TokenLedger, now: datetime
) -> dict[int, Item]:
    """The items of manifests that begin a run: those that carry nothing on and are due in no run."""
    heads = [
        Head(
            request.manifest_id,
            jobs[request.manifest_id]["external_id"],
            request.scheduled_for,
            may_ride=request.source is Source.SCHEDULE,
        )
        for request in requests
        if request.item is None
        and jobs[request.manifest_id].get(LEADS_ON, True)
        and (jobs[request.manifest_id]["state__due_run"] is None or request.manifest_id not in covering)
    ]
    return begin_runs(heads, ledger=ledger, now=now)


def carried_item(
    request: QueueRequest,
    job: Mapping[str, Any],
    begun: Mapping[int, Item],
    covering: Collection[int],
    *,
    ledger: TokenLedger,
) -> Item:
    """The item of a new row; joins count it unless its manifest or group is disabled, and no operator asked for it."""
    due = due_item(job) if request.manifest_id in covering else NO_ITEM
    item = request.item or begun.get(request.manifest_id) or due
    if not item.tokens:
        return NO_ITEM
    standing = RowStanding(is_enabled=job["is_enabled"], is_group_enabled=job["group__is_enabled"])
    has_part = find_obstacle_to_row(standing, request.source) is None
    if has_part is item.has_tokens:
        return item
    carried = replace(item, has_tokens=has_part)
    ledger.replace([item], carried)
    return carried


def undo(
    manifest_ids: Sequence[int],
    items: Mapping[int, Item],
    begun: Mapping[int, Item],
    jobs: Jobs,
    *,
    ledger: TokenLedger,
) -> None:
    """Undo the counting of rows that were not opened; runs that would have begun with them are removed."""
    ridden = {id_ for id_, item in begun.items() if item.is_again}
    forget_runs([begun[id_].run_id or 0 for id_ in manifest_ids if id_ in begun and id_ not in ridden])
    for id_ in manifest_ids:
        if id_ in ridden:
            ledger.give_back(items[id_].held)
        elif id_ not in begun and due_item(jobs[id_]).tokens == items[id_].tokens:
            ledger.replace([items[id_]], due_item(jobs[id_]))
        elif id_ not in begun:
            ledger.give_back(items[id_].held)


def due_item(job: Mapping[str, Any]) -> Item:
    """The item that a manifest is due for in a run; none if it is due in none."""
    if job["state__due_run"] is None:
        return NO_ITEM
    return Item(
        job["state__due_run"], tuple(job["state__due_tokens"]), job["state__due_has_tokens"], job["state__due_is_again"]
    )


def without_cancelled_runs(
    requests: Sequence[QueueRequest], jobs: Jobs, covering: Collection[int], *, ledger: TokenLedger, now: datetime
) -> list[QueueRequest]:
    """Leave out items that stand for cancelled runs alone; the executions that they were due for count as covered."""
    carried = {
        request.manifest_id: request.item
        or (due_item(jobs[request.manifest_id]) if request.manifest_id in covering else NO_ITEM)
        for request in requests
    }
    dropped = find_cancelled(carried)
    if not dropped:
        return list(requests)
    logger.info("%d items are not queued: the runs they would belong to were cancelled.", len(dropped))
    for manifest_id in dropped:
        ledger.give_back(carried[manifest_id].held)
    due = [request.manifest_id for request in requests if request.manifest_id in dropped and request.item is None]
    alarm.clear(due, now=now, is_covering=True, answered=Answered.NONE)
    for manifest_id in due:
        jobs[manifest_id].update({f"state__{column}": value for column, value in NOTHING_DUE.items()})
        jobs[manifest_id]["state__covered_execution"] = jobs[manifest_id]["state__due_execution"]
    triggered = [request for request in requests if request.manifest_id in due and request.source is Source.TRIGGER]
    alarm.arm([id_ for id_ in dropped if id_ not in {request.manifest_id for request in triggered}], now=now)
    return [request for request in requests if request.manifest_id not in dropped or request in triggered]


def find_cancelled(items: Mapping[int, Item]) -> set[int]:
    """The keys of the items that stand for cancelled runs alone."""
    suspects = GraphRun.objects.cancelled_among(item.run_id for item in items.values())
    if not suspects:
        return set()
    named = {key: item for key, item in items.items() if item.run_id in suspects}
    places = JoinState.objects.places(token for item in named.values() for token in item.tokens)
    return {
        key
        for key, item in named.items()
        if all(places[token].is_cancelled for token in item.tokens if token in places)
    }


def item_columns(item: Item) -> dict[str, Any]:
    """The columns of a queue row that hold its item."""
    return {
        "run": item.run_id,
        "tokens": list(item.tokens),
        "has_tokens": item.has_tokens,
        "is_again": item.is_again,
    }
