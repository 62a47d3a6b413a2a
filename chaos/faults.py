"""The faults of a run and their times: drawn from a seed, so that a run can be repeated."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

# The targets of kills, by weight: a child that runs jobs, the supervisor of children, a scheduler.
KILLED = {"child": 6, "supervisor": 3, "scheduler": 1}
# The targets of freezes, by weight: the supervisor alone, so that its children go on, with them, or a scheduler.
FROZEN = {"supervisor": 2, "family": 2, "scheduler": 1}
# Faults that are none of the engine's, and so hold up no job: each lasts for so many leases.
BYSTANDERS = ("receiver", "hold", "refuse")
BYSTANDER_LEASES = 3


@dataclass(frozen=True, slots=True)
class Amounts:
    """The number of faults of each kind."""

    kills: int = 0
    freezes: int = 0
    restarts: int = 0
    pauses: int = 0
    terminations: int = 0
    receivers: int = 0
    holds: int = 0
    refusals: int = 0

    def by_kind(self) -> dict[str, int]:
        """The same, by the names of the faults."""
        return {
            "kill": self.kills,
            "freeze": self.freezes,
            "restart": self.restarts,
            "pause": self.pauses,
            "terminate": self.terminations,
            "receiver": self.receivers,
            "hold": self.holds,
            "refuse": self.refusals,
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

    A freeze lasts longer than others take to find that the lease has run out; a pause of the server may be shorter or
    longer than the lease. Slow receivers, open transactions and refused rows come together, as others wait for them,
    and early enough to end while jobs come due.
    """

    def moment() -> float:
        return rng.uniform(0.05, 0.95) * seconds

    faults = [Fault(moment(), "kill", victim=_one_of(killed, rng)) for _ in range(amounts.kills)]
    faults += [
        Fault(moment(), "freeze", victim=_one_of(frozen, rng), seconds=expiry + rng.uniform(2, 4))
        for _ in range(amounts.freezes)
    ]
    faults += [
        Fault(moment(), "restart", victim="fast" if number % 2 else "immediate") for number in range(amounts.restarts)
    ]
    faults += [Fault(moment(), "pause", seconds=rng.choice((0.3, 1.5)) * expiry) for _ in range(amounts.pauses)]
    faults += [Fault(moment(), "terminate") for _ in range(amounts.terminations)]
    lasting = {"receiver": amounts.receivers, "hold": amounts.holds, "refuse": amounts.refusals}
    at, lasts = rng.uniform(0.05, 0.4) * seconds, BYSTANDER_LEASES * expiry
    faults += [Fault(at, kind, seconds=lasts) for kind, number in lasting.items() for _ in range(number)]
    return sorted(faults, key=lambda fault: fault.at)


def _one_of(weights: Mapping[str, int], rng: random.Random) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]
