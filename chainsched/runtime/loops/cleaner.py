"""The loop that folds statistics and removes history: one page a turn, from the oldest to the newest and over again."""

from __future__ import annotations

from datetime import datetime

from chainsched.flow.maintain.clean import clean, policy
from chainsched.flow.maintain.roll_up import BATCH, roll_up
from chainsched.runtime.loops.poller import Turn


class Cleaner:
    """Remembers how far it has come, so that what is kept is not looked at anew in every turn."""

    def __init__(self) -> None:
        self._after = 0

    def turn(self, now: datetime) -> Turn:
        """Fold a batch and clean one page; where something was removed there is more to do at once."""
        has_more_to_roll_up = roll_up(now=now) == BATCH
        rules = policy()
        if rules.is_off:
            return Turn(has_more=has_more_to_roll_up)
        cleaned = clean(rules, now=now, after=self._after)
        self._after = cleaned.last_id if cleaned.has_more else 0
        removed = cleaned.removed.total()
        return Turn(did=removed, has_more=has_more_to_roll_up or (cleaned.has_more and removed > 0))
