"""Beside the stages: take back what was dispatched and nobody can run any more.

Reads:  pending executions, and the names that live processes can run.
Writes: the queue rows they came from, which wait again; the executions go; through record those that cannot go back.
Next:   the dispatcher gives the room to others, and starts these again when somebody can run them.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from chainsched.db.id_in import id_in
from chainsched.db.notify import DISPATCHER
from chainsched.flow.announce import wake
from chainsched.flow.operate.cancel import stop
from chainsched.flow.transactions import Parts, in_parts, transact
from chainsched.models import CancelledTree, DeadLetter, Manifest, ManifestState, Metadata, WorkQueue

logger = logging.getLogger(__name__)

R = TypeVar("R")

BATCH = 500
NOBODY_CAN_RUN_IT = "no live process can run it, and it cannot wait in the queue again"


@dataclass(frozen=True, slots=True)
class Recalled:
    """How many executions went back to the queue, how many were cancelled instead, and whether there may be more."""

    queued: int = 0
    cancelled: int = 0
    has_more: bool = False


def recall(*, workflows: Collection[str], now: datetime) -> Recalled:
    """Put pending executions whose workflow is not among these back into the queue, where they take nobody's room.

    No attempt is used: nobody has begun them. One that a worker claims meanwhile stays its own, and one whose
    manifest has another row in the queue, which only a change by hand can bring about, stays pending.
    """
    stranded = list(Metadata.objects.stranded(workflows).values_list("id", flat=True)[:BATCH])
    taken = _written(in_parts(stranded, _take_back))
    queued = sum(len(part.queued) for part in taken)
    hopeless = sorted(row.id for part in taken for row in part.hopeless)
    cancelled = sum(_written(in_parts(hopeless, functools.partial(_cancel, now=now))))
    if queued or cancelled:
        names = sorted({row.workflow for part in taken for row in (*part.queued, *part.hopeless)})
        logger.warning(
            "No live process can run %s: %d executions that waited for one went back to the queue, %d were cancelled.",
            ", ".join(names),
            queued,
            cancelled,
        )
    return Recalled(queued, cancelled, has_more=len(stranded) == BATCH and queued + cancelled > 0)


def _written(parts: Parts[int, R]) -> list[R]:
    """The results; what somebody holds just now is found again by the next turn."""
    for execution_id, error in parts.refused:
        logger.error("Execution %d, which no live process can run, cannot be taken back: %s", execution_id, error)
    return parts.results


@dataclass(frozen=True, slots=True)
class _Taken:
    """The executions of a part that went back, and those that cannot."""

    queued: Sequence[Metadata]
    hopeless: Collection[Metadata]


def _take_back(execution_ids: Sequence[int]) -> _Taken:
    with transact():
        ManifestState.objects.lock(Metadata.objects.manifests_of(execution_ids))
        unclaimed = Metadata.objects.lock_unclaimed(execution_ids)
        owners, origins = _owners(unclaimed), _origins(unclaimed)
        hopeless = _hopeless(unclaimed, owners=owners, origins=origins)
        crowded = WorkQueue.objects.waiting_of(owners)
        queued = [row for row in unclaimed if row not in hopeless and row.manifest_id not in crowded]
        # A job that ends its processes before it has begun must not be counted anew each time.
        WorkQueue.objects.requeue({origins[row.id].id: row.claims for row in queued})
        WorkQueue.objects.rename_workflow(_renamed(queued, owners))
        Metadata.objects.withdraw([row.id for row in queued])
        _unlink_letters([origins[row.id] for row in queued])
        if queued:
            wake(DISPATCHER)
    return _Taken(queued, hopeless)


def _owners(rows: Sequence[Metadata]) -> dict[int, str]:
    """The manifests of these executions that still exist, with the workflow that each has now."""
    ids = {row.manifest_id for row in rows if row.manifest_id is not None}
    return dict(Manifest.objects.filter(id_in(id=ids)).values_list("id", "workflow"))


def _origins(rows: Sequence[Metadata]) -> dict[int, WorkQueue]:
    """The queue rows that these executions came from, by execution; only where each names the other."""
    came_from = {row.id: row.work_queue_id for row in rows if row.work_queue_id is not None}
    found = WorkQueue.objects.filter(id_in(id=came_from.values())).only("id", "execution_id", "dead_letter_id")
    return {row.execution_id: row for row in found if row.execution_id and came_from.get(row.execution_id) == row.id}


def _hopeless(rows: Sequence[Metadata], *, owners: Collection[int], origins: Collection[int]) -> set[Metadata]:
    """Those that would never run, or must not, if they waited again; left as they are they took room for ever."""
    cancelled_trees = CancelledTree.objects.stamped(row.tree_id for row in rows)
    return {
        row
        for row in rows
        if row.cancel_requested
        or row.tree_id in cancelled_trees
        or row.id not in origins
        or (row.manifest_id is not None and row.manifest_id not in owners)
    }


def _renamed(rows: Sequence[Metadata], owners: Mapping[int, str]) -> dict[int, str]:
    """Whose rows have to follow their manifest to another workflow, as all rows do that wait."""
    return {
        row.manifest_id: owners[row.manifest_id]
        for row in rows
        if row.manifest_id is not None and owners[row.manifest_id] != row.workflow
    }


def _unlink_letters(origins: Sequence[WorkQueue]) -> None:
    """Let dead letters whose retry waits again name no execution: dispatch will link the next one."""
    letters = {row.dead_letter_id: row.execution_id for row in origins if row.dead_letter_id is not None}
    linked = DeadLetter.objects.filter(id__in=letters, retry_execution__in=letters.values())
    linked.update(retry_execution=None)


def _cancel(execution_ids: Sequence[int], *, now: datetime) -> int:
    """End what cannot go back; under the locks of its whole family, because its end may concern them."""
    with transact():
        ManifestState.objects.lock_family(Metadata.objects.manifests_of(execution_ids))
        unclaimed = Metadata.objects.lock_unclaimed(execution_ids)
        return stop(unclaimed, reason=NOBODY_CAN_RUN_IT, now=now).pending
