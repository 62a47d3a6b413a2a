"""One run from an empty database to the verdict."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from django.core.management import call_command
from django.db import InterfaceError, OperationalError, close_old_connections, connection

from chainsched.db.clock import database_now
from chainsched.flow.schedule.seed import seed
from chaos import checker, faults, figures, joins, receivers, refusals, rows, witness, workload
from chaos.checker import Verdict
from chaos.evidence import Evidence
from chaos.faults import Amounts, Fault
from chaos.fleet import SCHEDULER, WORKER, Fleet, running_fleet
from chaos.injector import Injector
from chaos.servers import Postgres
from chaos.settings import MAX_ACTIVE_JOBS, PROCESS_EXPIRY
from chaos.workload import GROUPS, Workload

R = TypeVar("R")

FLEET = (SCHEDULER, SCHEDULER, WORKER, WORKER)
TICK = 0.1
LOOK_EVERY = 1.0
# For how long faults that have found no target are tried after the end of their time.
OVERTIME = 120.0
# How long processes may take until their loops turn: at the beginning, and at the end those that were started last.
# Loops that hang are replaced after a little more than a minute, so that a longer wait would not find them.
FIRST_START = 60.0
LAST_START = 30.0
# The last job comes due before the last fault, and the faults end before the time does.
WORK_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a run."""

    jobs: int
    seed: int
    seconds: float
    amounts: Amounts
    kinds: Collection[str]
    poisons: Collection[str]
    killed: Mapping[str, int]
    frozen: Mapping[str, int]
    patience: float


@dataclass(frozen=True, slots=True)
class Result:
    """The counts and verdicts of a run."""

    counts: Mapping[str, Any]
    verdicts: list[Verdict]

    @property
    def is_green(self) -> bool:
        return not any(verdict.violations for verdict in self.verdicts)


def run(options: RunOptions, *, postgres: Postgres, folder: Path, prepare: Callable[[], None] = lambda: None) -> Result:
    """Seed the workload, let the processes work under faults, wait until no job is left, and check.

    ``prepare`` is called between the migrations and the start.
    """
    started = time.monotonic()
    rng = random.Random(options.seed)  # noqa: S311 - the same seed, the same run
    call_command("migrate", verbosity=0)
    refusals.install()
    prepare()
    with running_fleet(FLEET, folder=folder, environment={}) as fleet:
        # All processes share the work from its beginning, also if one of them takes long to start.
        _find_idle_processes(fleet, patience=FIRST_START)
        work = _seed(options, rng)
        injector = Injector(fleet, postgres, rng, _draw(options, rng))
        harness = _Harness(work, fleet, injector)
        harness.cause_faults(options.seconds)
        is_quiet = harness.wait_until_quiet(options.patience)
        idle_processes = _find_idle_processes(fleet, patience=LAST_START)
        fleet.stop()
        left_over = fleet.end_left_over()
    evidence = replace(
        _gather(work, fleet, harness.snapshots, postgres),
        requested=options.amounts.by_kind(),
        happened=_by_kind(injector.happened),
        is_quiet=is_quiet,
        idle_processes=idle_processes,
        left_over=left_over,
        held_up=injector.bystanders.held_up,
        looked=injector.bystanders.looked,
    )
    counts = {**_count(evidence, injector), "jobs": work.size, "seconds": round(time.monotonic() - started, 1)}
    return Result(counts, checker.judge(evidence))


def _seed(options: RunOptions, rng: random.Random) -> Workload:
    now = database_now()
    work = workload.build(
        options.jobs,
        start=now,
        seconds=options.seconds * WORK_SHARE,
        rng=rng,
        poisons=options.poisons,
        kinds=options.kinds,
    )
    seed(work.schedules, now=now)
    return work


def _draw(options: RunOptions, rng: random.Random) -> list[Fault]:
    return faults.draw(
        options.amounts,
        seconds=options.seconds,
        expiry=PROCESS_EXPIRY,
        rng=rng,
        killed=options.killed,
        frozen=options.frozen,
    )


class _Harness:
    """Keeps the processes running, causes faults, and triggers the rounds of jobs without a schedule."""

    def __init__(self, work: Workload, fleet: Fleet, injector: Injector) -> None:
        self.snapshots = rows.Snapshots()
        self._work = work
        self._fleet = fleet
        self._injector = injector
        self._looked_at = 0.0
        self._started_at = time.monotonic()
        self._seconds = 1.0

    def cause_faults(self, seconds: float) -> None:
        """Cause faults for so long, and until the last of them is over; faults without a target are dropped."""
        self._seconds = seconds
        while self._elapsed < seconds or not self._injector.is_done:
            self._turn()
            if self._elapsed > seconds + OVERTIME:
                _patiently(self._injector.end_all)

    def wait_until_quiet(self, patience: float) -> bool:
        """Wait until no job is left; False if for so many seconds no job came to its end."""
        settled, deadline = 0, time.monotonic() + patience
        while time.monotonic() < deadline:
            self._turn()
            if _patiently(self._is_quiet):
                return True
            # Jobs that are retried or repeated for ever would make it wait without end: attempts that fail do not
            # count, nor do runs far beyond the expected number. A few more count: a dependent may run for each
            # success of its ancestors.
            latest = _patiently(rows.settled_count) or settled
            if settled < latest <= 2 * self._work.size:
                settled, deadline = latest, time.monotonic() + patience
        return False

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._started_at

    def _turn(self) -> None:
        self._fleet.restart_ended()
        _patiently(lambda: self._injector.turn(elapsed=self._elapsed))
        if not self._injector.postgres.is_paused and time.monotonic() - self._looked_at > LOOK_EVERY:
            self._looked_at = time.monotonic()
            _patiently(self.snapshots.take)
            _patiently(self._trigger)
        time.sleep(TICK)

    def _trigger(self) -> None:
        """Trigger the next round of idle manifests; the rounds are spread over the time of the faults, or hurried."""
        # Only the harness triggers them, so that idle ones stay idle while their runs are counted.
        idle = rows.idle(list(self._work.rounds))
        counts = rows.completed_counts([manifest.external_id for manifest in idle])
        for manifest in idle:
            rounds = self._work.rounds[manifest.external_id]
            share = 1.0 if manifest.external_id in self._work.hurried else min(1.0, self._elapsed / self._seconds)
            if counts[manifest.external_id] < max(1, round(rounds * share)):
                manifest.trigger()

    def _is_quiet(self) -> bool:
        counts = rows.completed_counts(list(self._work.rounds))
        return all(counts[name] >= rounds for name, rounds in self._work.rounds.items()) and rows.is_quiet()


def _find_idle_processes(fleet: Fleet, *, patience: float) -> list[str]:
    """The processes that live and do nothing; one that has just started or come out of a freeze has time to begin."""
    deadline = time.monotonic() + patience
    while found := _idle_processes(fleet):
        if time.monotonic() > deadline:
            break
        fleet.restart_ended()
        time.sleep(TICK)
    return found


def _idle_processes(fleet: Fleet) -> list[str]:
    found = _patiently(lambda: rows.idle_processes(fleet.members))
    return ["no process could be checked: the database is away"] if found is None else found


def _patiently(step: Callable[[], R]) -> R | None:
    """The result of the step; None while the database is away."""
    try:
        return step()
    except (OperationalError, InterfaceError):
        connection.close()
        close_old_connections()
        return None


def _gather(work: Workload, fleet: Fleet, snapshots: rows.Snapshots, postgres: Postgres) -> Evidence:
    return Evidence(
        expected=work.expected,
        limits=GROUPS,
        max_active=MAX_ACTIVE_JOBS,
        executions=rows.executions(),
        queue=rows.queue(),
        letters=rows.letters(),
        passages=rows.passages(),
        waiting=rows.waiting(),
        notes=rows.notes(),
        runs=witness.read(fleet.witness),
        heard=receivers.read(fleet.signals),
        pids=fleet.pids,
        seen=fleet.seen,
        freezes=fleet.freezes,
        exits=fleet.exits,
        changed=snapshots.compare(),
        findings=rows.fsck(),
        repaired=[f"{name}: {line}" for name, line in fleet.log_lines() if "Repaired:" in line],
        returned_at=postgres.returned_at,
    )


def _by_kind(happened: Mapping[str, int]) -> Counter[str]:
    """How often a fault of each kind happened, for all targets together."""
    kinds: Counter[str] = Counter()
    for name, number in happened.items():
        kinds[name.partition(" ")[0]] += number
    return kinds


def _count(evidence: Evidence, injector: Injector) -> dict[str, Any]:
    """Figures to go with the verdicts."""
    failures = Counter(row.failure_type for row in evidence.executions if row.failure_type)
    expected = evidence.expected.values()
    joined = {item.manifest for item in expected if item.is_join}
    return {
        "manifests": len(evidence.expected),
        "kinds": dict(Counter(item.kind for item in expected)),
        "poison": sum(item.is_poison for item in expected),
        "joined": sum(row.is_completed and row.manifest in joined for row in evidence.executions),
        **joins.counts(evidence),
        "woken": sum(len(row.woken) for row in evidence.executions),
        "executions": len(evidence.executions),
        "completed": sum(row.is_completed for row in evidence.executions),
        "failures": dict(failures.most_common()),
        "dead_letters": len(evidence.letters),
        "witnessed_runs": len(evidence.runs),
        "cut_off_runs": sum(run.ended is None for run in evidence.runs),
        "repeated_runs": figures.repeated_runs(evidence),
        "highest_attempt": figures.highest_attempt(evidence),
        "most_at_once": figures.most_at_once(evidence),
        "fenced_overlaps": figures.fenced_overlaps(evidence),
        "begun_after_freezes": figures.begun_after_freezes(evidence),
        "faults": dict(injector.happened),
        "bystander_faults_judged": injector.bystanders.looked,
        "signals_heard": dict(Counter(heard.signal for heard in evidence.heard)),
        "process_starts": len(evidence.exits),
        "resumed_after_seconds": figures.resumed_after(evidence),
    }
