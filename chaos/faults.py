"""The faults of a run and their times: drawn from a seed, so that a run can be repeated."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from chaos import processes
from chaos.fleet import SCHEDULER, WORKER, Fleet, Freeze, Member
from chaos.servers import Postgres

# The targets of kills, by weight: a child that runs jobs, the supervisor of children, a scheduler.
KILLED = {"child": 6, "supervisor": 3, "scheduler": 1}
# The targets of freezes, by weight: the supervisor alone, so that its children go on, with them, or a scheduler.
FROZEN = {"supervisor": 2, "family": 2, "scheduler": 1}


@dataclass(frozen=True, slots=True)
class Amounts:
    """The number of faults of each kind."""

    kills: int = 0
    freezes: int = 0
    restarts: int = 0
    pauses: int = 0
    terminations: int = 0

    def by_kind(self) -> dict[str, int]:
        """The same, by the names of the faults."""
        return {
            "kill": self.kills,
            "freeze": self.freezes,
            "restart": self.restarts,
            "pause": self.pauses,
            "terminate": self.terminations,
        }


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault and the second of the run at which it happens."""

    at: float
    kind: str
    victim: str = ""
    seconds: float = 0


def draw(
    amounts: Amounts,
    *,
    seconds: float,
    expiry: float,
    rng: random.Random,
    killed: Mapping[str, int] = KILLED,
    frozen: Mapping[str, int] = FROZEN,
) -> list[Fault]:
    """The faults of a run that lasts so many seconds, in their order.

    A freeze lasts longer than the lease; a pause of the server may be shorter or longer than it.
    """

    def moment() -> float:
        return rng.uniform(0.05, 0.95) * seconds

    faults = [Fault(moment(), "kill", victim=_one_of(killed, rng)) for _ in range(amounts.kills)]
    faults += [
        Fault(moment(), "freeze", victim=_one_of(frozen, rng), seconds=expiry + rng.uniform(1, 3))
        for _ in range(amounts.freezes)
    ]
    faults += [
        Fault(moment(), "restart", victim="fast" if number % 2 else "immediate") for number in range(amounts.restarts)
    ]
    faults += [Fault(moment(), "pause", seconds=rng.choice((0.3, 1.5)) * expiry) for _ in range(amounts.pauses)]
    faults += [Fault(moment(), "terminate") for _ in range(amounts.terminations)]
    return sorted(faults, key=lambda fault: fault.at)


def _one_of(weights: Mapping[str, int], rng: random.Random) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]


@dataclass(slots=True)
class Injector:
    """Causes faults, and ends those that last."""

    fleet: Fleet
    postgres: Postgres
    rng: random.Random
    waiting: list[Fault]
    happened: Counter[str] = field(default_factory=Counter)
    _endings: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        return not self.waiting and not self._endings

    def turn(self, *, elapsed: float) -> None:
        """End the faults that have lasted long enough, and cause those that are due."""
        now = time.monotonic()
        over = [end for at, end in self._endings if at <= now]
        self._endings = [(at, end) for at, end in self._endings if at > now]
        for end in over:
            end()
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
            _, end = self._endings.pop()
            end()

    def _inject(self, fault: Fault) -> bool:
        match fault.kind:
            case "kill":
                return self._kill(fault.victim)
            case "freeze":
                return self._freeze(fault)
            case "restart":
                self.postgres.restart(fault.victim)
            case "pause":
                self.postgres.pause()
                self._endings.append((time.monotonic() + fault.seconds, self.postgres.resume))
            case "terminate":
                self.postgres.terminate_some(self.rng)
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

        self._endings.append((since + fault.seconds, thaw))
        return True

    def _choose(self, victim: str) -> Member | None:
        """A random process of this kind that is not frozen."""
        candidates = self.fleet.of(SCHEDULER if victim == "scheduler" else WORKER)
        return self.rng.choice(candidates) if candidates else None
