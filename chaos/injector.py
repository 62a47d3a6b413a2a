"""Causes the faults of a run at their times, and ends those that last."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from chaos import processes
from chaos.bystanders import Bystanders
from chaos.faults import BYSTANDERS, Fault
from chaos.fleet import SCHEDULER, WORKER, Fleet, Freeze, Member
from chaos.servers import Postgres


class Ending(NamedTuple):
    """The monotonic time at which a fault is over, how to end it, and whether the database has to reply for that."""

    at: float
    end: Callable[[], None]
    needs_database: bool = False


@dataclass(slots=True)
class Injector:
    """Causes faults, and ends those that last."""

    fleet: Fleet
    postgres: Postgres
    rng: random.Random
    waiting: list[Fault]
    happened: Counter[str] = field(default_factory=Counter)
    bystanders: Bystanders = field(init=False)
    _endings: list[Ending] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bystanders = Bystanders(self.fleet, self.rng)

    @property
    def is_done(self) -> bool:
        return not self.waiting and not self._endings

    def turn(self, *, elapsed: float) -> None:
        """End the faults that have lasted long enough, and cause those that are due."""
        now = time.monotonic()
        for ending in [ending for ending in self._endings if ending.at <= now]:
            # This thread also resumes a server that is paused, so that it must not wait for its reply.
            if not (ending.needs_database and self.postgres.is_paused):
                self._end(ending)
        while self.waiting and self.waiting[0].at <= elapsed and not self.postgres.is_paused:
            fault = self.waiting[0]
            if not self._inject(fault):
                # There is no target just now, as when all processes of a kind are starting.
                self.waiting[0] = replace(fault, at=elapsed + 0.5)
                return
            self.waiting.pop(0)
            self.happened[f"{fault.kind} {fault.victim}".strip()] += 1

    def end_all(self) -> None:
        """Cause no further fault, and end those that last."""
        self.waiting.clear()
        while self._endings:
            # The server is resumed before it is asked.
            self._end(min(reversed(self._endings), key=lambda ending: ending.needs_database))

    def _end(self, ending: Ending) -> None:
        """End a fault; if the database is away and that raises, it is ended by a later call."""
        ending.end()
        self._endings.remove(ending)

    def _inject(self, fault: Fault) -> bool:
        is_disturbing = fault.kind not in BYSTANDERS and fault.victim != "child"
        if (is_disturbing and self.bystanders.are_lasting) or not self._begin(fault):
            return False
        if is_disturbing:
            self.bystanders.note_disturbance(until=time.monotonic() + fault.seconds)
        return True

    def _begin(self, fault: Fault) -> bool:
        match fault.kind:
            case "kill":
                return self._kill(fault.victim)
            case "freeze":
                return self._freeze(fault)
            case "restart":
                self.postgres.restart(fault.victim)
            case "pause":
                self.postgres.pause()
                self._endings.append(Ending(time.monotonic() + fault.seconds, self.postgres.resume))
            case "terminate":
                self.postgres.terminate_some(self.rng)
            case kind if kind in BYSTANDERS:
                end = self.bystanders.begin(fault)
                if end is None:
                    return False
                self._endings.append(Ending(time.monotonic() + fault.seconds, end, needs_database=True))
        return True

    def _kill(self, victim: str) -> bool:
        member = self._choose(victim)
        if member is None:
            return False
        if victim != "child":
            self.fleet.kill(member)
            return True
        children = processes.workers_below(member.pid)
        if children:
            processes.send(signal.SIGKILL, [self.rng.choice(sorted(children))])
        return bool(children)

    def _freeze(self, fault: Fault) -> bool:
        member = self._choose(fault.victim)
        if member is None:
            return False
        below = processes.family(member.pid) if fault.victim == "family" else []
        member.is_frozen = True
        since = time.monotonic()
        processes.send(signal.SIGSTOP, [member.pid, *below])

        def thaw() -> None:
            member.is_frozen = False
            self.fleet.freezes.append(Freeze(member.name, since, time.monotonic()))
            processes.send(signal.SIGCONT, [*below, member.pid])

        self._endings.append(Ending(since + fault.seconds, thaw))
        return True

    def _choose(self, victim: str) -> Member | None:
        """A random process of this kind that is not frozen."""
        candidates = self.fleet.of(SCHEDULER if victim == "scheduler" else WORKER)
        return self.rng.choice(candidates) if candidates else None
