"""Operator action: change the limit, the priority and the queue of a group.

Reads:  the group and its members.
Writes: the group's limit, priority and queue; the queue places of its waiting rows.
Next:   dispatch.
"""

from __future__ import annotations

from typing import Any

from chainsched.db.chunks import chunks
from chainsched.db.notify import DISPATCHER
from chainsched.flow.announce import wake
from chainsched.flow.run.enqueue import rerank
from chainsched.flow.transactions import transact
from chainsched.models import Manifest, ManifestGroup, ManifestState


def set_group_limits(group_id: int, *, max_active_jobs: int | None, priority: int, queue: str | None = None) -> bool:
    """Set a group's limit, priority and, if given, queue; waiting rows move. False if nothing changed."""
    with transact():
        # The group before its members' states: all transactions that change a group lock in this order.
        columns: dict[str, Any] = {"max_active_jobs": max_active_jobs, "priority": priority}
        if queue is not None:
            columns["queue"] = queue
        if not ManifestGroup.objects.filter(id=group_id).exclude(**columns).update(**columns):
            return False
        members = list(Manifest.objects.filter(group=group_id).order_by("id").values_list("id", flat=True))
        ManifestState.objects.lock(members)
        for part in chunks(members):
            rerank(part)
        wake(DISPATCHER)
    return True
