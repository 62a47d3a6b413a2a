"""Beside the stages: stop a whole tree of executions.

Reads:  the tree, and what its manifests and their dependents have open or are due for.
Writes: a stamp for the root; queue rows; through record what has not begun; a request to what runs.
Next:   nothing: enqueue and dispatch make nothing for a stamped tree, and its outcomes fire nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from datetime import datetime

from chainsched.db.chunks import chunks
from chainsched.domain.results import Cancelled
from chainsched.domain.states import QueueStatus
from chainsched.flow.operate.cancel import stop
from chainsched.flow.run.alarm import arm
from chainsched.flow.run.dependents import find_continuations, with_steady_edges
from chainsched.flow.transactions import transact
from chainsched.models import CancelledTree, Manifest, ManifestState, Metadata, NamedLock, WorkQueue
from chainsched.models.named_lock import DISPATCH

LATE_FOR_TREE = "the tree it belongs to was cancelled"


def cancel_tree(root_execution_id: int, *, reason: str, now: datetime) -> Cancelled:
    """Stop everything that this root led to and let nothing more come of it. Doing it twice does no harm.

    The stamp is committed first. A row that somebody opened without having seen it meets it at dispatch.
    """
    _stamp(root_execution_id, reason=reason, now=now)
    cancelled = _stop_without_manifest(root_execution_id, reason=reason, now=now)
    for part in chunks(_manifests_of(root_execution_id)):
        cancel_part = functools.partial(_cancel_part, part, root_execution_id, reason=reason, now=now)
        cancelled += with_steady_edges(cancel_part)
    return cancelled


def cancel_late(root_execution_ids: Collection[int], *, now: datetime) -> None:
    """Cancel the rows of cancelled trees that the dispatcher met: they were opened by a caller that saw no stamp."""
    for root_execution_id in root_execution_ids:
        cancel_tree(root_execution_id, reason=LATE_FOR_TREE, now=now)


def _stamp(root_execution_id: int, *, reason: str, now: datetime) -> None:
    """Stamp between two turns of the dispatcher: the next one sees it, and the last one's executions can be seen."""
    with transact():
        NamedLock.objects.lock(DISPATCH)
        CancelledTree.objects.stamp(root_execution_id, reason=reason, now=now)


def _stop_without_manifest(root_execution_id: int, *, reason: str, now: datetime) -> Cancelled:
    with transact():
        rows = WorkQueue.objects.queued().filter(manifest__isnull=True, root_execution=root_execution_id)
        unqueued = rows.update(status=QueueStatus.CANCELLED, cancel_reason=reason)
        loose = Metadata.objects.tree(root_execution_id).active().filter(manifest__isnull=True)
        stopped = stop(Metadata.objects.lock_active(list(loose.values_list("id", flat=True))), reason=reason, now=now)
    return Cancelled(queued=unqueued) + stopped


def _manifests_of(root_execution_id: int) -> list[int]:
    """Where the tree may have something open: manifests that ran or wait in it, and their dependents of any kind."""
    ran = Metadata.objects.tree(root_execution_id).values_list("manifest_id", flat=True)
    waiting = WorkQueue.objects.queued().filter(root_execution=root_execution_id).values_list("manifest_id", flat=True)
    ids = {id_ for id_ in (*ran, *waiting) if id_ is not None}
    for part in chunks(sorted(ids)):
        ids |= set(Manifest.objects.filter(depends_on__in=part).values_list("id", flat=True))
    return sorted(ids)


def _cancel_part(manifest_ids: Collection[int], root_execution_id: int, *, reason: str, now: datetime) -> Cancelled:
    with transact():
        locked = ManifestState.objects.lock_family(manifest_ids)
        unqueued = WorkQueue.objects.cancel_queued(manifest_ids, reason=reason, root_execution=root_execution_id)
        ManifestState.objects.settle(unqueued, now=now)
        spent = _spend(manifest_ids, root_execution_id)
        Manifest.objects.mark_done([*unqueued, *spent], now=now)
        ManifestState.objects.note_outstanding_parts([*unqueued, *spent])
        active = [row for row in Metadata.objects.lock_active_of(manifest_ids) if row.tree_id == root_execution_id]
        stopped = stop(active, reason=reason, now=now)
        arm({*unqueued, *spent, *find_continuations([*unqueued, *spent], locked=locked)}, now=now)
    return Cancelled(queued=len(unqueued)) + stopped


def _spend(manifest_ids: Collection[int], root_execution_id: int) -> list[int]:
    """Let what is due for an execution of this tree count as covered."""
    due = dict(ManifestState.objects.behind(manifest_ids).values_list("manifest_id", "due_execution"))
    in_tree = Metadata.objects.tree(root_execution_id).filter(id__in=set(due.values()))
    found = set(in_tree.values_list("id", flat=True))
    spent = [manifest_id for manifest_id, execution_id in due.items() if execution_id in found]
    ManifestState.objects.forgo(spent)
    return spent
