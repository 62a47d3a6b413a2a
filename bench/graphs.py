"""Chains and fan-ins through the stages of the flow, on one connection: microseconds a job, statements a call.

    python -m tests.postgres --durable -- python -m bench.graphs [--count N] [--batch N] [--rounds N] [--json]

The same number of jobs in each shape: manifests without edges, which are the base of the ratios; chains of four; one
head with all others as its dependents; the same with a continuation after them; and many such heads of a hundred each.
A job counts from being queued to being recorded, with its part of the turns that fold notes and decide joins. Prints
the medians of the rounds; the shapes take turns, so that a slow moment of the machine hits all of them. A first round
does not count: it fills the tables, which are analyzed then, as autovacuum does it by and by.
"""

import argparse
import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bench.settings")
django.setup()

from django.db import connection  # noqa: E402 - Django must be set up first
from django.test.utils import setup_databases, teardown_databases  # noqa: E402

from bench.stages import Stopwatch, start_process, work  # noqa: E402
from chainsched import Cron, ManifestItem  # noqa: E402
from chainsched.db.clock import database_now  # noqa: E402
from chainsched.domain.schedules import CronSchedule  # noqa: E402
from chainsched.flow.run.evaluate import evaluate  # noqa: E402
from chainsched.flow.run.fold_notes import settle  # noqa: E402
from chainsched.flow.schedule.declare import Schedules  # noqa: E402
from chainsched.flow.schedule.seed import seed  # noqa: E402
from chainsched.models import Metadata, Process  # noqa: E402
from tests.testapp import workflows  # noqa: E402

TURNS = ("settle", "evaluate", "take", "record")
LINKS = 4
SMALL = 100
GROUP = "graphs"
DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Shape:
    """A graph, how to declare it with heads on a schedule, and how many jobs one round of it has."""

    name: str
    size: int
    declare: Callable[[Schedules, CronSchedule], None]


def shapes(count: int) -> list[Shape]:
    """The shapes with about so many jobs each; the first is the base."""
    chains, fans = max(1, count // LINKS), max(1, count // SMALL)
    return [
        Shape("no edges", count, lambda schedules, when: _alone(schedules, when, count=count)),
        Shape("chains", chains * LINKS, lambda schedules, when: _chains(schedules, when, count=chains)),
        Shape("fan-out", count + 1, lambda schedules, when: _fans(schedules, when, members=count, is_joined=False)),
        Shape(
            f"fan-ins of {SMALL}",
            fans * (SMALL + 2),
            lambda schedules, when: _fans(schedules, when, members=SMALL, count=fans, name="small"),
        ),
        Shape(f"fan-in of {count:,}", count + 2, lambda schedules, when: _fans(schedules, when, members=count)),
    ]


def _alone(schedules: Schedules, when: CronSchedule, *, count: int) -> None:
    items = [ManifestItem(f"alone-{number}") for number in range(count)]
    schedules.schedule_many(workflows.ping, None, items, when, group=GROUP)


def _chains(schedules: Schedules, when: CronSchedule, *, count: int) -> None:
    for number in range(count):
        chain = schedules.schedule(workflows.ping, f"chain-{number}", None, when, group=GROUP)
        for link in range(1, LINKS):
            chain = chain.then_include(workflows.ping, f"chain-{number}-{link}", group=GROUP)


def _fans(
    schedules: Schedules,
    when: CronSchedule,
    *,
    members: int,
    count: int = 1,
    name: str = "large",
    is_joined: bool = True,
) -> None:
    for number in range(count):
        head = f"{name if is_joined else 'out'}-{number}"
        items = [ManifestItem(f"{head}-{member}") for member in range(members)]
        chain = schedules.schedule(workflows.ping, head, None, when, group=GROUP)
        chain = chain.include_many(workflows.ping, None, items, group=GROUP)
        if is_joined:
            chain.include(workflows.ping, f"{head}-joined", fan_in=True, group=GROUP)


def run_round(shape: Shape, *, batch: int, process: Process, now: datetime) -> Stopwatch:
    """Carry every job of a shape from due to recorded, as the loops would: settle, evaluate, work."""
    watch, recorded = Stopwatch(), 0
    while recorded < shape.size:
        with watch.time("settle"):
            settle(now=now)
        queued = 0
        while found := _evaluate(watch, now=now):
            queued += found
        ran = work(watch, batch=batch, process=process, now=now)
        if not queued + ran:
            raise RuntimeError(f"{shape.name}: {recorded} of {shape.size} jobs ran, and nothing is due")
        recorded += ran
    with watch.time("settle"):
        settle(now=now)
    return watch


def _evaluate(watch: Stopwatch, *, now: datetime) -> int:
    with watch.time("evaluate"):
        return evaluate(now=now).queued


def main(*, count: int, batch: int, rounds: int, is_json: bool) -> None:
    """Measure and print."""
    measured = shapes(count)
    watches: dict[str, list[Stopwatch]] = {shape.name: [] for shape in measured}
    databases = setup_databases(verbosity=0, interactive=False)
    try:
        now = database_now()
        # Each shape is due in an hour of its own, so that one round of it is all that is due then.
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0) + DAY
        schedules = Schedules()
        for hour, shape in enumerate(measured, start=1):
            shape.declare(schedules, Cron.daily(hour))
        # Seen from there nothing is due before its hour, at whatever time of day this runs.
        seed(schedules, now=midnight)
        process = start_process(now)
        for day in range(rounds + 1):
            for hour, shape in enumerate(measured, start=1):
                due_at = midnight + day * DAY + timedelta(hours=hour)
                watches[shape.name].append(run_round(shape, batch=batch, process=process, now=due_at))
            if day == 0:
                _forget_first_round(watches)
        ran = Metadata.objects.filter(state="completed").count()
        assert ran == (rounds + 1) * sum(shape.size for shape in measured)  # noqa: S101
    finally:
        teardown_databases(databases, verbosity=0)
    figures = {shape.name: _figures(watches[shape.name], size=shape.size) for shape in measured}
    if is_json:
        print(json.dumps({"count": count, "batch": batch, "shapes": figures}))
    else:
        print(f"{connection.vendor}, taken and recorded in batches of {batch}, median of {rounds} rounds")
        _print(figures, base=measured[0].name)


def _forget_first_round(watches: Mapping[str, list[Stopwatch]]) -> None:
    for measured in watches.values():
        measured.clear()
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def _figures(watches: Sequence[Stopwatch], *, size: int) -> dict[str, Any]:
    """The medians of a shape: microseconds a job, of wall time and of CPU; statements a job; each stage by itself."""

    def a_job(values: Callable[[Stopwatch], Mapping[str, float]]) -> float:
        return statistics.median(sum(values(watch).values()) for watch in watches) / size

    return {
        "jobs": size,
        "wall": a_job(lambda watch: watch.seconds) * 1e6,
        "own_cpu": a_job(lambda watch: watch.own_cpu) * 1e6,
        "backend_cpu": a_job(lambda watch: watch.backend_cpu) * 1e6,
        "statements": a_job(lambda watch: watch.statements),
        "stages": {stage: _stage_figures(stage, watches, size=size) for stage in TURNS},
    }


def _stage_figures(stage: str, watches: Sequence[Stopwatch], *, size: int) -> dict[str, float]:
    """The medians of a stage: microseconds a job, statements a call."""
    return {
        "wall": statistics.median(watch.seconds[stage] for watch in watches) / size * 1e6,
        "statements": statistics.median(watch.statements[stage] / max(1, watch.calls[stage]) for watch in watches),
    }


def _print(figures: Mapping[str, Mapping[str, Any]], *, base: str) -> None:
    print(f"{'':<16}{'jobs':>8}{'µs a job':>10}{'to base':>9}{'our CPU':>9}{'its CPU':>9}{'statements a job':>18}")
    for name, row in figures.items():
        ratio = row["wall"] / figures[base]["wall"]
        print(
            f"{name:<16}{row['jobs']:8,}{row['wall']:10.0f}{ratio:9.2f}{row['own_cpu']:9.0f}{row['backend_cpu']:9.0f}"
            f"{row['statements']:18.2f}"
        )
    for title, value, form in (("µs a job", "wall", "{:12.0f}"), ("statements a call", "statements", "{:12.1f}")):
        print(f"\n{title:<20}" + "".join(f"{stage:>12}" for stage in TURNS))
        for name, row in figures.items():
            print(f"{name:<20}" + "".join(form.format(row["stages"][stage][value]) for stage in TURNS))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.graphs")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", dest="is_json")
    return parser.parse_args()


if __name__ == "__main__":
    main(**vars(_arguments()))
