"""Operator action: cancel the open work of manifests, in the order in which it moves: queued, pending, running.

Reads:  the manifests' queue rows and executions.
Writes: queue rows; through record the executions that have not begun; a request to those that run.
Next:   a run that gets the request ends as cancelled; the alarm is set for the next occurrence.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from chainsched.db.notify import WORKER
from chainsched.domain.outcomes import Finished, Outcome
from chainsched.domain.results import Cancelled
from chainsched.domain.states import ExecutionState
from chainsched.flow.announce import wake
from chainsched.flow.run.alarm import arm
from chainsched.flow.run.dependents import find_continuations, with_steady_edges
from chainsched.flow.run.record import record
from chainsched.flow.transactions import transact
from chainsched.models import Manifest, ManifestState, Metadata, WorkQueue


def cancel(manifest_ids: Collection[int], *, reason: str, now: datetime) -> Cancelled:
    """Stop the open work of these manifests and drop trigger requests. The occurrence is consumed: no retry, no letter.

    A row that is dispatched while this waits for it is found as an execution, so that no work is missed.
    """
    return with_steady_edges(lambda: _cancel(manifest_ids, reason=reason, now=now))


def cancel_execution(execution_id: int, *, reason: str, now: datetime) -> Cancelled:
    """Stop one execution and nothing else; one that has ended stays as it is."""
    return with_steady_edges(lambda: _cancel_execution(execution_id, reason=reason, now=now))


def cancel_row(row_id: int, *, reason: str, now: datetime) -> bool:
    """Take one row out of the queue; False if it waits no longer. Trigger requests for another run stay."""
    return with_steady_edges(lambda: _cancel_row(row_id, reason=reason, now=now))


def _cancel_row(row_id: int, *, reason: str, now: datetime) -> bool:
    with transact():
        owner_ids = WorkQueue.objects.manifest_of(row_id)
        locked = ManifestState.objects.lock_family(owner_ids)
        is_cancelled = WorkQueue.objects.cancel_row(row_id, reason=reason)
        _consume(owner_ids if is_cancelled else [], locked=locked, now=now)
    return is_cancelled


def _cancel_execution(execution_id: int, *, reason: str, now: datetime) -> Cancelled:
    with transact():
        ManifestState.objects.lock_family(Metadata.objects.manifests_of([execution_id]))
        active = Metadata.objects.lock_active([execution_id])
        return stop(active, reason=reason, now=now)


def stop(active: Collection[Metadata], *, reason: str, now: datetime) -> Cancelled:
    """Ask executions to stop, and end at once those that have not begun; the caller has locked their manifests."""
    if active:
        wake(WORKER)
    requested = set(Metadata.objects.request_cancel([row.id for row in active], reason=reason))
    pending = [row.id for row in active if row.state == ExecutionState.PENDING]
    ended = record([Finished(id_, Outcome(ExecutionState.CANCELLED)) for id_ in pending], now=now).ended
    return Cancelled(pending=len(ended), running=len(requested - set(ended)))


def _cancel(manifest_ids: Collection[int], *, reason: str, now: datetime) -> Cancelled:
    with transact():
        locked = ManifestState.objects.lock_family(manifest_ids)
        untriggered = ManifestState.objects.forget_triggers(manifest_ids)
        unqueued = WorkQueue.objects.cancel_queued(manifest_ids, reason=reason)
        _consume(unqueued, locked=locked, now=now)
        stopped = stop(Metadata.objects.lock_active_of(manifest_ids), reason=reason, now=now)
        arm(untriggered, now=now)
    return Cancelled(queued=len(unqueued)) + stopped


def _consume(manifest_ids: Sequence[int], *, locked: Collection[int], now: datetime) -> None:
    """End the occurrence of a cancelled row, and set the alarm for the next one."""
    ManifestState.objects.settle(manifest_ids, now=now)
    Manifest.objects.mark_done(manifest_ids, now=now)
    ManifestState.objects.note_outstanding_parts(manifest_ids)
    arm({*manifest_ids, *find_continuations(manifest_ids, locked=locked)}, now=now)
