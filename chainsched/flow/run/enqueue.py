"""Stage 4 of 8: open queue rows. Every row of the work queue is created here.

Reads:  the manifests, and the executions that caused the new rows.
Writes: WorkQueue rows; the alarms of manifests that got one are cleared.
Next:   the dispatcher.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from chainsched import correlation
from chainsched.conf import get_config
from chainsched.db import bulk
from chainsched.db.id_in import id_in
from chainsched.db.notify import DISPATCHER
from chainsched.domain.capacity import assign_turns, effective_priority
from chainsched.domain.inputs import OWN_INPUT
from chainsched.domain.states import QueueStatus, ScheduleType, Source
from chainsched.flow.announce import wake
from chainsched.flow.run import alarm
from chainsched.models import CancelledTree, Manifest, Metadata, NamedLock, WorkQueue
from chainsched.models.manifest_state import is_waiting_for_siblings
from chainsched.models.metadata import Attempt
from chainsched.models.named_lock import DISPATCH

logger = logging.getLogger(__name__)

# What a queue row has from its manifest as it is, without a way through this process.
COPIED = {"manifest_external_id": "external_id", "group": "group", "workflow": "workflow"}


@dataclass(frozen=True, slots=True)
class Lineage:
    """What caused a run: its parent and the root of its tree, as rows and as correlation ids."""

    parent_execution_id: int | None = None
    root_execution_id: int | None = None
    causation_id: str = ""
    root_correlation_id: str = ""

    @classmethod
    def of(cls, execution: Metadata | Attempt) -> Lineage:
        """The causes of an execution, for another attempt at the same run."""
        return cls(
            parent_execution_id=execution.parent_execution_id,
            root_execution_id=execution.root_execution_id,
            causation_id=execution.causation_id,
            root_correlation_id=execution.root_correlation_id,
        )

    @classmethod
    def of_scope(cls) -> Lineage:
        """The lineage of a run that a caller asks for: caused by the scope of the call, a run, a message, or none."""
        here = correlation.current()
        return cls(causation_id=here.causation_id, root_correlation_id=here.root_correlation_id) if here else cls()


@dataclass(frozen=True, slots=True)
class QueueRequest:
    """A request for one run of a manifest.

    Without an ``input`` of its own the run gets the manifest's, or the one a trigger came with. Without a
    ``lineage`` of its own it is caused by the execution that the manifest is due for, if there is one.
    """

    manifest_id: int
    source: Source
    scheduled_for: datetime
    not_before: datetime | None = None
    attempt: int = 1
    input: Any = OWN_INPUT
    lineage: Lineage | None = None
    dead_letter_id: int | None = None

    @property
    def is_continued(self) -> bool:
        """Whether it continues a run that was queued before, so that executions that came due since then stay due."""
        return self.attempt > 1 or self.dead_letter_id is not None


def enqueue(requests: Sequence[QueueRequest], *, now: datetime) -> dict[int, int]:
    """Open a queue row for each request and return the row ids by manifest id.

    The caller has locked the manifests' states. A manifest that has a queued row already, is gone, or would run for
    a tree that was cancelled is left out of the answer: losing that race is no error.
    """
    if not requests:
        return {}
    jobs = _load_jobs([request.manifest_id for request in requests])
    possible = [request for request in requests if request.manifest_id in jobs]
    rows = _rows(possible, jobs, now=now)
    rows = _without_cancelled_trees(rows, now=now)
    opened = _insert(rows)
    if any(_may_go_soon(request, now=now) for request in possible if request.manifest_id in opened):
        wake(DISPATCHER)
    fresh = [request.manifest_id for request in possible if not request.is_continued and request.manifest_id in opened]
    # A continuation that an operator runs while its siblings are at work does not count as the run after them.
    alarm.clear([id_ for id_ in fresh if not jobs[id_]["is_waiting"]], now=now, is_covering=True)
    alarm.clear([id_ for id_ in fresh if jobs[id_]["is_waiting"]], now=now, is_covering=False)
    return opened


def _insert(rows: Sequence[dict[str, Any]]) -> dict[int, int]:
    """Insert the rows and return their ids by manifest; those without an input of their own get the manifest's."""
    written = []
    for is_own, fields in ((True, COPIED), (False, COPIED | {"input": "input"})):
        alike = [row for row in rows if ("input" in row) is is_own]
        copied = bulk.Copied(Manifest, by="manifest", fields=fields)
        written += bulk.insert(WorkQueue, alike, returning=("id", "manifest"), skip_conflicts=True, copied=copied)
    return {row["manifest"]: row["id"] for row in written}


def _may_go_soon(request: QueueRequest, *, now: datetime) -> bool:
    """Whether its time comes before the dispatcher would find it by itself."""
    soon = now + timedelta(seconds=get_config().dispatcher_interval)
    return request.not_before is None or request.not_before <= soon


def _without_cancelled_trees(rows: list[dict[str, Any]], *, now: datetime) -> list[dict[str, Any]]:
    """Leave out rows of cancelled trees; the executions that they were due for count as covered."""
    cancelled = CancelledTree.objects.marked(row["root_execution"] for row in rows)
    dropped = [row["manifest"] for row in rows if row["root_execution"] in cancelled]
    if dropped:
        logger.info("%d runs are not queued: the trees they would belong to were cancelled.", len(dropped))
        alarm.clear(dropped, now=now, is_covering=True)
        alarm.arm(dropped, now=now)
    return [row for row in rows if row["root_execution"] not in cancelled]


def rerank(manifest_ids: Sequence[int]) -> int:
    """Give the waiting rows of manifests whose group or priority changed their new place; returns how many."""
    waiting = WorkQueue.objects.queued().filter(manifest__in=manifest_ids).order_by("turn", "id")
    ids = [id_ for id_ in waiting.values_list("manifest_id", flat=True) if id_ is not None]
    jobs = _load_jobs(ids)
    known = [id_ for id_ in ids if id_ in jobs]
    places = [(jobs[id_]["group_id"], _priority(jobs[id_])) for id_ in known]
    rows = [
        {"manifest": id_, "group": group_id, "priority": priority, "turn": turn}
        for id_, (group_id, priority), turn in zip(known, places, _turns(places), strict=True)
    ]
    return len(bulk.update(WorkQueue, rows, key="manifest", where={"status": QueueStatus.QUEUED}))


def lineages_of(execution_ids: Iterable[int]) -> dict[int, Lineage]:
    """What runs caused by these executions inherit. An execution that retention removed still counts as parent."""
    wanted = set(execution_ids)
    if not wanted:
        return {}
    found = {
        row["id"]: Lineage(
            parent_execution_id=row["id"],
            root_execution_id=row["root_execution_id"] or row["id"],
            causation_id=str(row["external_id"]),
            root_correlation_id=row["root_correlation_id"] or str(row["external_id"]),
        )
        for row in Metadata.objects.filter(id_in(id=wanted)).values(
            "id", "external_id", "root_execution_id", "root_correlation_id"
        )
    }
    return {gone: Lineage(parent_execution_id=gone, root_execution_id=gone) for gone in wanted} | found


def _load_jobs(manifest_ids: Iterable[int]) -> dict[int, dict[str, Any]]:
    columns = (
        "id",
        "schedule_type",
        "priority",
        "group_id",
        "group__priority",
        "state__due_execution",
        "state__covered_execution",
        "state__trigger_at",
        "state__trigger_input",
        "state__trigger_causation_id",
        "state__trigger_root_correlation_id",
    )
    ids = list(manifest_ids)
    # Both tables by their ids: PostgreSQL reads a whole one to join it to hundreds of rows of the other.
    manifests = Manifest.objects.filter(id_in(id=ids), id_in(state=ids)).order_by("id")
    rows = manifests.values(*columns, is_waiting=is_waiting_for_siblings())
    return {row["id"]: dict(row) for row in rows}


def _rows(
    requests: Sequence[QueueRequest], jobs: Mapping[int, dict[str, Any]], *, now: datetime
) -> list[dict[str, Any]]:
    priorities = [_priority(jobs[request.manifest_id]) for request in requests]
    places = [
        (jobs[request.manifest_id]["group_id"], priority)
        for request, priority in zip(requests, priorities, strict=True)
    ]
    turns = _turns(places)
    parents = lineages_of(_due_for(jobs[request.manifest_id]) for request in requests if _inherits(request, jobs))
    return [
        _row(request, jobs[request.manifest_id], priority=priority, turn=turn, parents=parents, now=now)
        for request, priority, turn in zip(requests, priorities, turns, strict=True)
    ]


def _turns(places: Sequence[tuple[int, int]]) -> list[int]:
    """The turns of new rows, by what waits and by how far dispatch has come."""
    if not places:
        return []
    return assign_turns(
        places, present=NamedLock.objects.present_turns(DISPATCH), last=WorkQueue.objects.last_turns(set(places))
    )


def _row(
    request: QueueRequest,
    job: Mapping[str, Any],
    *,
    priority: int,
    turn: int,
    parents: Mapping[int, Lineage],
    now: datetime,
) -> dict[str, Any]:
    lineage = request.lineage or parents.get(_due_for(job)) or _lineage_of_trigger(request, job, now=now)
    return {
        "manifest": request.manifest_id,
        **_input(request, job, now=now),
        "priority": priority,
        "turn": turn,
        "not_before": request.not_before,
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
    boost = get_config().dependent_priority_boost if ScheduleType(job["schedule_type"]).has_parent else 0
    return effective_priority(own=job["priority"], group=job["group__priority"], boost=boost)


def _input(request: QueueRequest, job: Mapping[str, Any], *, now: datetime) -> dict[str, Any]:
    """The request's own input or that of the trigger request it answers; none if the manifest's is meant."""
    if request.input is not OWN_INPUT:
        return {"input": request.input}
    wanted = job["state__trigger_input"]
    return {"input": wanted} if wanted is not None and _answers_trigger(request, job, now=now) else {}


def _lineage_of_trigger(request: QueueRequest, job: Mapping[str, Any], *, now: datetime) -> Lineage:
    """The cause of a trigger request: stored with one that waited, else the scope of the present call."""
    if _answers_trigger(request, job, now=now):
        return Lineage(
            causation_id=job["state__trigger_causation_id"],
            root_correlation_id=job["state__trigger_root_correlation_id"],
        )
    return Lineage.of_scope() if request.source is Source.TRIGGER else Lineage()


def _answers_trigger(request: QueueRequest, job: Mapping[str, Any], *, now: datetime) -> bool:
    wanted_at = job["state__trigger_at"]
    return request.source is Source.TRIGGER and wanted_at is not None and wanted_at <= now


def _inherits(request: QueueRequest, jobs: Mapping[int, dict[str, Any]]) -> bool:
    return request.lineage is None and _due_for(jobs[request.manifest_id]) > 0


def _due_for(job: Mapping[str, Any]) -> int:
    """The parent's execution that this run covers; 0, which no execution has, when it is covered already."""
    due: int = job["state__due_execution"]
    return due if due > job["state__covered_execution"] and not job["is_waiting"] else 0
