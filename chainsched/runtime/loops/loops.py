"""The loops of one process: starts, wakes, replaces and stops them, each in a thread of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from datetime import datetime
from importlib import import_module
from typing import cast

from chainsched.conf import get_config
from chainsched.db.clock import database_now
from chainsched.domain.loops import LOOPS, TURNING
from chainsched.runtime.loops.poller import Poller, Turn
from chainsched.runtime.support.deadlines import seconds_until

# Of each loop, when all are to take a turn in one go.
MAX_TURNS = 1000

TurnFunction = Callable[[datetime], Turn]


def make_turn(name: str) -> TurnFunction:
    """The function that takes the turns of a loop, from the module of its name; some remember facts between turns."""
    module = import_module(f"chainsched.runtime.loops.{name}")
    return cast("TurnFunction", module.make_turn())


class Loops:
    """The loops that one process turns, each in a thread of its own."""

    def __init__(
        self, names: Collection[str], *, after: Callable[[str, Turn], None], on_death: Callable[[], None]
    ) -> None:
        self._after = after
        self._on_death = on_death
        self._pollers = {name: self._new_poller(name) for name in LOOPS if name in names}

    @property
    def names(self) -> list[str]:
        return list(self._pollers)

    def start(self) -> None:
        for poller in self._pollers.values():
            poller.start()

    def turn_once(self) -> None:
        """Take one turn of each, here and now, and further ones while there is more to do right away."""
        for name in self._pollers:
            turn = make_turn(name)
            for _ in range(MAX_TURNS):
                if not turn(database_now()).has_more:
                    break

    def turned_at(self) -> dict[str, datetime]:
        """When each loop took its last turn, of those that took one."""
        return {name: poller.turned_at for name, poller in self._pollers.items() if poller.turned_at is not None}

    def wake(self, name: str) -> None:
        """Let a loop take its next turn now, if this process has it."""
        if name in self._pollers:
            self._pollers[name].wake()

    def renew_hung(self, *, after: float) -> list[str]:
        """Replace the loops that have waited for the database for so many seconds; returns their names.

        A connection never answers if its other end is gone without notice. A replaced loop takes no further turn.
        """
        hung = [name for name, poller in self._pollers.items() if poller.is_hung(after)]
        for name in hung:
            self._pollers[name].stop()
            self._pollers[name] = self._new_poller(name)
            self._pollers[name].start()
        return hung

    def stop(self) -> None:
        """Take no further turn; returns at once, ``join`` waits."""
        for poller in self._pollers.values():
            poller.stop()

    def join(self, timeout: float) -> None:
        """Wait for the turns under way, so long for all of them together."""
        deadline = time.monotonic() + timeout
        for poller in self._pollers.values():
            poller.join(seconds_until(deadline))

    def _new_poller(self, name: str) -> Poller:
        return poller_for(name, make_turn(name), after=self._after, on_death=self._on_death)


def poller_for(
    name: str, turn: TurnFunction, *, after: Callable[[str, Turn], None], on_death: Callable[[], None]
) -> Poller:
    """A loop that turns as often as the settings say."""
    return Poller(
        name,
        turn,
        interval=getattr(get_config(), TURNING[name].interval),
        after=lambda turn: after(name, turn),
        on_death=on_death,
    )
