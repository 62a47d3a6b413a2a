"""Operator action: remove a manifest.

Reads:  its family of manifests, to lock and re-arm them.
Writes: cancels its queued row; acknowledges its letters for the system; deletes the manifest and its state; the depth
        of the manifests below it.
Next:   an active run finishes, without retry or letter; its history stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from datetime import datetime

from chainsched.db.chunks import chunks
from chainsched.domain.states import DeadLetterStatus
from chainsched.flow.announce import announce_letters
from chainsched.flow.run.alarm import arm
from chainsched.flow.schedule.depth import make_roots
from chainsched.flow.transactions import transact
from chainsched.models import DeadLetter, Manifest, ManifestState, NamedLock, WorkQueue
from chainsched.models.named_lock import GRAPH
from chainsched.signals import dead_letter_resolved

REASON = "removed"


def remove_all(manifest_ids: Collection[int], *, now: datetime) -> tuple[int, dict[str, int]]:
    """Remove any number of manifests in one transaction; returns the number of deleted rows, in total and by kind."""
    removed, kinds = 0, Counter[str]()
    with transact():
        for part in chunks(sorted(set(manifest_ids))):
            number, deleted = remove(part, now=now)
            removed += number
            kinds.update(deleted)
    return removed, dict(kinds)


def remove(manifest_ids: Collection[int], *, now: datetime) -> tuple[int, dict[str, int]]:
    """Remove manifests; their dependents stay, idle, and continuations among their siblings no longer wait for them."""
    with transact():
        # Before any state, as all writers of edges do: the dependents get another depth, and none may be added unseen.
        NamedLock.objects.hold(GRAPH, now=now)
        locked = ManifestState.objects.lock_family(manifest_ids)
        continuations = list(Manifest.objects.continuations_after(manifest_ids).values_list("id", flat=True))
        WorkQueue.objects.cancel_queued(manifest_ids, reason=REASON)
        letters = DeadLetter.objects.awaiting().filter(manifest__in=manifest_ids)
        announce_letters(dead_letter_resolved, list(letters.values_list("id", flat=True)))
        letters.update(status=DeadLetterStatus.ACKNOWLEDGED, resolved_at=now, note="The manifest was removed.")
        children = Manifest.objects.filter(depends_on__in=manifest_ids).exclude(id__in=manifest_ids)
        orphans = list(children.order_by("id").values_list("id", flat=True))
        deleted = Manifest.objects.filter(id__in=manifest_ids).purge()
        make_roots(orphans)
        left = {*locked, *continuations} - set(manifest_ids)
        ManifestState.objects.note_outstanding_parts(left)
        arm(left, now=now)
    return deleted
