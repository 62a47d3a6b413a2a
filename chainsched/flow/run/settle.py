"""Part of the manager's turn: deal with all notes that are there, of joins and of dependents, until none is free.

Reads:  through fold_notes and consume, the notes.
Writes: through them, joins and what dependents are due for.
Next:   evaluate queues what is due.
"""

from __future__ import annotations

from datetime import datetime

from chainsched.flow.run.consume import consume
from chainsched.flow.run.fold_notes import fold_notes

# A decision may let another join decide, over as many levels as a graph has; what comes later waits for the next turn.
MAX_ROUNDS = 100


def settle(*, now: datetime) -> int:
    """Fold and consume until nothing is left that is free; returns how many rows were dealt with."""
    settled = 0
    for _ in range(MAX_ROUNDS):
        done = fold_notes(now=now) + consume(now=now)
        if not done:
            break
        settled += done
    return settled
