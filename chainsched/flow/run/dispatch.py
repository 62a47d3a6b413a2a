"""Stage 5 of 8: start queued rows as far as the limits allow. Every execution is created here.

Reads:  the limits, the live executions, and the queue in its order.
Writes: Metadata rows, and the queue rows they came from; the further runs that executions stand for. Rows that
        cannot be dispatched are put aside.
Next:   execute, in the process that took them; or a task server that they are submitted to.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any
from uuid import uuid4

from django.db import DatabaseError, OperationalError, connections

from chainsched.conf import get_config
from chainsched.db import bulk, locks
from chainsched.db.clock import database_now
from chainsched.db.locks import Patience
from chainsched.db.notify import WORKER
from chainsched.domain.capacity import Active, Candidate, Room, admit, advance_turns, find_idle, room
from chainsched.domain.items import Item
from chainsched.domain.routing import Pool
from chainsched.domain.run_context import Claim
from chainsched.domain.states import ExecutionState, QueueStatus
from chainsched.flow.announce import announce_executions, wake
from chainsched.flow.run.carried import find_cancelled
from chainsched.flow.transactions import LostMidway, in_parts, in_words, is_about_rows, report_unwritable, transact
from chainsched.models import (
    DeadLetter,
    JoinState,
    Metadata,
    NamedLock,
    Process,
    TakenOver,
    WorkQueue,
    parked_rows,
    queue_looks,
)
from chainsched.models.named_lock import DISPATCH
from chainsched.models.queue_looks import Looked
from chainsched.signals import execution_dispatched, execution_started

logger = logging.getLogger(__name__)

BATCH = 1000
# A group that fills up within a batch hides the rows behind it; they are looked for again this often at most.
MAX_LOOKS = 5
HAS_ANOTHER = "its manifest has another execution under way, which only a change by hand can bring about"
# Columns that an execution gets from its queue row as they are. Inputs may be large; none of this travels.
COPIED = (
    "manifest",
    "manifest_external_id",
    "group",
    "workflow",
    "input",
    "source",
    "priority",
    "queue",
    "attempt",
    "scheduled_for",
    "parent_execution",
    "root_execution",
    "causation_id",
    "run",
    "tokens",
    "has_tokens",
    "is_again",
)
FROM_QUEUE = bulk.Copied.of(WorkQueue, by="work_queue", fields={name: name for name in COPIED})


class TurnIsHeld(OperationalError):
    """Another process is dispatching, or stands still while it does; nothing was written."""


@dataclass(frozen=True, slots=True)
class Dispatched:
    """The executions that a turn started, rows of cancelled runs that it met, and whether there is more to do.

    ``claims`` are the executions of a process that took them for itself.
    """

    execution_ids: Sequence[int] = field(default_factory=list)
    claims: Sequence[Claim] = field(default_factory=list)
    cancelled_rows: Collection[int] = field(default_factory=set)
    put_aside: int = 0
    has_more: bool = False


@dataclass(frozen=True, slots=True)
class Search:
    """The rows that a turn looks for: the pool's and, if given ``only``, of these; ``met`` are those it found.

    ``taker`` is the process that takes them for itself; without one they are to be submitted to a task server.
    """

    pool: Pool
    limit: int
    taker: Process | None = None
    only: Collection[int] | None = None
    met: list[int] = field(default_factory=list)


def dispatch(
    *,
    workflows: Collection[str],
    queues: Collection[str] | None = None,
    now: datetime | None = None,
    limit: int = BATCH,
    taker: Process | None = None,
) -> Dispatched:
    """Take one turn: start queued rows in their order, as far as the limits allow.

    ``workflows`` are the names that can be run, from these ``queues`` or, without them, from all; other rows wait. A
    process that takes rows for itself is the ``taker``: its executions begin at once, and none does once it was
    declared lost. Without a taker they are pending until a task server claims them. The turn holds the NamedLock row,
    so limits are exact over any number of processes. A row that cannot be dispatched is put aside.
    """
    search = Search(Pool(workflows, queues), limit, taker)
    try:
        with transact(Patience.USUAL if taker is None else Patience.SHORT):
            return _dispatch(search, now=now)
    except Exception as error:
        # After a connection that was lost midway a taker has to look first whether the rows are its own by now.
        is_unclear = taker is not None and isinstance(error, LostMidway)
        if is_unclear or not search.met or not is_about_rows(error):
            raise
        logger.warning(
            "%d queue rows could not be dispatched (%s); trying smaller parts.", len(search.met), in_words(error)
        )
    return _dispatch_in_parts(search, now=now)


def _dispatch(search: Search, *, now: datetime | None) -> Dispatched:
    """Start the rows that the search finds.

    The time of the start is read after the choice, unless it is given: a process may stand still in between, and
    nothing should seem to start before what made room for it, or caused it, had ended.
    """
    lock = hold_turn(now or database_now())
    if search.taker is not None and not Process.objects.is_trusted(search.taker):
        return Dispatched()
    chosen = _choose(search, now=now or database_now())
    now = now or database_now()
    created = _create(chosen.rows, taker=search.taker, now=now)
    _mark_dispatched(created)
    _name_further_runs(chosen.rows, created)
    _link_letters(chosen.rows, created)
    _advance(lock, chosen.rows)
    _let_in(chosen.rows, search.pool)
    put_aside = _put_second_items_aside([row["id"] for row in chosen.rows if row["id"] not in created], now=now)
    announce_executions(execution_dispatched, created.values())
    claims = _claims(list(created.values())) if search.taker is not None else []
    if created and search.taker is None:
        wake(WORKER)
    is_getting_on = bool(created or chosen.cancelled_rows or put_aside)
    return Dispatched(
        list(created.values()), claims, chosen.cancelled_rows, put_aside, has_more=chosen.has_more and is_getting_on
    )


def hold_turn(now: datetime) -> NamedLock:
    """Hold the lock under which one process at a time takes rows; TurnIsHeld if another one keeps it for long."""
    try:
        return NamedLock.objects.hold(DISPATCH, now=now)
    except OperationalError as error:
        if locks.is_lock_timeout(error):
            # It is no row that is held: fewer rows would wait as long.
            raise TurnIsHeld("another process has held its turn to dispatch for too long") from None
        raise


def _put_second_items_aside(row_ids: Collection[int], *, now: datetime) -> int:
    """Put rows aside that were not dispatched because their manifests have an execution under way."""
    if not row_ids:
        return 0
    logger.error("%d queue rows are put aside: %s.", len(row_ids), HAS_ANOTHER)
    return WorkQueue.objects.put_aside(dict.fromkeys(row_ids, HAS_ANOTHER), now=now)


def _dispatch_in_parts(search: Search, *, now: datetime | None) -> Dispatched:
    """Find the rows that cannot be dispatched by halving, put them aside, and start the others, in their order."""

    def dispatch_part(part: Sequence[int]) -> Dispatched:
        with transact(Patience.SHORT):
            return _dispatch(Search(search.pool, len(part), search.taker, only=part), now=now)

    parts = in_parts(search.met, dispatch_part)
    put_aside = put_rows_aside(parts.unwritable, now=now or database_now())
    execution_ids = [id_ for part in parts.results for id_ in part.execution_ids]
    claims = [item for part in parts.results for item in part.claims]
    cancelled = {id_ for part in parts.results for id_ in part.cancelled_rows}
    put_aside += sum(part.put_aside for part in parts.results)
    # Rows behind those that were put aside may have room now.
    has_more = bool(execution_ids or cancelled or put_aside)
    return Dispatched(execution_ids, claims, cancelled, put_aside, has_more=has_more)


def put_rows_aside(unwritable: Sequence[tuple[int, Exception]], *, now: datetime) -> int:
    """Put rows that cannot be written aside, so that no turn finds them again until something changes."""
    report_unwritable("Queue row %d cannot be dispatched and is put aside: %s", unwritable)
    reasons = {row_id: in_words(error) for row_id, error in unwritable}

    def write(part: Sequence[int]) -> int:
        with transact(Patience.SHORT):
            return WorkQueue.objects.put_aside({row_id: reasons[row_id] for row_id in part}, now=now)

    parts = in_parts(sorted(reasons), write)
    report_unwritable("Queue row %d cannot be put aside, either, and stays in line: %s", parts.unwritable)
    return sum(parts.results)


def _claims(execution_ids: Sequence[int]) -> list[Claim]:
    """The executions as their process gets them, in the order in which they were chosen."""
    announce_executions(execution_started, execution_ids)
    rows = {row[0]: row for row in Metadata.objects.claimed_rows(execution_ids)}
    job_timeout = get_config().job_timeout
    return [Claim.of_row(rows[id_], job_timeout=job_timeout) for id_ in execution_ids]


def _room(taker: Process | None, active: Active) -> Room:
    return room(
        max_active=get_config().max_active_jobs,
        active=active,
        slots=Process.objects.slots_by_process(),
        taker_id=None if taker is None else taker.pk,
    )


@dataclass(slots=True)
class Chosen:
    """The rows that start now, in their order, whether there may be more that could, and rows of cancelled runs."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    cancelled_rows: set[int] = field(default_factory=set)
    has_more: bool = False


def _choose(search: Search, *, now: datetime) -> Chosen:
    """Choose as far as the limits allow; groups that fill up on the way let the others pass."""
    active = Metadata.objects.count_active()
    locks.read_in_index_order(connections[get_config().database])
    left = _room(search.taker, active)
    _leave_places(left, search, active, now=now)
    left.lift()
    wanted = int(min(search.limit, math.inf if left.total is None else left.total))
    chosen, looks = Chosen(), 0
    while looks < MAX_LOOKS:
        looked_for = wanted - len(chosen.rows)
        if looked_for <= 0:
            chosen.has_more = not left.is_full
            return chosen
        # Rows of cancelled runs may be many, and stay where they are while a caller holds their manifests.
        limit = BATCH if chosen.cancelled_rows else looked_for
        taken = {*chosen.cancelled_rows, *(row["id"] for row in chosen.rows)}
        found = _look(left, search, now=now, limit=limit, taken=taken)
        cancelled = find_cancelled({row["id"]: Item(row["run_id"], tuple(row["tokens"])) for row in found})
        startable = [row for row in found if row["id"] not in cancelled][:looked_for]
        candidates = [_candidate(row) for row in startable]
        admitted = {candidate.row_id for candidate in admit(candidates, room=left)}
        chosen.rows += [row for row in found if row["id"] in admitted]
        chosen.cancelled_rows |= cancelled
        if len(found) < limit:
            return chosen
        looks += bool(startable)
    chosen.has_more = True
    return chosen


def _leave_places(left: Room, search: Search, active: Active, *, now: datetime) -> None:
    """Leave places under shared limits to rows that come first, and that only other idle processes can run."""
    if search.taker is None or search.only is not None:
        return
    beaten_since = now - timedelta(seconds=get_config().process_expiry)
    rivals = Process.objects.rivals_of(search.taker, beaten_since=beaten_since)
    others = find_idle(rivals, own=search.pool, active=active)
    first = queue_looks.first_of(search.pool, full_groups=left.full_groups, now=now) if others else None
    if first is None:
        return
    left_to: set[int] = set()
    for idle in others:
        ahead = queue_looks.before(first, pool=idle.pool, full_groups=left.full_groups, now=now, limit=idle.slots)
        # Several pools may take the same row, and it needs one place.
        for candidate in ahead:
            left.learn(candidate.group_id, candidate.group_limit)
            if candidate.row_id not in left_to and left.has_place_in(candidate.group_id):
                left.take(candidate.group_id)
                left_to.add(candidate.row_id)
    if left_to:
        wake(WORKER)


def _candidate(row: dict[str, Any]) -> Candidate:
    limit = row["group__max_active_jobs"]
    return Candidate(row["id"], row["group_id"], row["turn"], row["priority"], group_limit=limit)


def _let_in(rows: Sequence[dict[str, Any]], pool: Pool) -> None:
    """Let as many parked rows of full groups come into line, for the same pool, as rows of them leave it."""
    taken = Counter(row["group_id"] for row in rows if row["group__max_active_jobs"] is not None)
    if taken:
        parked_rows.let_in(taken, pool=pool)


def _look(left: Room, search: Search, *, now: datetime, limit: int, taken: Collection[int]) -> list[dict[str, Any]]:
    looked = Looked(now, search.pool, left.full_groups, taken, search.only)
    try:
        found = looked.lock(limit=limit)
    except DatabaseError:
        raise
    except Exception:
        # A stored value cannot be read: then the rows are at least known by their ids.
        search.met.extend(looked.ids(limit=limit))
        raise
    search.met.extend(row["id"] for row in found)
    return found


def _advance(lock: NamedLock, rows: Sequence[dict[str, Any]]) -> None:
    """Note how far fairness has come at each priority."""
    present = {int(priority): turn for priority, turn in lock.turns.items()}
    reached = advance_turns(present, started=((row["priority"], row["turn"]) for row in rows))
    if reached != present:
        NamedLock.objects.filter(name=lock.name).update(
            turns={str(priority): turn for priority, turn in reached.items()}
        )


def _create(rows: Sequence[dict[str, Any]], *, taker: Process | None, now: datetime) -> dict[int, int]:
    """Insert the executions and return their ids by queue row, in the order of the rows."""
    begun: dict[str, Any] = {}
    if taker is not None:
        begun = {"state": ExecutionState.IN_PROGRESS, "process": taker.pk, "claimed_at": now, "started_at": now}
    written = bulk.insert(
        Metadata,
        [_execution(row, now=now) | begun | {"claims": row["claims"] + bool(begun)} for row in rows],
        returning=("id", "work_queue"),
        skip_conflicts=True,
        copied=FROM_QUEUE,
    )
    return {row["work_queue"]: row["id"] for row in sorted(written, key=itemgetter("id"))}


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
