"""Operator action: enable and disable manifests and groups.

Reads:  their dependents and members.
Writes: ``is_enabled``, and the alarms of all manifests that start or stop with it.
Next:   the manager; dispatch, for rows that waited.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from chainsched.db.chunks import chunks
from chainsched.db.notify import DISPATCHER
from chainsched.flow.announce import wake
from chainsched.flow.run.alarm import arm
from chainsched.flow.run.consume import look_again
from chainsched.flow.run.park import release_enabled
from chainsched.flow.run.tokens import TokenLedger
from chainsched.flow.transactions import transact
from chainsched.models import Manifest, ManifestGroup, ManifestState


def enable(manifest_ids: Collection[int], *, now: datetime) -> int:
    """Let manifests run again, from now: missed occurrences do not run. Returns how many were disabled."""
    return _switch(manifest_ids, is_enabled=True, now=now)


def disable(manifest_ids: Collection[int], *, now: datetime) -> int:
    """Let manifests run only when triggered; a row that waits stays. Returns how many were enabled."""
    return _switch(manifest_ids, is_enabled=False, now=now)


def enable_group(group_id: int, *, now: datetime) -> bool:
    """Let a group's manifests run again, from now; False if the group was enabled already."""
    return _switch_group(group_id, is_enabled=True, now=now)


def disable_group(group_id: int, *, now: datetime) -> bool:
    """Stop queueing and dispatching manifests of a group; False if it was disabled already."""
    return _switch_group(group_id, is_enabled=False, now=now)


def _switch(manifest_ids: Collection[int], *, is_enabled: bool, now: datetime) -> int:
    with transact():
        ManifestState.objects.lock(manifest_ids)
        rows = Manifest.objects.filter(id__in=manifest_ids, is_enabled=not is_enabled)
        switched = list(rows.values_list("id", flat=True))
        Manifest.objects.filter(id__in=switched).update(is_enabled=is_enabled)
        ledger = TokenLedger()
        arm(switched, now=now, is_fresh=is_enabled, ledger=ledger)
        # Plain dependents start and stop with their parent; their states are not waited for.
        dependents = Manifest.objects.plain_dependents_of(switched)
        look_again([id_ for id_ in dependents if id_ not in switched], ledger=ledger, now=now)
        ledger.write()
        if is_enabled and switched:
            release_enabled(switched)
            wake(DISPATCHER)
    return len(switched)


def _switch_group(group_id: int, *, is_enabled: bool, now: datetime) -> bool:
    with transact():
        # First, so that no concurrent transaction adds a member unseen with an alarm for the old value.
        group = ManifestGroup.objects.filter(id=group_id, is_enabled=not is_enabled)
        if not group.update(is_enabled=is_enabled):
            return False
        members = list(Manifest.objects.filter(group=group_id).order_by("id").values_list("id", flat=True))
        ManifestState.objects.lock(members)
        for part in chunks(members):
            arm(part, now=now, is_fresh=is_enabled)
        if is_enabled:
            release_enabled(members)
            wake(DISPATCHER)
    return True
