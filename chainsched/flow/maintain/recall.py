"""Maintenance: put executions that have not begun back into the queue.

Reads:  pending executions that no process can run, and those that a worker has taken and returns.
Writes: the queue rows, which wait again; deletes the executions; through record those that cannot go back.
Next:   dispatch gives their places to other rows, and starts these again when a process can run them.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from chainsched.db.id_in import id_in
from chainsched.db.locks import Patience
from chainsched.db.notify import DISPATCHER
from chainsched.domain import outcomes
from chainsched.domain.items import Item
from chainsched.domain.outcomes import FailureType, Finished, Outcome
from chainsched.domain.states import ExecutionState
from chainsched.flow.announce import wake
from chainsched.flow.operate.cancel import stop
from chainsched.flow.run.alarm import arm
from chainsched.flow.run.carried import find_cancelled
from chainsched.flow.run.enqueue import rerank
from chainsched.flow.run.record import record
from chainsched.flow.transactions import Parts, in_parts, transact
from chainsched.models import DeadLetter, Manifest, ManifestState, Metadata, Process, TakenOver, WorkQueue

logger = logging.getLogger(__name__)

R = TypeVar("R")

BATCH = 500
# So often a job may come back before it began; its next return counts as a lost attempt.
MAX_RETURNS = 10
NO_PROCESS_CAN_RUN_IT = "no live process can run it, and it cannot wait in the queue again"


@dataclass(frozen=True, slots=True)
class Recalled:
    """How many executions went back to the queue, how many were cancelled instead, and whether there may be more.

    ``execution_ids`` are those that went back: they do not exist any more.
    """

    queued: int = 0
    cancelled: int = 0
    has_more: bool = False
    execution_ids: Sequence[int] = field(default=(), compare=False)


def recall(*, workflows: Collection[str], now: datetime) -> Recalled:
    """Put pending executions of other workflows than these back into the queue, where they count for no limit.

    No attempt is used: none of them has begun. An execution that a process claims in the same moment stays claimed,
    and one with a manifest that has another row in the queue, which only a change by hand can cause, stays pending.
    """
    stranded = list(Metadata.objects.stranded(workflows).values_list("id", flat=True)[:BATCH])
    taken = _written(in_parts(stranded, functools.partial(_take_back, now=now)))
    went_back = [row.id for part in taken for row in part.queued]
    queued = len(went_back)
    unqueueable = sorted(row.id for part in taken for row in part.unqueueable)
    cancelled = sum(_written(in_parts(unqueueable, functools.partial(_cancel, now=now))))
    if queued or cancelled:
        names = sorted({row.workflow for part in taken for row in (*part.queued, *part.unqueueable)})
        logger.warning(
            "The task server does not claim %s: %d pending executions went back to the queue, %d were cancelled.",
            ", ".join(names),
            queued,
            cancelled,
        )
    has_more = len(stranded) == BATCH and queued + cancelled > 0
    return Recalled(queued, cancelled, has_more=has_more, execution_ids=went_back)


def give_back(execution_ids: Collection[int], *, process: Process, now: datetime) -> set[int]:
    """Return executions of this process that it has not begun; the result are those to try again later.

    They wait in the queue again, at the place that their manifest has now, and no attempt is used. Nothing is waited
    for: rows that another transaction holds come later. A process that was declared lost returns nothing. One that was
    asked to stop ends as cancelled; one that came back too often, or cannot wait in the queue again, ends as lost.
    """
    parts = in_parts(sorted(execution_ids), functools.partial(_give_back, process=process, now=now))
    for execution_id, error in parts.refused:
        logger.error("Execution %d, which has not begun, cannot go back to the queue: %s", execution_id, error)
    late = {execution_id for execution_id, _ in (*parts.busy, *parts.refused)}
    ending = [item for part in parts.results for item in part.ending]
    return late.union(*(part.held for part in parts.results), record(ending, now=now, by=process).unwritten)


@dataclass(frozen=True, slots=True)
class _Returned:
    """The executions of a part that are held by others, and those that end because they cannot go back."""

    held: Collection[int]
    ending: Sequence[Finished]


def _give_back(execution_ids: Sequence[int], *, process: Process, now: datetime) -> _Returned:
    with transact(Patience.SHORT):
        if not Process.objects.is_trusted(process):
            return _Returned(held=(), ending=())
        manifest_ids = set(Metadata.objects.manifests_of(execution_ids))
        free = set(ManifestState.objects.lock_free(manifest_ids))
        known = set(ManifestState.objects.filter(id_in(manifest=manifest_ids)).values_list("manifest_id", flat=True))
        rows = Metadata.objects.lock_held(execution_ids, process=process)
        ours = [row for row in rows if row.manifest_id in free or row.manifest_id not in known]
        own = set(
            Metadata.objects.in_progress().filter(id_in(id=execution_ids), process=process).values_list("id", flat=True)
        )
        taken = _queue_again([row for row in ours if row.claims <= MAX_RETURNS], now=now)
    queued = {row.id for row in taken.queued}
    return _Returned(
        held=own.difference(row.id for row in ours),
        ending=[_end_instead(row) for row in ours if row.id not in queued],
    )


def _end_instead(row: Metadata) -> Finished:
    """How an execution ends that has not begun and cannot go back."""
    if row.cancel_requested:
        return Finished(row.id, Outcome(ExecutionState.CANCELLED))
    if row.claims > MAX_RETURNS:
        reason = f"Processes took it {row.claims} times, and each time it came back before it began."
    else:
        reason = "It came back before it began, and cannot wait in the queue again."
    return Finished(row.id, outcomes.failed(FailureType.LOST, reason))


def _written(parts: Parts[int, R]) -> list[R]:
    """The results; an execution with a row that another transaction holds is found again by the next turn."""
    for execution_id, error in parts.refused:
        logger.error(
            "Execution %d, which no live process can run, cannot go back to the queue: %s", execution_id, error
        )
    return parts.results


@dataclass(frozen=True, slots=True)
class _Taken:
    """The executions of a part that went back, and those that cannot."""

    queued: Sequence[Metadata]
    unqueueable: Collection[Metadata]


def _take_back(execution_ids: Sequence[int], *, now: datetime) -> _Taken:
    with transact():
        ManifestState.objects.lock(Metadata.objects.manifests_of(execution_ids))
        return _queue_again(Metadata.objects.lock_unclaimed(execution_ids), now=now)


def _queue_again(unbegun: Sequence[Metadata], *, now: datetime) -> _Taken:
    """Let executions that have not begun wait in the queue again; the caller holds them and their manifests' states."""
    owners, origins = _owners(unbegun), _origins(unbegun)
    unqueueable = _unqueueable(unbegun, owners=owners, origins=origins)
    already_queued = WorkQueue.objects.waiting_of(owners)
    queued = [row for row in unbegun if row not in unqueueable and row.manifest_id not in already_queued]
    # The number of claims is kept, so that a job that comes back again and again reaches the limit.
    WorkQueue.objects.requeue({origins[row.id].id: row.claims for row in queued})
    WorkQueue.objects.rename_workflow(_renamed(queued, owners))
    rerank([row.manifest_id for row in queued if row.manifest_id is not None], only_moved=True)
    Metadata.objects.withdraw([row.id for row in queued])
    _unlink_letters([origins[row.id] for row in queued])
    TakenOver.objects.filter(execution_id__in=[row.id for row in queued]).delete()
    # A manifest that was disabled since has no part any more.
    arm([row.manifest_id for row in queued if row.manifest_id is not None], now=now)
    if queued:
        wake(DISPATCHER)
    return _Taken(queued, unqueueable)


def _owners(rows: Sequence[Metadata]) -> dict[int, str]:
    """The manifests of these executions that still exist, with the workflow that each has now."""
    ids = {row.manifest_id for row in rows if row.manifest_id is not None}
    return dict(Manifest.objects.filter(id_in(id=ids)).values_list("id", "workflow"))


def _origins(rows: Sequence[Metadata]) -> dict[int, WorkQueue]:
    """The queue rows that these executions came from, by execution; only if each refers to the other."""
    came_from = {row.id: row.work_queue_id for row in rows if row.work_queue_id is not None}
    found = WorkQueue.objects.filter(id_in(id=came_from.values())).only("id", "execution_id", "dead_letter_id")
    return {row.execution_id: row for row in found if row.execution_id and came_from.get(row.execution_id) == row.id}


def _unqueueable(rows: Sequence[Metadata], *, owners: Collection[int], origins: Collection[int]) -> set[Metadata]:
    """Executions that could never run, or must not, from the queue; left pending they would fill limits for ever."""
    cancelled = find_cancelled({row.id: Item.of(row) for row in rows})
    return {
        row
        for row in rows
        if row.cancel_requested
        or row.id in cancelled
        or row.id not in origins
        or (row.manifest_id is not None and row.manifest_id not in owners)
    }


def _renamed(rows: Sequence[Metadata], owners: Mapping[int, str]) -> dict[int, str]:
    """The manifests that have another workflow now, which their waiting rows take over."""
    return {
        row.manifest_id: owners[row.manifest_id]
        for row in rows
        if row.manifest_id is not None and owners[row.manifest_id] != row.workflow
    }


def _unlink_letters(origins: Sequence[WorkQueue]) -> None:
    """Clear the retry execution of dead letters with a retry that waits again: dispatch will link the next one."""
    letters = {row.dead_letter_id: row.execution_id for row in origins if row.dead_letter_id is not None}
    linked = DeadLetter.objects.filter(id__in=letters, retry_execution__in=letters.values())
    linked.update(retry_execution=None)


def _cancel(execution_ids: Sequence[int], *, now: datetime) -> int:
    """End executions that cannot go back."""
    with transact():
        ManifestState.objects.lock(Metadata.objects.manifests_of(execution_ids))
        unclaimed = Metadata.objects.lock_unclaimed(execution_ids)
        return stop(unclaimed, reason=NO_PROCESS_CAN_RUN_IT, now=now).pending
