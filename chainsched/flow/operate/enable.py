"""Beside the stages: switch manifests and groups on and off.

Reads:  who depends on them.
Writes: the switches, and the alarms of everything that starts or stops with them.
Next:   the manager.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from chainsched.db.chunks import chunks
from chainsched.flow.run.alarm import arm
from chainsched.flow.transactions import transact
from chainsched.models import Manifest, ManifestGroup, ManifestState


def enable(manifest_ids: Collection[int], *, now: datetime) -> int:
    """Let manifests run again, from now: what they missed is not made up for. Returns how many were off."""
    return _switch(manifest_ids, is_enabled=True, now=now)


def disable(manifest_ids: Collection[int], *, now: datetime) -> int:
    """Let manifests run only when triggered in person; a row that waits stays. Returns how many were on."""
    return _switch(manifest_ids, is_enabled=False, now=now)


def enable_group(group_id: int, *, now: datetime) -> bool:
    """Let a group's manifests run again, from now; False if they could already."""
    return _switch_group(group_id, is_enabled=True, now=now)


def disable_group(group_id: int, *, now: datetime) -> bool:
    """Let nothing of a group be queued or dispatched; False if it was off already."""
    return _switch_group(group_id, is_enabled=False, now=now)


def _switch(manifest_ids: Collection[int], *, is_enabled: bool, now: datetime) -> int:
    with transact():
        locked = ManifestState.objects.lock_family(manifest_ids)
        rows = Manifest.objects.filter(id__in=manifest_ids, is_enabled=not is_enabled)
        switched = list(rows.values_list("id", flat=True))
        Manifest.objects.filter(id__in=switched).update(is_enabled=is_enabled)
        ManifestState.objects.note_outstanding_parts(switched)
        arm(switched, now=now, is_fresh=is_enabled)
        arm(set(locked) - set(manifest_ids), now=now)
    return len(switched)


def _switch_group(group_id: int, *, is_enabled: bool, now: datetime) -> bool:
    with transact():
        # First of all, so that nobody joins the group unseen with an alarm for the switch as it was.
        group = ManifestGroup.objects.filter(id=group_id, is_enabled=not is_enabled)
        if not group.update(is_enabled=is_enabled):
            return False
        members = list(Manifest.objects.filter(group=group_id).order_by("id").values_list("id", flat=True))
        ManifestState.objects.lock(members)
        for part in chunks(members):
            arm(part, now=now, is_fresh=is_enabled)
    return True
