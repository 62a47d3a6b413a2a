"""The mixed workload of a run, and the expected result of each of its manifests."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count, cycle

from chainsched import Once, RunCondition
from chainsched.domain.declarations import Options
from chainsched.flow.schedule.declare import Chain, Schedules
from chaos import workflows
from chaos.workflows import Nap, Overstay, Poison, Stumble, Wake

# The groups and their limits; jobs are spread over them.
GROUPS: dict[str, int | None] = {"tight": 2, "narrow": 4, "broad": None}
ROUNDS = 3
HURRIED_ROUNDS = 5
# The deadline of a join, and how long one of its members takes: mostly longer.
DEADLINE_SECONDS = 2
LATE_SECONDS = 3.0
QUORUM = 3
POISON_RETRIES = 3
OVERSTAY_TIMEOUT = 1
# The failures of poison that leaves its process alive, and of jobs that use the database while it is away.
POISONED = ("MemoryError",)
AWAY = ("OperationalError", "InterfaceError", "AdminShutdown", "ProcessLost")
# How many of each kind there are in about a hundred and fifty runs; single naps fill up the rest.
MIX = {
    "chain": 8,
    "fan": 4,
    "join": 2,
    "nested": 2,
    "quorum": 2,
    "deadline": 1,
    "gate": 1,
    "dormant": 4,
    "pulse": 1,
    "surge": 1,
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

    ``parent`` is its only parent, or the gate of a fan-in. A join waits for its ``members``, and runs if ``need`` of
    them arrived; one that ``is_early`` may run before the others have ended.
    """

    manifest: str
    group: str
    runs: int = 1
    is_exact: bool = True
    is_poison: bool = False
    parent: str | None = None
    head: str = ""
    members: Sequence[str] = ()
    at_least: int | None = None
    is_early: bool = False
    is_activated: bool = False
    is_too_long: bool = False
    follows_any_outcome: bool = False
    failures: Collection[str] = ()

    @property
    def is_head(self) -> bool:
        return not self.head

    @property
    def is_join(self) -> bool:
        return bool(self.members)

    @property
    def is_fan_in(self) -> bool:
        return self.is_join and self.parent is not None

    @property
    def need(self) -> int:
        """How many members have to arrive; a fan-in without a number of its own runs in any case."""
        if self.at_least is not None:
            return self.at_least
        return 0 if self.is_fan_in else len(self.members)

    @property
    def kind(self) -> str:
        """One of MIX."""
        return self.manifest.partition("-")[0]


@dataclass(slots=True)
class Workload:
    """Declarations to seed, their expected results, and the roots that the harness triggers, with their rounds.

    The rounds are spread over the time of the run; those of ``hurried`` roots follow each other at once.
    """

    schedules: Schedules = field(default_factory=Schedules)
    expected: dict[str, Expected] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)
    hurried: set[str] = field(default_factory=set)

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
            "join": self.join,
            "nested": self.nested,
            "quorum": self.quorum,
            "deadline": self.deadline,
            "gate": self.gate,
            "dormant": self.dormant,
            "pulse": self.pulse,
            "surge": self.surge,
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
        members = self._members(chain, name, "abc", options, poisoned=self._one_of("abc"))
        joined = self._below(name, "joined", parent=name, members=members)
        chain.include(workflows.nap, joined, self._nap(), fan_in=True, **options)

    def join(self) -> None:
        """Two chains below a root, one link sometimes poison, a join of their ends and one of the whole tree.

        The join of the ends needs both, and has a dependent of its own.
        """
        name, options = self._new("join")
        chain = self.workload.schedules.schedule(workflows.nap, name, self._nap(), self._once(), **options)
        poisoned = self._one_of(("a", "a-a", "b", "b-a"))
        is_short = poisoned is not None
        ends = self._chains(chain, name, "ab", options, poisoned=poisoned)
        joined = self._below(name, "joined", members=ends, runs=0 if is_short else 1)
        chain.include(workflows.nap, joined, self._nap(), depends_on=ends, **options)
        after = self._below(name, "after", parent=joined, runs=0 if is_short else 1)
        chain.include(workflows.nap, after, self._nap(), depends_on=joined, **options)
        everything = self._below(name, "tree", parent=name, members=[after])
        chain.include(workflows.nap, everything, self._nap(), fan_in="tree", **options)

    def nested(self) -> None:
        """A join inside of another; a member of the inner one is sometimes poison, and the outer one goes on."""
        name, options = self._new("nested")
        chain = self.workload.schedules.schedule(workflows.nap, name, self._nap(), self._once(), **options)
        poisoned = self._one_of("ab")
        members = self._members(chain, name, "abc", options, poisoned=poisoned)
        inner = self._below(name, "inner", members=members[:2], runs=1 if poisoned is None else 0)
        chain.include(workflows.nap, inner, self._nap(), depends_on=members[:2], **options)
        outer = self._below(name, "outer", members=[inner, members[2]], at_least=1)
        chain.include(workflows.nap, outer, self._nap(), depends_on=[inner, members[2]], at_least=1, **options)

    def quorum(self) -> None:
        """Five members, one sometimes poison, and a join that needs three of them; an eager one runs at the third."""
        name, options = self._new("quorum")
        chain = self.workload.schedules.schedule(workflows.nap, name, self._nap(), self._once(), **options)
        members = self._members(chain, name, "abcde", options, poisoned=self._one_of("abcde"))
        is_eager = self._rng.choice((True, False))
        joined = self._below(name, "joined", members=members, at_least=QUORUM, is_early=is_eager)
        chain.include(
            workflows.nap, joined, self._nap(), depends_on=members, at_least=QUORUM, eager=is_eager, **options
        )

    def deadline(self) -> None:
        """A join that is decided by what has arrived at its deadline, while a member mostly still runs."""
        name, options = self._new("deadline", group=next(self._roomy_groups))
        chain = self.workload.schedules.schedule(workflows.nap, name, self._nap(), self._once(), **options)
        members = self._members(chain, name, "ab", options)
        late = self._below(name, "late", parent=name)
        chain.include(workflows.nap, late, Nap(LATE_SECONDS), **options)
        joined = self._below(name, "joined", parent=name, members=[*members, late], at_least=1, is_early=True)
        chain.include(workflows.nap, joined, self._nap(), fan_in=True, at_least=1, deadline=DEADLINE_SECONDS, **options)

    def gate(self) -> None:
        """A root that fails for good, a member that runs after any outcome of it, and a continuation that must not."""
        name, options = self._new("gate", is_poison=True, failures=["RuntimeError"])
        given_up: Options = {**options, "max_retries": 1}
        chain = self.workload.schedules.schedule(
            workflows.stumble, name, Stumble(POISON_RETRIES), self._once(), **given_up
        )
        member = self._below(name, "a", parent=name, follows_any_outcome=True)
        chain.include(workflows.nap, member, self._nap(), run_condition=RunCondition.COMPLETION, **options)
        joined = self._below(name, "joined", parent=name, members=[member], runs=0)
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
        members = [f"{name}-{letter}" for letter in "ab"]
        joined = self._below(name, "joined", parent=name, is_exact=False, members=members)
        chain.include(workflows.nap, joined, self._nap(), fan_in=True, **options)

    def surge(self) -> None:
        """A job that is triggered again at once, so that its runs meet in slow dependents and in a join after them."""
        name, options = self._new("surge", runs=HURRIED_ROUNDS, group=next(self._roomy_groups))
        self.workload.rounds[name] = HURRIED_ROUNDS
        self.workload.hurried.add(name)
        chain = self.workload.schedules.schedule(workflows.nap, name, Nap(), None, **options)
        ends = []
        for letter, seconds in (("a", 0.1), ("b", 2.5)):
            below = self._below(name, letter, parent=name, is_exact=False)
            chain.include(workflows.nap, below, Nap(seconds), **options)
            ends.append(self._below(name, f"{letter}-a", parent=below, is_exact=False))
            chain.include(workflows.nap, ends[-1], self._nap(), depends_on=below, **options)
        joined = self._below(name, "joined", members=ends, is_exact=False)
        chain.include(workflows.nap, joined, self._nap(), depends_on=ends, **options)

    def _members(
        self, chain: Chain, root: str, letters: str, options: Options, *, poisoned: str | None = None
    ) -> list[str]:
        """Declare dependents of a root, one of them poison; returns their names."""
        return [
            self._link(chain, root, letter, options, parent=root, is_poison=letter == poisoned) for letter in letters
        ]

    def _chains(self, chain: Chain, root: str, letters: str, options: Options, *, poisoned: str | None) -> list[str]:
        """Declare chains of two below a root, one link of them poison; returns the names of their ends."""
        ends = []
        for letter in letters:
            first, is_poison = f"{root}-{letter}", letter == poisoned
            self._link(chain, root, letter, options, parent=root, is_poison=is_poison)
            second = f"{letter}-a"
            runs = 0 if is_poison else 1
            ends.append(self._link(chain, root, second, options, parent=first, is_poison=second == poisoned, runs=runs))
        return ends

    def _link(
        self, chain: Chain, root: str, suffix: str, options: Options, *, parent: str, is_poison: bool, runs: int = 1
    ) -> str:
        name = self._below(root, suffix, parent=parent, is_poison=is_poison, runs=runs)
        if is_poison:
            limited: Options = {**options, "max_retries": POISON_RETRIES}
            chain.include(workflows.perish, name, self._poison(), depends_on=parent, **limited)
        else:
            chain.include(workflows.nap, name, self._nap(), depends_on=parent, **options)
        return name

    def _one_of(self, names: Sequence[str]) -> str | None:
        """The one of these that is poison, in one of four cases and if there may be any."""
        return self._rng.choice([*names, *[None] * (3 * len(names))]) if self._poisons else None

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
            failures=failures or (POISONED if is_poison else ()),
        )
        return name, {"group": group, "group_max_active_jobs": GROUPS[group]}

    def _below(
        self,
        root: str,
        suffix: str,
        *,
        parent: str | None = None,
        runs: int = 1,
        is_exact: bool = True,
        is_poison: bool = False,
        members: Sequence[str] = (),
        at_least: int | None = None,
        is_early: bool = False,
        is_activated: bool = False,
        follows_any_outcome: bool = False,
    ) -> str:
        """Name a dependent in its root's group and add its expected result."""
        name = f"{root}-{suffix}"
        self.workload.expected[name] = Expected(
            name,
            self.workload.expected[root].group,
            runs=runs,
            is_exact=is_exact,
            is_poison=is_poison,
            failures=POISONED if is_poison else (),
            parent=parent,
            head=root,
            members=tuple(members),
            at_least=at_least,
            is_early=is_early,
            is_activated=is_activated,
            follows_any_outcome=follows_any_outcome,
        )
        return name

    def _once(self) -> Once:
        return Once(self._start + timedelta(seconds=self._rng.uniform(0, self._seconds)))

    def _nap(self) -> Nap:
        """Most are short; some are long enough for a fault to hit them."""
        return Nap(round(self._rng.choice((0.01, 0.03, 0.1, 0.4)) * self._rng.uniform(0.5, 1.5), 3))

    def _poison(self) -> Poison:
        return Poison(self._rng.choice(self._poisons))
