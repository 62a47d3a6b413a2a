"""Beside the stages: fold the roll-up of history into one row a kind and hour, and let go what is too old.

Reads:  tallies that record appended.
Writes: the folded tallies in their place.
Next:   people, on the overview.
"""

from __future__ import annotations

from datetime import datetime

from chainsched.domain.tallies import KEPT_FOR
from chainsched.flow.transact import transact
from chainsched.models import Tally

BATCH = 5000


def fold(*, now: datetime) -> int:
    """Fold a batch and remove one of old rows; returns how many were folded, BATCH if there may be more."""
    with transact():
        old = Tally.objects.filter(hour__lt=now - KEPT_FOR).order_by("hour")
        Tally.objects.filter(id__in=list(old.values_list("id", flat=True)[:BATCH])).delete()
        return Tally.objects.fold(limit=BATCH)
