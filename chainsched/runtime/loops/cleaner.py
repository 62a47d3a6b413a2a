"""The loop that rolls up statistics and removes history: one page a turn, from the oldest to the newest, repeatedly."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from chainsched.flow.maintain.clean import clean, policy
from chainsched.flow.maintain.roll_up import BATCH, roll_up
from chainsched.runtime.loops.poller import Turn


class Cleaner:
    """Remembers the last row it checked, so that rows that are kept are not checked again in every turn."""

    def __init__(self) -> None:
        self._after = 0

    def turn(self, now: datetime) -> Turn:
        """Roll up a batch and clean one page; after a removal the next turn follows at once."""
        has_more_to_roll_up = roll_up(now=now) == BATCH
        rules = policy()
        if rules.is_off:
            return Turn(has_more=has_more_to_roll_up)
        cleaned = clean(rules, now=now, after=self._after)
        self._after = cleaned.last_id if cleaned.has_more else 0
        removed = cleaned.removed.total()
        return Turn(did=removed, has_more=has_more_to_roll_up or (cleaned.has_more and removed > 0))


def make_turn() -> Callable[[datetime], Turn]:
    """The turns of one process."""
    return Cleaner().turn
