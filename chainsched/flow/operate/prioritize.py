"""Beside the stages: somebody lets a row of the queue go before the others.

Reads:  whose row it is.
Writes: its place in the queue.
Next:   the dispatcher.
"""

from __future__ import annotations

from chainsched.flow.transactions import transact
from chainsched.models import ManifestState, WorkQueue


def prioritize(row_id: int) -> bool:
    """Put a waiting row first of its priority, whatever it was to wait for; False if it waits no longer.

    As after a trigger, it runs although its manifest is disabled. Limits and a disabled group still hold it.
    """
    with transact():
        ManifestState.objects.lock(WorkQueue.objects.manifest_of(row_id))
        return WorkQueue.objects.put_first(row_id)
