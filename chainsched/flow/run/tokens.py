"""Used by the stages: count open items where joins, and the ends of runs, wait for them.

Reads:  the tokens of rows that are cancelled; otherwise callers bring the tokens.
Writes: JoinNotes, one for each JoinState that a transaction changed something for; cancelled queue rows.
Next:   fold_notes adds the notes up and decides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from chainsched.db import bulk
from chainsched.db.id_in import id_in
from chainsched.db.notify import MANAGER
from chainsched.domain.items import Item
from chainsched.flow.announce import wake
from chainsched.models import JoinNote, WorkQueue


@dataclass(slots=True)
class _Change:
    open: int = 0
    arrived: int = 0
    gated: int = 0
    newest: int = 0
    is_told: bool = False

    @property
    def is_nothing(self) -> bool:
        return not (self.open or self.arrived or self.gated or self.is_told)


@dataclass(slots=True)
class TokenLedger:
    """The changes of one transaction for each JoinState, written once, at its end.

    An item that ends and hands on to another one mostly changes nothing: the sum is zero, and no note is written.
    """

    changes: dict[int, _Change] = field(default_factory=lambda: defaultdict(_Change))

    def take(self, tokens: Iterable[int]) -> None:
        """An item was opened, or has a part again."""
        for token in tokens:
            self.changes[token].open += 1

    def give_back(self, tokens: Iterable[int]) -> None:
        """An item has ended, or has no part for now."""
        for token in tokens:
            self.changes[token].open -= 1

    def replace(self, before: Collection[Item], after: Item) -> None:
        """Items became one, or the part of one came or went."""
        for item in before:
            self.give_back(item.held)
        self.take(after.held)

    def arrive(self, state_id: int, *, execution_id: int, is_gate: bool) -> None:
        """An outcome matched an edge of a join."""
        change = self.changes[state_id]
        change.gated += is_gate
        change.arrived += not is_gate
        change.newest = max(change.newest, execution_id)

    def tell(self, state_ids: Iterable[int]) -> None:
        """Let JoinStates be decided again, although nothing is counted."""
        for state_id in state_ids:
            self.changes[state_id].is_told = True

    def write(self) -> int:
        """Leave the notes; returns how many. The manager is woken if there are any."""
        rows = [
            {
                "state_id": state_id,
                "open": change.open,
                "arrived": change.arrived,
                "gated": change.gated,
                "newest": change.newest,
            }
            for state_id, change in sorted(self.changes.items())
            if not change.is_nothing
        ]
        self.changes.clear()
        bulk.insert(JoinNote, rows)
        if rows:
            wake(MANAGER)
        return len(rows)


def cancel_rows(row_ids: Collection[int], *, reason: str, ledger: TokenLedger) -> list[int]:
    """Cancel waiting rows and give their tokens back; returns those that still waited.

    Read after the write: until then another outcome may be taken over by a row.
    """
    cancelled = WorkQueue.objects.cancel_rows(row_ids, reason=reason)
    ledger.give_back(WorkQueue.objects.held_tokens(cancelled))
    return cancelled


def cancel_queued(manifest_ids: Collection[int], *, reason: str, ledger: TokenLedger) -> list[int]:
    """Cancel the waiting rows of manifests; returns those with a row that waited. The caller holds their states."""
    rows = dict(WorkQueue.objects.queued().filter(id_in(manifest=manifest_ids)).values_list("id", "manifest_id"))
    return [rows[id_] or 0 for id_ in cancel_rows(rows, reason=reason, ledger=ledger)]
