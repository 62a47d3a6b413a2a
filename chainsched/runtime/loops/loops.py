"""The loops of a process: which there are, how often each turns, and whom its turn wakes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from datetime import datetime

from chainsched.conf import get_config
from chainsched.db.clock import database_now
from chainsched.flow.maintain.fsck import reconcile
from chainsched.runtime.loops import bulk_decisions, dispatcher, manager
from chainsched.runtime.loops.cleaner import Cleaner
from chainsched.runtime.loops.poller import Poller, Turn
from chainsched.runtime.loops.reaper import Reaper
from chainsched.runtime.support.deadlines import seconds_until

# The order is that of the flow, so that one round of turns carries a due job to its worker.
LOOPS = ("reaper", "reconciler", "cleaner", "bulk_decisions", "manager", "dispatcher")
# Of each loop, when all are to take a turn in one go.
MAX_TURNS = 1000
# No loop of its own accord: it comes and goes with the lease of its process.
WORKER = "worker"
# Whose turn may find something new after whose turn did something.
WAKES = {
    "reaper": ("dispatcher", "manager"),
    "reconciler": ("manager",),
    "cleaner": (),
    "bulk_decisions": ("manager", "dispatcher"),
    "manager": ("dispatcher",),
    "dispatcher": (WORKER,),
    WORKER: ("manager", "dispatcher"),
}


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
            turn = _turn_of(name)
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
        """Let others take the place of loops that have waited for the database for so many seconds; says of which.

        A connection that is dead without knowing it never answers. What hangs takes no turn after this one.
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
        return poller_for(name, _turn_of(name), after=self._after, on_death=self._on_death)


def _turn_of(name: str) -> Callable[[datetime], Turn]:
    """What a loop does; some remember things from turn to turn."""
    turns: dict[str, Callable[[datetime], Turn]] = {
        "reaper": Reaper().turn,
        "reconciler": _reconcile,
        "cleaner": Cleaner().turn,
        "bulk_decisions": bulk_decisions.turn,
        "manager": manager.turn,
        "dispatcher": dispatcher.turn,
    }
    return turns[name]


def poller_for(
    name: str, turn: Callable[[datetime], Turn], *, after: Callable[[str, Turn], None], on_death: Callable[[], None]
) -> Poller:
    """A loop that turns as often as the settings say."""
    return Poller(name, turn, interval=_interval_of(name), after=lambda turn: after(name, turn), on_death=on_death)


def _interval_of(name: str) -> float:
    config = get_config()
    return {
        "manager": config.manager_interval,
        "dispatcher": config.dispatcher_interval,
        "reaper": config.reap_interval,
        "reconciler": config.reconcile_interval,
        "cleaner": config.cleanup_interval,
        "bulk_decisions": config.bulk_decisions_interval,
        WORKER: config.worker_interval,
    }[name]


def _reconcile(now: datetime) -> Turn:
    return Turn(did=reconcile(now=now))
