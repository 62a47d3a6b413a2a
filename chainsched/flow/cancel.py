"""Beside the stages: stop what is under way. Cancelling goes with the stream: queued, pending, running.

Reads:  what the manifests have open.
Writes: queue rows; through record the executions that have not begun; a request to those that run.
Next:   the run that is told ends as cancelled; the alarm is set for the next occurrence.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from django.db.models import F

from chainsched.domain.answers import Cancelled
from chainsched.domain.outcomes import Finished, Outcome
from chainsched.domain.states import ExecutionState
from chainsched.flow.arm import arm
from chainsched.flow.dependents import find_continuations
from chainsched.flow.record import record
from chainsched.flow.transact import transact
from chainsched.models import ManifestState, Metadata, WorkQueue


def cancel(manifest_ids: Collection[int], *, reason: str, now: datetime) -> Cancelled:
    """Stop the open work of these manifests and drop wishes for more. The occurrence is consumed: no retry, no letter.

    A row that is dispatched while this waits for it is found as an execution: nothing slips through.
    """
    with transact():
        locked = ManifestState.objects.lock_family(manifest_ids)
        ManifestState.objects.forget_wishes(manifest_ids)
        unqueued = WorkQueue.objects.cancel_queued(manifest_ids, reason=reason)
        ManifestState.objects.filter(manifest__in=unqueued).update(
            last_finished_run=now, settled_execution=F("covered_execution")
        )
        ManifestState.objects.note_debts(unqueued)
        pending = list(Metadata.objects.pending().filter(manifest__in=manifest_ids).values_list("id", flat=True))
        ended = record([Finished(id_, Outcome(ExecutionState.CANCELLED)) for id_ in pending], now=now).ended
        running = Metadata.objects.in_progress().filter(manifest__in=manifest_ids, cancel_requested=False)
        told = running.update(cancel_requested=True)
        arm({*unqueued, *find_continuations(unqueued, locked=locked)}, now=now)
    return Cancelled(queued=len(unqueued), pending=len(ended), running=told)
