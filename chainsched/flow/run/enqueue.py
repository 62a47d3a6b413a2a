"""Stage 4 of 8: open queue rows. Every row of the work queue is created here.

Reads:  the manifests, what they are due for, and the executions that caused the new rows.
Writes: WorkQueue rows; runs of the graph that begin with them; the alarms of manifests that got one are cleared.
Next:   dispatch.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from chainsched.conf import get_config
from chainsched.db import bulk
from chainsched.db.compiled import CompiledQuery, Ids
from chainsched.db.id_in import id_in
from chainsched.db.notify import DISPATCHER
from chainsched.domain.capacity import assign_turns, effective_priority
from chainsched.domain.items import Item
from chainsched.domain.parking import ParkedFor, park_until
from chainsched.domain.routing import effective_queue
from chainsched.domain.states import QueueStatus, Source
from chainsched.domain.triggers import Answered
from chainsched.flow.announce import wake
from chainsched.flow.run import alarm
from chainsched.flow.run.carried import (
    Jobs,
    begin_carried_runs,
    carried_item,
    item_columns,
    takes_due,
    undo,
    without_cancelled_runs,
)
from chainsched.flow.run.requests import Lineage, QueueRequest, answers_trigger, given_input, lineages_of
from chainsched.flow.run.tokens import TokenLedger
from chainsched.models import Manifest, WorkQueue
from chainsched.models.manifest import PARENTED
from chainsched.models.manifest_state import NOT_PUT_ASIDE
from chainsched.registry import registry

logger = logging.getLogger(__name__)

# What a queue row has from its manifest as it is, without a way through this process.
COPIED = {"manifest_external_id": "external_id", "group": "group", "workflow": "workflow"}
# By whether the row has an input of its own; else it gets the manifest's, which does not travel, either.
FROM_MANIFEST = {
    True: bulk.Copied.of(Manifest, by="manifest", fields=COPIED),
    False: bulk.Copied.of(Manifest, by="manifest", fields=COPIED | {"input": "input"}),
}

JOB_COLUMNS = (
    "id",
    "external_id",
    "schedule_type",
    "is_enabled",
    "group__is_enabled",
    "workflow",
    "priority",
    "group_id",
    "group__priority",
    "queue",
    "group__queue",
    "state__due_execution",
    "state__covered_execution",
    "state__due_run",
    "state__due_tokens",
    "state__due_has_tokens",
    "state__due_is_again",
    "state__next_run_at",
    "state__occurrence_at",
    "state__put_aside_at",
    "state__trigger_at",
    "state__trigger_input",
    "state__trigger_causation_id",
    "state__trigger_root_correlation_id",
)
# Each has a value only while there is an alarm or a reason for one. Most manifests that are triggered have none.
WITH_ALARM = (
    "state__next_run_at",
    "state__occurrence_at",
    "state__put_aside_at",
    "state__trigger_at",
    "state__due_run",
)
# Both tables by their ids: PostgreSQL reads a whole one to join it to hundreds of rows of the other.
_JOBS = CompiledQuery(
    lambda: Manifest.objects.filter(id_in(id=Ids()), id_in(state=Ids())).order_by("id").values_list(*JOB_COLUMNS)
)
NO_JOBS: Jobs = {}


def enqueue(
    requests: Sequence[QueueRequest], *, now: datetime, ledger: TokenLedger | None = None, known: Jobs = NO_JOBS
) -> dict[int, int]:
    """Open a queue row for each request and return the row ids by manifest id.

    The caller has locked the manifests' states. A manifest that has a queued row already, is gone, or would run for
    cancelled runs alone is left out of the answer: losing that race is no error. Without a ``ledger`` of the caller's
    the notes to joins are written here. Of manifests that are ``known`` the caller has read the ``JOB_COLUMNS`` since
    then, and written none of them.
    """
    if not requests:
        return {}
    notes = TokenLedger() if ledger is None else ledger
    jobs = {**known, **_load_jobs([request.manifest_id for request in requests if request.manifest_id not in known])}
    possible = [request for request in requests if request.manifest_id in jobs]
    # The manifests whose row is for the outcome that they are due for.
    covering = {request.manifest_id for request in possible if takes_due(request, jobs[request.manifest_id], now=now)}
    possible = without_cancelled_runs(possible, jobs, covering, ledger=notes, now=now)
    begun = begin_carried_runs(possible, jobs, covering, ledger=notes, now=now)
    items = {
        request.manifest_id: carried_item(request, jobs[request.manifest_id], begun, covering, ledger=notes)
        for request in possible
    }
    opened = _insert(_rows(possible, jobs, items, covering, now=now))
    undo([id_ for id_ in items if id_ not in opened], items, begun, jobs, ledger=notes)
    if any(_may_go_soon(request, now=now) for request in possible if request.manifest_id in opened):
        wake(DISPATCHER)
    fresh = [request for request in possible if not request.is_continued and request.manifest_id in opened]
    fresh = [request for request in fresh if _has_alarm(jobs[request.manifest_id])]
    _clear_alarms(fresh, covering, now=now)
    if ledger is None:
        notes.write()
    return opened


def _has_alarm(job: Mapping[str, Any]) -> bool:
    """Whether a queue row takes something away from the state of its manifest."""
    return (
        any(job[column] is not None for column in WITH_ALARM)
        or job["state__due_execution"] != job["state__covered_execution"]
    )


def _clear_alarms(fresh: Sequence[QueueRequest], covering: Collection[int], *, now: datetime) -> None:
    """Clear the alarms of manifests that got a row, those alike together."""
    alike: dict[tuple[bool, Answered], list[int]] = defaultdict(list)
    for request in fresh:
        alike[request.manifest_id in covering, request.answered].append(request.manifest_id)
    for (is_covering, answered), manifest_ids in alike.items():
        alarm.clear(manifest_ids, now=now, is_covering=is_covering, answered=answered)


def _insert(rows: Sequence[dict[str, Any]]) -> dict[int, int]:
    """Insert the rows and return their ids by manifest; those without an input of their own get the manifest's."""
    written = []
    for is_own, copied in FROM_MANIFEST.items():
        alike = [row for row in rows if ("input" in row) is is_own]
        written += bulk.insert(WorkQueue, alike, returning=("id", "manifest"), skip_conflicts=True, copied=copied)
    return {row["manifest"]: row["id"] for row in written}


def _may_go_soon(request: QueueRequest, *, now: datetime) -> bool:
    """Whether its time comes before the dispatcher would find it by itself."""
    soon = now + timedelta(seconds=get_config().dispatcher_interval)
    return request.not_before is None or request.not_before <= soon


def rerank(manifest_ids: Sequence[int], *, only_moved: bool = False) -> int:
    """Give the waiting rows of manifests whose group, priority or queue changed their new place; returns how many.

    With ``only_moved``, only rows that have another of these than their manifests have now.
    """
    waiting = WorkQueue.objects.queued().filter(manifest__in=manifest_ids).order_by("turn", "id")
    found = list(waiting.values_list("manifest_id", "parked_for", "group_id", "priority", "queue"))
    before = {id_: place for id_, _, *place in found}
    timed = {id_ for id_, parked_for, *_ in found if parked_for == ParkedFor.TIME}
    jobs = _load_jobs([id_ for id_ in before if id_ is not None])
    known = [id_ for id_ in before if id_ in jobs]
    if only_moved:
        known = [id_ for id_ in known if before[id_] != _place(jobs[id_])]
    places = [(jobs[id_]["group_id"], _priority(jobs[id_])) for id_ in known]
    rows = [
        {
            "manifest": id_,
            "group": group_id,
            "priority": priority,
            "queue": _queue(jobs[id_]),
            "turn": turn,
            **NOT_PUT_ASIDE,
            # One that waits for a time goes on waiting for it; for any other reason the dispatcher looks again.
            "parked_for": ParkedFor.TIME if id_ in timed else "",
        }
        for id_, (group_id, priority), turn in zip(known, places, _turns(places), strict=True)
    ]
    return len(bulk.update(WorkQueue, rows, key="manifest", where={"status": QueueStatus.QUEUED}))


def _place(job: Mapping[str, Any]) -> list[Any]:
    return [job["group_id"], _priority(job), _queue(job)]


def _load_jobs(manifest_ids: Iterable[int]) -> dict[int, dict[str, Any]]:
    return {row[0]: dict(zip(JOB_COLUMNS, row, strict=True)) for row in _JOBS.rows(ids=list(manifest_ids))}


def _rows(
    requests: Sequence[QueueRequest],
    jobs: Mapping[int, dict[str, Any]],
    items: Mapping[int, Item],
    covering: Collection[int],
    *,
    now: datetime,
) -> list[dict[str, Any]]:
    priorities = [_priority(jobs[request.manifest_id]) for request in requests]
    places = [
        (jobs[request.manifest_id]["group_id"], priority)
        for request, priority in zip(requests, priorities, strict=True)
    ]
    turns = _turns(places)
    lineages = _inherited(requests, jobs, covering)
    return [
        _row(request, jobs[request.manifest_id], priority=priority, turn=turn, inherited=lineages, now=now)
        | item_columns(items[request.manifest_id])
        for request, priority, turn in zip(requests, priorities, turns, strict=True)
    ]


def _turns(places: Sequence[tuple[int, int]]) -> list[int]:
    """The turns of new rows, by what waits and by how far dispatch has come."""
    if not places:
        return []
    present, last = WorkQueue.objects.last_turns(set(places))
    return assign_turns(places, present=present, last=last)


def _row(
    request: QueueRequest,
    job: Mapping[str, Any],
    *,
    priority: int,
    turn: int,
    inherited: Mapping[int, Lineage],
    now: datetime,
) -> dict[str, Any]:
    lineage = request.lineage or inherited.get(request.manifest_id) or _lineage_of_trigger(request, job, now=now)
    return {
        "manifest": request.manifest_id,
        **given_input(request, job, now=now),
        "priority": priority,
        "queue": _queue(job),
        "turn": turn,
        "not_before": request.not_before,
        "parked_for": park_until(request.not_before, now=now) or "",
        "scheduled_for": request.scheduled_for,
        "attempt": request.attempt,
        "source": request.source,
        "dead_letter": request.dead_letter_id,
        "parent_execution": lineage.parent_execution_id,
        "root_execution": lineage.root_execution_id,
        "causation_id": lineage.causation_id,
        "root_correlation_id": lineage.root_correlation_id,
        "created_at": now,
    }


def _priority(job: Mapping[str, Any]) -> int:
    boost = get_config().dependent_priority_boost if job["schedule_type"] in PARENTED else 0
    return effective_priority(own=job["priority"], group=job["group__priority"], boost=boost)


def _queue(job: Mapping[str, Any]) -> str:
    """The queue of a manifest's jobs; that of its workflow counts where this process knows the workflow."""
    return effective_queue(own=job["queue"], workflow=registry.queue_of(job["workflow"]), group=job["group__queue"])


def _lineage_of_trigger(request: QueueRequest, job: Mapping[str, Any], *, now: datetime) -> Lineage:
    """The cause of a trigger request: stored with one that waited, else the scope of the present call."""
    if answers_trigger(request, job, now=now):
        return Lineage(
            causation_id=job["state__trigger_causation_id"],
            root_correlation_id=job["state__trigger_root_correlation_id"],
        )
    return Lineage.of_scope() if request.source is Source.TRIGGER else Lineage()


def _inherited(
    requests: Sequence[QueueRequest], jobs: Mapping[int, dict[str, Any]], covering: Collection[int]
) -> dict[int, Lineage]:
    """The lineages that rows have from the executions that their manifests are due for, by manifest."""
    due = {
        request.manifest_id: _due_for(jobs[request.manifest_id])
        for request in requests
        if request.lineage is None and request.manifest_id in covering
    }
    parents = lineages_of(execution_id for execution_id in due.values() if execution_id)
    return {manifest_id: parents[execution_id] for manifest_id, execution_id in due.items() if execution_id}


def _due_for(job: Mapping[str, Any]) -> int:
    """The parent's execution that this run covers; 0, which no execution has, when it is covered already."""
    due: int = job["state__due_execution"]
    return due if due > job["state__covered_execution"] else 0
