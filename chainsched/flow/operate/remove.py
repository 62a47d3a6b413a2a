"""Operator action: remove a manifest.

Reads:  its edges, and the item that it is due for.
Writes: cancels its queued row; acknowledges its letters for the system; deletes the manifest, its state and its edges;
        the depth of the manifests below it.
Next:   an active run finishes, without retry or letter; its history stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from chainsched.db.chunks import chunks
from chainsched.db.id_in import id_in
from chainsched.domain.states import DeadLetterStatus
from chainsched.flow.announce import announce_letters
from chainsched.flow.run.consume import look_again
from chainsched.flow.run.tokens import TokenLedger, cancel_queued
from chainsched.flow.schedule.depth import children_of, refresh_depths
from chainsched.flow.schedule.edges import follow_removal
from chainsched.flow.transactions import persist_patiently, transact, wait_briefly
from chainsched.models import DeadLetter, Dependency, JoinState, Manifest, ManifestState, NamedLock
from chainsched.models.named_lock import GRAPH
from chainsched.signals import dead_letter_resolved

REASON = "removed"


def remove_all(manifest_ids: Collection[int], *, now: datetime) -> tuple[int, dict[str, int]]:
    """Remove any number of manifests in one transaction; returns the number of deleted rows, in total and by kind."""

    def write() -> tuple[int, dict[str, int]]:
        removed, kinds = 0, Counter[str]()
        with transact():
            # Before any state, as all writers of edges do: the dependents get another depth, and none may be added
            # unseen.
            NamedLock.objects.hold(GRAPH, now=now)
            wait_briefly()
            # All of them before any other row of one of them.
            ManifestState.objects.lock(manifest_ids)
            for part in chunks(sorted(set(manifest_ids))):
                number, deleted = _remove(part, now=now)
                removed += number
                kinds.update(deleted)
        return removed, dict(kinds)

    return persist_patiently(write)


def remove_free(
    manifest_ids: Collection[int], *, among: Callable[[Sequence[int]], Sequence[int]], now: datetime
) -> int:
    """Remove those of these that no other transaction holds; returns how many. The others can be removed later.

    ``among`` says which of them are to be removed still, now that they are locked.
    """
    with transact():
        NamedLock.objects.hold(GRAPH, now=now)
        wanted = among(ManifestState.objects.lock_free(manifest_ids))
        _remove(wanted, now=now)
    return len(wanted)


def _remove(manifest_ids: Sequence[int], *, now: datetime) -> tuple[int, dict[str, int]]:
    """Remove manifests with locked states; their dependents stay, idle, and joins no longer wait for them."""
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
