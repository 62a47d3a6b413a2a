"""Stage 5 of 8: start queued rows as far as the limits allow. Every execution is created here.

Reads:  the limits, the live executions, and the queue in its order.
Writes: Metadata rows, and the queue rows they came from; the further runs that executions stand for.
Next:   a worker claims them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import uuid4

from chainsched.conf import get_config
from chainsched.db import bulk
from chainsched.db.clock import database_now
from chainsched.db.id_in import id_in
from chainsched.db.notify import WORKER
from chainsched.domain.capacity import Candidate, Room, admit, advance_turns, room
from chainsched.domain.items import Item
from chainsched.domain.states import QueueStatus
from chainsched.flow.announce import announce_executions, wake
from chainsched.flow.run.carried import find_cancelled
from chainsched.flow.transactions import transact
from chainsched.models import DeadLetter, JoinState, ManifestGroup, Metadata, NamedLock, TakenOver, WorkQueue
from chainsched.models.named_lock import DISPATCH
from chainsched.signals import execution_dispatched

logger = logging.getLogger(__name__)

BATCH = 1000
# A group that fills up within a batch hides the rows behind it; they are looked for again this often at most.
MAX_LOOKS = 5
# What an execution has from its queue row as it is. Inputs may be large; none of this travels.
COPIED = (
    "manifest",
    "manifest_external_id",
    "group",
    "workflow",
    "input",
    "source",
    "priority",
    "attempt",
    "claims",
    "scheduled_for",
    "parent_execution",
    "root_execution",
    "causation_id",
    "run",
    "tokens",
    "has_tokens",
    "is_again",
)


@dataclass(frozen=True, slots=True)
class Dispatched:
    """The executions that a turn started, rows of cancelled runs that it met, and whether there is more to do."""

    execution_ids: Sequence[int] = field(default_factory=list)
    cancelled_rows: Collection[int] = field(default_factory=set)
    has_more: bool = False


def dispatch(*, workflows: Collection[str], now: datetime | None = None, limit: int = BATCH) -> Dispatched:
    """Take one turn: start queued rows in their order, as far as the limits allow.

    ``workflows`` are the names that some live process can run; rows that name another wait. The turn holds the
    NamedLock row, so limits are exact over any number of dispatchers. The time of the start is read after the choice,
    unless it is given: a process may stand still in between, and nothing should seem to start before what made
    room for it, or caused it, had ended.
    """
    with transact():
        lock = NamedLock.objects.hold(DISPATCH, now=now or database_now())
        chosen = _choose(_room(), workflows=workflows, now=now or database_now(), limit=limit)
        now = now or database_now()
        created = _create(chosen.rows, now=now)
        _mark_dispatched(created)
        _name_further_runs(chosen.rows, created)
        _link_letters(chosen.rows, created)
        _advance(lock, chosen.rows)
        announce_executions(execution_dispatched, created.values())
        if created:
            wake(WORKER)
    if len(created) < len(chosen.rows):
        logger.error(
            "%d queue rows were not dispatched: their manifests have an execution under way, which only a change "
            "by hand can bring about. They wait until it has ended.",
            len(chosen.rows) - len(created),
        )
    is_getting_on = bool(created or chosen.cancelled_rows)
    return Dispatched(list(created.values()), chosen.cancelled_rows, has_more=chosen.has_more and is_getting_on)


def _room() -> Room:
    groups = list(ManifestGroup.objects.restricting_dispatch().values_list("id", "max_active_jobs", "is_enabled"))
    return room(
        max_active=get_config().max_active_jobs,
        limits={group_id: limit for group_id, limit, _ in groups},
        disabled=[group_id for group_id, _, is_enabled in groups if not is_enabled],
        active=Metadata.objects.active_by_group(),
    )


@dataclass(slots=True)
class Chosen:
    """The rows that start now, in their order, whether there may be more that could, and rows of cancelled runs."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    cancelled_rows: set[int] = field(default_factory=set)
    has_more: bool = False


def _choose(left: Room, *, workflows: Collection[str], now: datetime, limit: int) -> Chosen:
    """Choose as far as the limits allow; groups that fill up on the way let the others pass."""
    wanted = int(min(limit, math.inf if left.total is None else left.total))
    chosen = Chosen()
    for _ in range(MAX_LOOKS):
        looked_for = wanted - len(chosen.rows)
        if looked_for <= 0:
            chosen.has_more = not left.is_full
            return chosen
        found = _look(left, workflows=workflows, now=now, limit=looked_for, taken=[row["id"] for row in chosen.rows])
        cancelled = find_cancelled({row["id"]: Item(row["run_id"], tuple(row["tokens"])) for row in found})
        startable = [row for row in found if row["id"] not in cancelled]
        candidates = [Candidate(row["id"], row["group_id"], row["turn"]) for row in startable]
        admitted = {candidate.row_id for candidate in admit(candidates, room=left)}
        chosen.rows += [row for row in found if row["id"] in admitted]
        chosen.cancelled_rows |= cancelled
        if cancelled or len(found) < looked_for:
            # Rows of a cancelled run are out of the way when the next turn looks.
            chosen.has_more = bool(cancelled)
            return chosen
    chosen.has_more = True
    return chosen


def _look(
    left: Room, *, workflows: Collection[str], now: datetime, limit: int, taken: Collection[int]
) -> list[dict[str, Any]]:
    rows = WorkQueue.objects.ready(now).filter(workflow__in=workflows).outside_groups(left.full_groups)
    columns = (
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
    )
    return [dict(row) for row in rows.exclude(id_in(id=taken)).lock_next(limit).values(*columns)]


def _advance(lock: NamedLock, rows: Sequence[dict[str, Any]]) -> None:
    """Note how far fairness has come at each priority."""
    present = {int(priority): turn for priority, turn in lock.turns.items()}
    reached = advance_turns(present, started=((row["priority"], row["turn"]) for row in rows))
    if reached != present:
        NamedLock.objects.filter(name=lock.name).update(
            turns={str(priority): turn for priority, turn in reached.items()}
        )


def _create(rows: Sequence[dict[str, Any]], *, now: datetime) -> dict[int, int]:
    """Insert the executions and return their ids by queue row."""
    written = bulk.insert(
        Metadata,
        [_execution(row, now=now) for row in rows],
        returning=("id", "work_queue"),
        skip_conflicts=True,
        copied=bulk.Copied(WorkQueue, by="work_queue", fields={name: name for name in COPIED}),
    )
    return {row["work_queue"]: row["id"] for row in written}


def _execution(row: dict[str, Any], *, now: datetime) -> dict[str, Any]:
    external_id = uuid4()
    return {
        "external_id": external_id,
        "work_queue": row["id"],
        "created_at": now,
        "timeout_seconds": row["timeout_seconds"] or row["manifest__timeout_seconds"] or get_config().job_timeout,
        "root_correlation_id": row["root_correlation_id"] or str(external_id),
    }


def _mark_dispatched(created: dict[int, int]) -> None:
    rows = [
        {"id": row_id, "status": QueueStatus.DISPATCHED, "execution": execution_id}
        for row_id, execution_id in created.items()
    ]
    bulk.update(WorkQueue, rows, where={"status": QueueStatus.QUEUED})


def _name_further_runs(rows: Sequence[dict[str, Any]], created: dict[int, int]) -> None:
    """Store the runs that executions stand for besides the one they are named after; most have one token, one run."""
    several = {row["id"]: row for row in rows if row["id"] in created and len(row["tokens"]) > 1}
    places = JoinState.objects.places(token for row in several.values() for token in row["tokens"])
    further = {
        (places[token].run_id, created[id_])
        for id_, row in several.items()
        for token in row["tokens"]
        if token in places and places[token].run_id != row["run_id"]
    }
    bulk.insert(TakenOver, [{"run_id": run_id, "execution_id": id_} for run_id, id_ in sorted(further)])


def _link_letters(rows: Sequence[dict[str, Any]], created: dict[int, int]) -> None:
    """Let a dead letter that is being retried name the execution that its retry became."""
    links = [
        {"id": row["dead_letter_id"], "retry_execution": created[row["id"]]}
        for row in rows
        if row["dead_letter_id"] is not None and row["id"] in created
    ]
    bulk.update(DeadLetter, links)
