"""Operator action: move a row to the front of the queue.

Reads:  the manifest of the row, and whether it is enabled.
Writes: its place in the queue.
Next:   dispatch.
"""

from __future__ import annotations

from datetime import datetime

from chainsched.db.notify import DISPATCHER
from chainsched.flow.announce import wake
from chainsched.flow.run.alarm import arm
from chainsched.flow.transactions import transact
from chainsched.models import Manifest, ManifestState, WorkQueue


def prioritize(row_id: int, *, now: datetime) -> bool:
    """Put a waiting row first of its priority, without its delay; False if it waits no longer.

    As after a trigger, it runs even if its manifest is disabled. Limits and a disabled group still apply.
    """
    with transact():
        owner_ids = ManifestState.objects.lock(WorkQueue.objects.manifest_of(row_id))
        is_enabled = not Manifest.objects.filter(id__in=owner_ids, is_enabled=False).exists()
        is_moved = WorkQueue.objects.put_first(row_id, is_enabled=is_enabled)
        # An operator asks for it now, so that joins wait for it although its manifest is disabled.
        arm(owner_ids, now=now)
        if is_moved:
            wake(DISPATCHER)
    return is_moved
