"""Operator action: remove a manifest.

Reads:  its edges, and what it is due for.
Writes: cancels its queued row; acknowledges its letters for the system; deletes the manifest, its state and its edges;
        the depth of the manifests below it.
Next:   an active run finishes, without retry or letter; its history stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from datetime import datetime

from chainsched.db.chunks import chunks
from chainsched.db.id_in import id_in
from chainsched.domain.states import DeadLetterStatus
from chainsched.flow.announce import announce_letters
from chainsched.flow.run.consume import look_again
from chainsched.flow.run.tokens import TokenLedger, cancel_queued
from chainsched.flow.schedule.depth import children_of, refresh_depths
from chainsched.flow.schedule.edges import follow_removal
from chainsched.flow.transactions import transact
from chainsched.models import DeadLetter, Dependency, JoinState, Manifest, ManifestState, NamedLock
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
    """Remove manifests; their dependents stay, idle, and joins no longer wait for them."""
    with transact():
        # Before any state, as all writers of edges do: the dependents get another depth, and none may be added unseen.
        NamedLock.objects.hold(GRAPH, now=now)
        ManifestState.objects.lock(manifest_ids)
        ledger = TokenLedger()
        cancel_queued(manifest_ids, reason=REASON, ledger=ledger)
        for state in ManifestState.objects.with_due_items(manifest_ids):
            ledger.give_back(state.due_tokens if state.due_has_tokens else ())
        # A join that is gone is decided in all runs that still wait for it.
        ledger.tell(JoinState.objects.waiting().filter(id_in(join_id=manifest_ids)).values_list("id", flat=True))
        letters = DeadLetter.objects.awaiting().filter(manifest__in=manifest_ids)
        announce_letters(dead_letter_resolved, list(letters.values_list("id", flat=True)))
        letters.update(status=DeadLetterStatus.ACKNOWLEDGED, resolved_at=now, note="The manifest was removed.")
        orphans = sorted(set(children_of(manifest_ids)).difference(manifest_ids))
        parents = Dependency.objects.filter(id_in(child=manifest_ids)).values_list("parent_id", flat=True)
        above = set(parents).difference(manifest_ids)
        deleted = Manifest.objects.filter(id__in=manifest_ids).purge()
        follow_removal(above, orphan_ids=orphans)
        refresh_depths(orphans)
        look_again(orphans, ledger=ledger, now=now)
        ledger.write()
    return deleted
