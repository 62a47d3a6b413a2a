"""The stages of the flow one by one, on one connection: jobs a second, CPU a job, statements a call.

    python -m tests.postgres --durable -- python -m bench.stages [--count N] [--batch N] [--rounds N] [--json]

Due manifests are evaluated and queued in pages of a thousand, taken and recorded in batches as a worker does. Then the
group is triggered and runs once more, and last some manifests are triggered one by one. Prints the median of the
rounds; each round runs the same manifests again, so that the tables are fresh in the first and used in the later ones.
CPU is that of this process and of its PostgreSQL backend; on a machine that others use too it says more than the rate.
"""

import argparse
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bench.settings")
django.setup()

from django.db import connection  # noqa: E402 - Django must be set up first
from django.test.utils import setup_databases, teardown_databases  # noqa: E402

from chainsched import Every, ManifestItem  # noqa: E402
from chainsched.db.clock import database_now  # noqa: E402
from chainsched.domain import outcomes  # noqa: E402
from chainsched.domain.outcomes import Finished  # noqa: E402
from chainsched.flow.operate.take import take  # noqa: E402
from chainsched.flow.operate.trigger import TriggerRequest, trigger, trigger_group  # noqa: E402
from chainsched.flow.run.evaluate import evaluate  # noqa: E402
from chainsched.flow.run.record import record  # noqa: E402
from chainsched.flow.schedule.declare import Schedules  # noqa: E402
from chainsched.flow.schedule.seed import seed  # noqa: E402
from chainsched.models import Manifest, ManifestGroup, Metadata, Process  # noqa: E402
from tests.testapp import workflows  # noqa: E402

STAGES = ("evaluate", "trigger", "trigger one", "take", "record")
# The manifests that are triggered one by one.
ONES = 200
WORKFLOWS = ["testapp.ping"]
INTERVAL = timedelta(minutes=5)

R = TypeVar("R")


@dataclass
class Stopwatch:
    """Seconds, CPU seconds here and in the database, statements and calls by stage."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    own_cpu: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    backend_cpu: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    statements: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    jobs: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    calls: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    @contextmanager
    def time(self, stage: str) -> Iterator[None]:
        """Add the time, CPU and statements of the block to a stage."""

        def count(execute: Callable[..., R], *call: Any) -> R:
            self.statements[stage] += 1
            return execute(*call)

        started, cpu, backend_cpu = time.perf_counter(), time.process_time(), cpu_of_backend()
        with connection.execute_wrapper(count):
            yield
        self.seconds[stage] += time.perf_counter() - started
        self.own_cpu[stage] += time.process_time() - cpu
        self.backend_cpu[stage] += cpu_of_backend() - backend_cpu
        self.calls[stage] += 1


def cpu_of_backend() -> float:
    """The CPU seconds that the backend of our connection has used; 0 where it cannot be seen."""
    if connection.vendor != "postgresql":
        return 0
    schedule = Path(f"/proc/{connection.connection.info.backend_pid}/schedstat")
    return int(schedule.read_text().split()[0]) / 1e9 if schedule.exists() else 0


def run_round(count: int, *, batch: int, process: Process, now: datetime) -> Stopwatch:
    """Carry every manifest twice from due or triggered to recorded, and some a third time."""
    watch = Stopwatch()
    while watch.jobs["evaluate"] < count:
        with watch.time("evaluate"):
            watch.jobs["evaluate"] += evaluate(now=now).queued
    work(watch, batch=batch, process=process, now=now)
    with watch.time("trigger"):
        watch.jobs["trigger"] += trigger_group(ManifestGroup.objects.get().pk, now=now).total()
    work(watch, batch=batch, process=process, now=now)
    for manifest_id in Manifest.objects.order_by("id").values_list("id", flat=True)[:ONES]:
        with watch.time("trigger one"):
            watch.jobs["trigger one"] += len(trigger({manifest_id: TriggerRequest()}, now=now))
    work(watch, batch=batch, process=process, now=now)
    return watch


def work(watch: Stopwatch, *, batch: int, process: Process, now: datetime) -> int:
    """Take and record until nothing is queued."""
    recorded = 0
    while True:
        with watch.time("take"):
            claims = take(process=process, limit=batch).claims
        watch.jobs["take"] += len(claims)
        if not claims:
            return recorded
        finished = [Finished(item.execution_id, outcomes.completed("pong")) for item in claims]
        with watch.time("record"):
            recorded += len(record(finished, now=now, by=process, opens=True).ended)
        watch.jobs["record"] += len(claims)


def declare(count: int) -> Schedules:
    """One batch of manifests that do nothing."""
    schedules = Schedules()
    items = [ManifestItem(str(number)) for number in range(count)]
    schedules.schedule_many(workflows.ping, "ping", items, Every.minutes(5))
    return schedules


def start_process(now: datetime) -> Process:
    """A process that may take and record."""
    return Process.objects.create(
        kind="worker", host="bench", pid=os.getpid(), workflows=WORKFLOWS, slots=2, started_at=now, heartbeat_at=now
    )


def main(*, count: int, batch: int, rounds: int, is_json: bool) -> None:
    """Measure and print."""
    databases = setup_databases(verbosity=0, interactive=False)
    try:
        now = database_now()
        seed(declare(count), now=now)
        process = start_process(now)
        watches = [
            run_round(count, batch=batch, process=process, now=now + number * INTERVAL) for number in range(rounds)
        ]
        ran = sum(watch.jobs["record"] for watch in watches)
        assert ran == rounds * (2 * count + min(ONES, count))  # noqa: S101
        assert Metadata.objects.filter(state="completed").count() == ran  # noqa: S101
    finally:
        teardown_databases(databases, verbosity=0)
    figures = {stage: _figures(stage, watches) for stage in STAGES}
    if is_json:
        print(json.dumps({"count": count, "batch": batch, "stages": figures}))
        return
    print(f"{connection.vendor}, {count:,} manifests, in batches of {batch}, median of {rounds} rounds")
    print(f"{'':<12}{'jobs/s':>8}{'our CPU':>10}{'its CPU':>10}  µs a job{'statements a call':>20}")
    for name, row in figures.items():
        print(f"{name:<12}{row['rate']:8,.0f}{row['own_cpu']:10.1f}{row['backend_cpu']:10.1f}{row['statements']:30.1f}")


def _figures(stage: str, watches: Sequence[Stopwatch]) -> dict[str, float]:
    """The medians of a stage: jobs a second, microseconds of CPU a job, statements a call."""

    def median(value: Callable[[Stopwatch], float]) -> float:
        return statistics.median(value(watch) for watch in watches)

    return {
        "rate": median(lambda watch: watch.jobs[stage] / watch.seconds[stage]),
        "own_cpu": median(lambda watch: watch.own_cpu[stage] / watch.jobs[stage]) * 1e6,
        "backend_cpu": median(lambda watch: watch.backend_cpu[stage] / watch.jobs[stage]) * 1e6,
        "statements": median(lambda watch: watch.statements[stage] / watch.calls[stage]),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.stages")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", dest="is_json")
    return parser.parse_args()


if __name__ == "__main__":
    main(**vars(_arguments()))
