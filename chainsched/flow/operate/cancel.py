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
from chainsched.flow.run.record import record
from chainsched.flow.run.tokens import TokenLedger, cancel_queued, cancel_rows
from chainsched.flow.transactions import transact
from chainsched.models import Manifest, ManifestState, Metadata, WorkQueue


def cancel(manifest_ids: Collection[int], *, reason: str, now: datetime) -> Cancelled:
    """Stop the open work of these manifests and drop trigger requests. The occurrence is consumed: no retry, no letter.

    A row that is dispatched while this waits for it is found as an execution, so that no work is missed.
    """
    with transact():
        ManifestState.objects.lock(manifest_ids)
        ledger = TokenLedger()
        untriggered = ManifestState.objects.forget_triggers(manifest_ids)
        unqueued = cancel_queued(manifest_ids, reason=reason, ledger=ledger)
        _consume(unqueued, ledger=ledger, now=now)
        stopped = stop(Metadata.objects.lock_active_of(manifest_ids), reason=reason, now=now)
        arm(untriggered, now=now, ledger=ledger)
        ledger.write()
    return Cancelled(queued=len(unqueued)) + stopped


def cancel_row(row_id: int, *, reason: str, now: datetime) -> bool:
    """Take one row out of the queue; False if it waits no longer. Trigger requests for another run stay."""
    with transact():
        owner_ids = WorkQueue.objects.manifest_of(row_id)
        ManifestState.objects.lock(owner_ids)
        ledger = TokenLedger()
        is_cancelled = bool(cancel_rows([row_id], reason=reason, ledger=ledger))
        _consume(owner_ids if is_cancelled else [], ledger=ledger, now=now)
        ledger.write()
    return is_cancelled


def cancel_execution(execution_id: int, *, reason: str, now: datetime) -> Cancelled:
    """Stop one execution and nothing else; one that has ended stays as it is."""
    with transact():
        ManifestState.objects.lock(Metadata.objects.manifests_of([execution_id]))
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


def _consume(manifest_ids: Sequence[int], *, ledger: TokenLedger, now: datetime) -> None:
    """End the occurrence of a cancelled row, and set the alarm for the next one."""
    ManifestState.objects.note_finished(manifest_ids, now=now)
    Manifest.objects.mark_done(manifest_ids, now=now)
    arm(manifest_ids, now=now, ledger=ledger)
