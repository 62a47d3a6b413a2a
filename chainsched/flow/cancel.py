"""Beside the stages: stop what is under way. Cancelling goes with the stream: queued, pending, running.

Reads:  what the manifests have open.
Writes: queue rows; through record the executions that have not begun; a request to those that run.
Next:   the run that is told ends as cancelled; the alarm is set for the next occurrence.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from chainsched.domain.answers import Cancelled
from chainsched.domain.outcomes import Finished, Outcome
from chainsched.domain.states import ExecutionState
from chainsched.flow.arm import arm
from chainsched.flow.dependents import find_continuations, with_steady_edges
from chainsched.flow.record import record
from chainsched.flow.transact import transact
from chainsched.models import Manifest, ManifestState, Metadata, WorkQueue


def cancel(manifest_ids: Collection[int], *, reason: str, now: datetime) -> Cancelled:
    """Stop the open work of these manifests and drop wishes for more. The occurrence is consumed: no retry, no letter.

    A row that is dispatched while this waits for it is found as an execution: nothing slips through.
    """
    return with_steady_edges(lambda: _cancel(manifest_ids, reason=reason, now=now))


def _cancel(manifest_ids: Collection[int], *, reason: str, now: datetime) -> Cancelled:
    with transact():
        locked = ManifestState.objects.lock_family(manifest_ids)
        unwished = ManifestState.objects.forget_wishes(manifest_ids)
        unqueued = WorkQueue.objects.cancel_queued(manifest_ids, reason=reason)
        ManifestState.objects.settle(unqueued, now=now)
        Manifest.objects.mark_done(unqueued, now=now)
        ManifestState.objects.note_debts(unqueued)
        pending = Metadata.objects.lock_pending_of(manifest_ids)
        ended = record([Finished(id_, Outcome(ExecutionState.CANCELLED)) for id_ in pending], now=now).ended
        running = Metadata.objects.in_progress().filter(manifest__in=manifest_ids, cancel_requested=False)
        told = running.update(cancel_requested=True)
        arm({*unqueued, *unwished, *find_continuations(unqueued, locked=locked)}, now=now)
    return Cancelled(queued=len(unqueued), pending=len(ended), running=told)
