"""Operator action: cancel a whole tree of executions.

Reads:  the tree, and the open items and due executions of its manifests and their dependents.
Writes: a CancelledTree row as a mark; queue rows; through record pending executions; a request to running ones.
Next:   nothing: enqueue and dispatch make no rows for a marked tree, and its outcomes make no dependent due.
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
    """Stop all executions below this root and prevent new ones. Calling it twice does no harm.

    The mark is committed first. A row that a transaction queued without seeing the mark is found by the dispatcher.
    """
    _mark(root_execution_id, reason=reason, now=now)
    cancelled = _stop_without_manifest(root_execution_id, reason=reason, now=now)
    for part in chunks(_manifests_of(root_execution_id)):
        cancel_part = functools.partial(_cancel_part, part, root_execution_id, reason=reason, now=now)
        cancelled += with_steady_edges(cancel_part)
    return cancelled


def cancel_late(root_execution_ids: Collection[int], *, now: datetime) -> None:
    """Cancel the rows of cancelled trees that the dispatcher found: they were queued by a caller that saw no mark."""
    for root_execution_id in root_execution_ids:
        cancel_tree(root_execution_id, reason=LATE_FOR_TREE, now=now)


def _mark(root_execution_id: int, *, reason: str, now: datetime) -> None:
    """Write the mark between two turns of the dispatcher: the next turn sees it, this sees the last turn's rows."""
    with transact():
        NamedLock.objects.lock(DISPATCH)
        CancelledTree.objects.mark(root_execution_id, reason=reason, now=now)


def _stop_without_manifest(root_execution_id: int, *, reason: str, now: datetime) -> Cancelled:
    with transact():
        rows = WorkQueue.objects.queued().filter(manifest__isnull=True, root_execution=root_execution_id)
        unqueued = rows.update(status=QueueStatus.CANCELLED, cancel_reason=reason)
        loose = Metadata.objects.tree(root_execution_id).active().filter(manifest__isnull=True)
        stopped = stop(Metadata.objects.lock_active(list(loose.values_list("id", flat=True))), reason=reason, now=now)
    return Cancelled(queued=unqueued) + stopped


def _manifests_of(root_execution_id: int) -> list[int]:
    """The manifests that may have an open item in the tree: those that ran or wait in it, and all their dependents."""
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
        covered = _cover(manifest_ids, root_execution_id)
        Manifest.objects.mark_done([*unqueued, *covered], now=now)
        ManifestState.objects.note_outstanding_parts([*unqueued, *covered])
        active = [row for row in Metadata.objects.lock_active_of(manifest_ids) if row.tree_id == root_execution_id]
        stopped = stop(active, reason=reason, now=now)
        arm({*unqueued, *covered, *find_continuations([*unqueued, *covered], locked=locked)}, now=now)
    return Cancelled(queued=len(unqueued)) + stopped


def _cover(manifest_ids: Collection[int], root_execution_id: int) -> list[int]:
    """Count dependents that are due for an execution of this tree as covered; returns their ids."""
    due = dict(ManifestState.objects.behind(manifest_ids).values_list("manifest_id", "due_execution"))
    in_tree = Metadata.objects.tree(root_execution_id).filter(id__in=set(due.values()))
    found = set(in_tree.values_list("id", flat=True))
    covered = [manifest_id for manifest_id, execution_id in due.items() if execution_id in found]
    ManifestState.objects.cover_without_run(covered)
    return covered
