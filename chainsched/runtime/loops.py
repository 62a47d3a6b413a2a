"""The loops of a process: which there are, how often each turns, and whom its turn wakes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime

from chainsched.conf import get_config
from chainsched.flow.verify import reconcile
from chainsched.models.clock import database_now
from chainsched.runtime import clerk, job_dispatcher, manifest_manager
from chainsched.runtime.cleaner import Cleaner
from chainsched.runtime.poller import Poller, Turn
from chainsched.runtime.reaper import Reaper

# The order is that of the flow, so that one round of turns carries a due job to its worker.
LOOPS = ("reaper", "reconciler", "cleaner", "clerk", "manager", "dispatcher")
# No loop of its own accord: it comes and goes with the lease of its process.
WORKER = "worker"
# Whose turn may find something new after whose turn did something.
WAKES = {
    "reaper": ("dispatcher", "manager"),
    "reconciler": ("manager",),
    "cleaner": (),
    "clerk": ("manager", "dispatcher"),
    "manager": ("dispatcher",),
    "dispatcher": (WORKER,),
    WORKER: ("manager", "dispatcher"),
}


class Loops:
    """The loops that one process turns, each in a thread of its own."""

    def __init__(
        self, names: Collection[str], *, after: Callable[[str, Turn], None], on_death: Callable[[], None]
    ) -> None:
        turns: dict[str, Callable[[datetime], Turn]] = {
            "reaper": Reaper().turn,
            "reconciler": _reconcile,
            "cleaner": Cleaner().turn,
            "clerk": clerk.turn,
            "manager": manifest_manager.turn,
            "dispatcher": job_dispatcher.turn,
        }
        self._turns = {name: turns[name] for name in LOOPS if name in names}
        self._pollers = {
            name: poller_for(name, turn, after=after, on_death=on_death) for name, turn in self._turns.items()
        }

    @property
    def names(self) -> list[str]:
        return list(self._turns)

    def start(self) -> None:
        for poller in self._pollers.values():
            poller.start()

    def turn_once(self) -> None:
        """Take one turn of each, here and now."""
        for turn in self._turns.values():
            turn(database_now())

    def turned_at(self) -> dict[str, datetime]:
        """When each loop took its last turn, of those that took one."""
        return {name: poller.turned_at for name, poller in self._pollers.items() if poller.turned_at is not None}

    def wake(self, name: str) -> None:
        """Let a loop take its next turn now, if this process has it."""
        if name in self._pollers:
            self._pollers[name].wake()

    def stop(self) -> None:
        """Take no further turn; returns at once, ``join`` waits."""
        for poller in self._pollers.values():
            poller.stop()

    def join(self, timeout: float) -> None:
        """Wait for the turns under way, so long for each."""
        for poller in self._pollers.values():
            poller.join(timeout)


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
        "clerk": config.clerk_interval,
        WORKER: config.worker_interval,
    }[name]


def _reconcile(now: datetime) -> Turn:
    return Turn(did=reconcile(now=now))
