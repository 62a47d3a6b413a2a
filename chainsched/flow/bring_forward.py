"""Beside the stages: somebody lets a row of the queue go before the others.

Reads:  whose row it is.
Writes: its place in the queue.
Next:   the dispatcher.
"""

from __future__ import annotations

from chainsched.flow.transact import transact
from chainsched.models import ManifestState, WorkQueue


def bring_forward(row_id: int) -> bool:
    """Put a waiting row first of its priority, whatever it was to wait for; False if it waits no longer.

    As after a trigger, it runs although its manifest is disabled. Limits and a disabled group still hold it.
    """
    with transact():
        owners = WorkQueue.objects.filter(id=row_id, manifest__isnull=False).values_list("manifest_id", flat=True)
        ManifestState.objects.lock([id_ for id_ in owners if id_ is not None])
        return WorkQueue.objects.put_first(row_id)
