"""One run of the comparison: rounds in which everyone takes a turn, then chainsched at scale and at rest."""

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from bench import history, quiet, results, scale, targets, throughput
from bench.contestants import CONTESTANTS, DEFAULT, DUE_AT_ONCE, QUEUED, Contestant
from bench.installed import Failed, Installed
from bench.obstacles import find_obstacle
from bench.scale import Scaled
from bench.server import Server
from bench.throughput import Amounts, Run

T = TypeVar("T")

_STARTED = time.monotonic()

SCALE, QUIET = "scale", "quiet"
NAMES = (*CONTESTANTS, SCALE, QUIET)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, and how much of it."""

    names: Sequence[str]
    rounds: int
    amounts: Amounts
    quiet_seconds: float
    is_tiny: bool = False


@dataclass(slots=True)
class Bench:
    """One run of the bench: what it has installed, and what it has found and could not find."""

    plan: Plan
    server: Server
    folder: Path
    runs: dict[str, list[Run]] = field(default_factory=lambda: defaultdict(list))
    found: dict[str, Any] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    has_failed: bool = False

    def measure(self) -> None:
        """Measure all that the plan names."""
        ready = [installed for name in self.plan.names if (installed := self._install(CONTESTANTS.get(name)))]
        for number in range(1, self.plan.rounds + 1):
            for installed in ready:
                self._round(installed, number)
        for installed in ready:
            self._clear(installed)
        if SCALE in self.plan.names:
            self._try(SCALE, self._scale, is_ours=True)
        if QUIET in self.plan.names:
            self._try(QUIET, self._quiet, is_ours=True)

    def _install(self, contestant: Contestant | None) -> Installed | None:
        if contestant is None:
            return None
        if obstacle := find_obstacle(contestant):
            self._leave_out(contestant.name, obstacle)
            return None
        return self._try(contestant.name, lambda: self._installed(contestant), is_ours=contestant.is_ours)

    def _installed(self, contestant: Contestant) -> Installed:
        installed = Installed(contestant, server=self.server, folder=self.folder)
        if contestant.has_history:
            _say(f"{contestant.name}: {history.fill(installed, self.plan.amounts):,} executions that have finished")
        return installed

    def _round(self, installed: Installed, number: int) -> None:
        contestant = installed.contestant
        if contestant.name in self.left_out:
            return
        run = self._try(
            contestant.name,
            lambda: throughput.measure(installed, self.plan.amounts),
            is_ours=contestant.is_ours,
        )
        if run is not None:
            self.runs[contestant.name].append(run)
            _say(f"round {number}: {contestant.name:<20}{_in_words(run)}")

    def _clear(self, installed: Installed) -> None:
        """Leave nothing in a Redis; the databases are dropped as they are."""
        if installed.contestant.needs_redis:
            self._try(installed.contestant.name, lambda: installed.ask("clear"), is_ours=False)

    def _scale(self) -> None:
        due, queued = (Installed(one, server=self.server, folder=self.folder) for one in (DUE_AT_ONCE, QUEUED))
        rounds = []
        for number in range(1, self.plan.rounds + 1):
            rounds.append(scale.measure(due, queued, self.plan.amounts))
            _say(f"round {number}: {SCALE:<20}{_speeds_in_words(rounds[-1])}")
        self.found[SCALE] = results.of_scale(rounds, jobs=self.plan.amounts.count_of(DUE_AT_ONCE))

    def _quiet(self) -> None:
        installed = Installed(DEFAULT, server=self.server, folder=self.folder)
        self.found[QUIET] = results.of_quiet(*quiet.measure(installed, seconds=self.plan.quiet_seconds))

    def _try(self, name: str, measure: Callable[[], T], *, is_ours: bool) -> T | None:
        """What it gives; None if it fails, which fails the bench if it is ours."""
        try:
            return measure()
        except (Failed, psycopg.Error) as error:
            self._leave_out(name, str(error))
            self.has_failed = self.has_failed or is_ours
            return None

    def _leave_out(self, name: str, reason: str) -> None:
        self.left_out[name] = reason.splitlines()[0]
        _say(f"!!!!! NOT MEASURED: {name}: {reason}\n")

    def results(self) -> dict[str, Any]:
        """All numbers, with the verdicts on the targets."""
        found: dict[str, Any] = {
            "contestants": {
                name: results.of_contestant(runs, jobs=self.plan.amounts.count_of(CONTESTANTS[name]))
                for name, runs in self.runs.items()
            },
            **self.found,
            "left_out": self.left_out,
        }
        return {**found, "targets": targets.judge(found)}


def _in_words(run: Run) -> str:
    said = f"{run.rate:8,.0f} jobs/s, {run.cpu:6,.0f} µs a job ({run.server_cpu:,.0f} PostgreSQL)"
    said += f", {run.bulk:,.0f} enqueued/s"
    if run.one_by_one is not None:
        said += f", {run.one_by_one:,.0f} one by one"
    for name, samples in (("start", run.starts), ("hop", run.hops)):
        if samples:
            said += f", {name} {statistics.median(samples) * 1000:.1f} ms"
    return said


def _speeds_in_words(scaled: Scaled) -> str:
    return ", ".join(
        f"{what} {speed.rate:,.0f}/s, {speed.cpu:,.0f} µs each"
        for what, speed in (("into the queue", scaled.into_queue), ("long", scaled.long), ("short", scaled.short))
    )


def _say(text: str) -> None:
    print(f"{time.monotonic() - _STARTED:6.0f} s  {text}", file=sys.stderr, flush=True)
