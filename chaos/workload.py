"""The mixed workload of a run, and the expected result of each of its manifests."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count, cycle

from chainsched import Once
from chainsched.domain.declarations import Options
from chainsched.flow.schedule.declare import Schedules
from chaos import workflows
from chaos.workflows import Nap, Overstay, Poison, Stumble, Wake

# The groups and their limits; jobs are spread over them.
GROUPS: dict[str, int | None] = {"tight": 2, "narrow": 4, "broad": None}
ROUNDS = 3
POISON_RETRIES = 3
OVERSTAY_TIMEOUT = 1
# The failures of poison that leaves its process alive, and of jobs that use the database while it is away.
POISONED = ("MemoryError",)
AWAY = ("OperationalError", "InterfaceError", "AdminShutdown", "ProcessLost")
# How many of each kind there are in about a hundred runs; single naps fill up the rest.
MIX = {
    "chain": 8,
    "fan": 4,
    "dormant": 4,
    "pulse": 1,
    "stumble": 6,
    "overstay": 2,
    "poison": 2,
    "marathon": 1,
    "nap": 20,
}
# Longer than a lease and the time to reap: one that outlives its supervisor overlaps with its next attempt.
MARATHON_SECONDS = 7


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected result of a manifest when no job is left.

    ``runs`` is how often it completes; at least once if it is not exact: several successes of its parent may cause
    one run, and a job that is repeated may activate its children again. ``failures`` are the types of its own
    failures; every job may also be killed or lost with its process.
    """

    manifest: str
    group: str
    runs: int = 1
    is_exact: bool = True
    is_poison: bool = False
    parent: str | None = None
    is_continuation: bool = False
    is_activated: bool = False
    is_too_long: bool = False
    failures: Collection[str] = ()

    @property
    def kind(self) -> str:
        """One of MIX."""
        return self.manifest.partition("-")[0]


@dataclass(slots=True)
class Workload:
    """Declarations to seed, their expected results, and the roots that the harness triggers, with their rounds."""

    schedules: Schedules = field(default_factory=Schedules)
    expected: dict[str, Expected] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """How many runs it comes to, attempts not counted."""
        return sum(item.runs for item in self.expected.values())


def build(
    jobs: int, *, start: datetime, seconds: float, rng: random.Random, poisons: Collection[str], kinds: Collection[str]
) -> Workload:
    """Declare about ``jobs`` runs that come due over ``seconds``.

    ``poisons`` are the ways in which processes may be ended, ``kinds`` those of MIX that take part.
    """
    builder = _Builder(start=start, seconds=seconds, rng=rng, poisons=sorted(poisons))
    for declare in cycle(builder.shuffled(kinds)):
        if builder.workload.size >= jobs:
            return builder.workload
        declare()
    raise ValueError("a workload needs at least one kind of job")


class _Builder:
    """Declares one piece after the other."""

    def __init__(self, *, start: datetime, seconds: float, rng: random.Random, poisons: list[str]) -> None:
        self.workload = Workload()
        self._start = start
        self._seconds = seconds
        self._rng = rng
        self._poisons = poisons
        self._numbers = count(1)
        self._groups = cycle(GROUPS)
        # Long jobs would block the group with the lowest limit for longer than all other jobs take.
        self._roomy_groups = cycle(list(GROUPS)[1:])

    def shuffled(self, kinds: Collection[str]) -> list[Callable[[], None]]:
        """The pieces of about a hundred runs, in random order."""
        pieces: dict[str, Callable[[], None]] = {
            "chain": self.chain,
            "fan": self.fan,
            "dormant": self.dormant,
            "pulse": self.pulse,
            "stumble": self.stumble,
            "overstay": self.overstay,
            "poison": self.poison,
            "marathon": self.marathon,
            "nap": self.nap,
        }
        mixed = [pieces[kind] for kind, number in MIX.items() if kind in kinds for _ in range(number)]
        self._rng.shuffle(mixed)
        return mixed

    def nap(self) -> None:
        """One short job."""
        name, options = self._new("nap")
        self.workload.schedules.schedule(workflows.nap, name, self._nap(), self._once(), **options)

    def stumble(self) -> None:
        """A job that fails a few times."""
        name, options = self._new("stumble", failures=["RuntimeError"])
        job = Stumble(self._rng.randint(1, 3))
        self.workload.schedules.schedule(workflows.stumble, name, job, self._once(), **options)

    def overstay(self) -> None:
        """A job that is stopped once for running too long."""
        name, options = self._new("overstay", failures=["timeout"], is_too_long=True)
        options["timeout"] = OVERSTAY_TIMEOUT
        self.workload.schedules.schedule(workflows.overstay, name, Overstay(1), self._once(), **options)

    def poison(self) -> None:
        """A job that ends its process each time."""
        name, options = self._new("poison", is_poison=True)
        options["max_retries"] = POISON_RETRIES
        self.workload.schedules.schedule(workflows.perish, name, self._poison(), self._once(), **options)

    def marathon(self) -> None:
        """A job that takes longer than it takes to declare a process lost."""
        name, options = self._new("marathon", group=next(self._roomy_groups))
        self.workload.schedules.schedule(workflows.nap, name, Nap(MARATHON_SECONDS), self._once(), **options)

    def chain(self) -> None:
        """A, then B, then C."""
        name, options = self._new("chain")
        chain = self.workload.schedules.schedule(workflows.nap, name, self._nap(), self._once(), **options)
        for letter in "bc":
            below = self._below(name, letter, parent=chain.cursor)
            chain = chain.then_include(workflows.nap, below, self._nap(), **options)

    def fan(self) -> None:
        """A root, three dependents of it, one of them sometimes poison, and a continuation after them."""
        name, options = self._new("fan")
        chain = self.workload.schedules.schedule(workflows.nap, name, self._nap(), self._once(), **options)
        poisoned = self._rng.choice("abcxxxxxxxxx") if self._poisons else "x"
        for letter in "abc":
            below = self._below(name, letter, parent=name, is_poison=letter == poisoned)
            if letter == poisoned:
                limited: Options = {**options, "max_retries": POISON_RETRIES}
                chain = chain.include(workflows.perish, below, self._poison(), **limited)
            else:
                chain = chain.include(workflows.nap, below, self._nap(), **options)
        joined = self._below(name, "joined", parent=name, is_continuation=True)
        chain.include(workflows.nap, joined, self._nap(), fan_in=True, **options)

    def dormant(self) -> None:
        """A job that activates two dormant children."""
        name, options = self._new("dormant", failures=AWAY)
        children = [self._below(name, letter, parent=name, is_exact=False, is_activated=True) for letter in "ab"]
        job = Wake(children, seconds=round(self._rng.uniform(0.1, 2), 3))
        chain = self.workload.schedules.schedule(workflows.wake, name, job, self._once(), **options)
        for child in children:
            chain = chain.include(workflows.nap, child, self._nap(), dormant=True, **options)

    def pulse(self) -> None:
        """A job that is triggered repeatedly, with two dependents and a continuation after them."""
        name, options = self._new("pulse", runs=ROUNDS)
        self.workload.rounds[name] = ROUNDS
        chain = self.workload.schedules.schedule(workflows.nap, name, self._nap(), None, **options)
        for letter in "ab":
            below = self._below(name, letter, parent=name, is_exact=False)
            chain = chain.include(workflows.nap, below, self._nap(), **options)
        joined = self._below(name, "joined", parent=name, is_exact=False, is_continuation=True)
        chain.include(workflows.nap, joined, self._nap(), fan_in=True, **options)

    def _new(
        self,
        kind: str,
        *,
        group: str | None = None,
        runs: int = 1,
        is_poison: bool = False,
        is_too_long: bool = False,
        failures: Collection[str] = (),
    ) -> tuple[str, Options]:
        """Name a root, add its expected result, and give it its group."""
        name, group = f"{kind}-{next(self._numbers)}", group or next(self._groups)
        self.workload.expected[name] = Expected(
            name,
            group,
            runs=runs,
            is_poison=is_poison,
            is_too_long=is_too_long,
            failures=POISONED if is_poison else failures,
        )
        return name, {"group": group, "group_max_active_jobs": GROUPS[group]}

    def _below(
        self,
        root: str,
        suffix: str,
        *,
        parent: str | None,
        is_exact: bool = True,
        is_poison: bool = False,
        is_continuation: bool = False,
        is_activated: bool = False,
    ) -> str:
        """Name a dependent in its root's group and add its expected result."""
        name = f"{root}-{suffix}"
        self.workload.expected[name] = Expected(
            name,
            self.workload.expected[root].group,
            is_exact=is_exact,
            is_poison=is_poison,
            failures=POISONED if is_poison else (),
            parent=parent,
            is_continuation=is_continuation,
            is_activated=is_activated,
        )
        return name

    def _once(self) -> Once:
        return Once(self._start + timedelta(seconds=self._rng.uniform(0, self._seconds)))

    def _nap(self) -> Nap:
        """Most are short; some are long enough for a fault to hit them."""
        return Nap(round(self._rng.choice((0.01, 0.03, 0.1, 0.4)) * self._rng.uniform(0.5, 1.5), 3))

    def _poison(self) -> Poison:
        return Poison(self._rng.choice(self._poisons))
