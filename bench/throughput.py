"""Twenty thousand jobs that do nothing, from due to recorded, compared with Procrastinate on the same server.

    python -m tests.postgres --durable -- python -m bench.throughput [--count N] [--runs N] [--json]

Both run as real processes on a PostgreSQL with its own durability settings, in turns; each figure is the median of the
runs. The clock runs from the first piece of work to the last job that is recorded, by the times in the rows, and so
without the start of the process. How many are recorded is asked rarely: counting them costs the server something. CPU
is that of the processes and of the whole server.

chainsched gets manifests that are due: it evaluates, queues, dispatches, claims, runs and records them. Procrastinate
gets jobs that were deferred before in batches: it only fetches, runs and finishes them. It has an ``async`` task, one
process, its Django connector's own pool, and keeps job rows, as we do. A concurrency of 10, 30 or 100 made no
difference beyond the noise (490 to 630 jobs a second on two quiet cores); several processes and a larger pool were not
tried. chainsched runs as in production, a scheduler and a worker with two children; all in one process,
``run_scheduler --processes 2``, it does about a sixth less.

The tables are vacuumed and analyzed before each run, so this does not show the cost of fresh tables; bench.stages does.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bench.settings")
django.setup()

from django.db import connection  # noqa: E402 - Django must be set up first
from django.test.utils import setup_databases, teardown_databases  # noqa: E402

from bench import tasks, workflows  # noqa: E402
from bench.processes import cpu_of, postmaster, running  # noqa: E402
from chainsched import Every, ManifestItem  # noqa: E402
from chainsched.db.clock import database_now  # noqa: E402
from chainsched.flow.schedule.declare import Schedules  # noqa: E402
from chainsched.flow.schedule.seed import seed  # noqa: E402

CHAINSCHED = (("run_scheduler", "--processes", "0"), ("run_worker", "--processes", "2"))
PROCRASTINATE = (("procrastinate", "worker", "--queues", "bench", "--concurrency", "30"),)
LOOK_EVERY = 0.5
PATIENCE = 600


class Contestant(Protocol):
    """A job queue that is measured."""

    name: str
    commands: Sequence[Sequence[str]]

    def prepare(self, count: int) -> None:
        """Delete the rows of the last run and create so many jobs that are ready to run."""

    def started_at(self) -> datetime | None:
        """When the first piece of work was done, if it was."""

    def ended_at(self) -> datetime:
        """When the last job was recorded."""

    def finished(self) -> int:
        """How many jobs are recorded."""


class Chainsched:
    """Due manifests of one group."""

    name = "chainsched"
    commands: Sequence[Sequence[str]] = CHAINSCHED

    def prepare(self, count: int) -> None:
        _truncate("chainsched_metadata", "chainsched_workqueue", "chainsched_manifeststate", "chainsched_manifest")
        schedules = Schedules()
        items = [ManifestItem(str(number)) for number in range(count)]
        schedules.schedule_many(workflows.do_nothing, "nothing", items, Every.hours(1))
        seed(schedules, now=database_now())

    def started_at(self) -> datetime | None:
        started_at: datetime | None = _ask("SELECT min(created_at) FROM chainsched_workqueue")
        return started_at

    def ended_at(self) -> datetime:
        ended_at: datetime = _ask("SELECT max(ended_at) FROM chainsched_metadata")
        return ended_at

    def finished(self) -> int:
        return int(_ask("SELECT count(*) FROM chainsched_metadata WHERE state = 'completed'"))


class Procrastinate:
    """Jobs that were deferred in batches."""

    name = "procrastinate"
    commands: Sequence[Sequence[str]] = PROCRASTINATE

    def prepare(self, count: int) -> None:
        _truncate("procrastinate_jobs", "procrastinate_events")
        for start in range(0, count, 1000):
            tasks.do_nothing.batch_defer(*({} for _ in range(start, min(start + 1000, count))))

    def started_at(self) -> datetime | None:
        started_at: datetime | None = _ask("SELECT min(at) FROM procrastinate_events WHERE type = 'started'")
        return started_at

    def ended_at(self) -> datetime:
        ended_at: datetime = _ask("SELECT max(at) FROM procrastinate_events WHERE type = 'succeeded'")
        return ended_at

    def finished(self) -> int:
        return int(_ask("SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'"))


@dataclass(frozen=True)
class Measured:
    """One run."""

    rate: float
    own_cpu: float
    server_cpu: float


def measure(contestant: Contestant, count: int) -> Measured:
    """Let the contestant run so many jobs; CPU in microseconds a job."""
    contestant.prepare(count)
    with connection.cursor() as cursor:
        # Both start from tables that autovacuum has seen, as after a minute of work.
        cursor.execute("VACUUM ANALYZE")
        cursor.execute("CHECKPOINT")
    server = postmaster()
    with tempfile.TemporaryFile() as log, ExitStack() as stack:
        processes = [stack.enter_context(running(command, log=log)) for command in contestant.commands]
        pids = [process.pid for process in processes]
        _wait(lambda: contestant.started_at() is not None, processes=processes, log=log)
        own, its = cpu_of(pids), cpu_of([server])
        _wait(lambda: contestant.finished() >= count, processes=processes, log=log)
        own, its = cpu_of(pids) - own, cpu_of([server]) - its
        seconds = (contestant.ended_at() - (contestant.started_at() or database_now())).total_seconds()
    return Measured(rate=count / seconds, own_cpu=own / count * 1e6, server_cpu=its / count * 1e6)


def _wait(is_done: Callable[[], bool], *, processes: Sequence[subprocess.Popen[bytes]], log: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_done():
        ended = [process.args for process in processes if process.poll() is not None]
        if ended or time.monotonic() > deadline:
            log.seek(0)
            raise SystemExit(f"{ended or 'The work'} did not finish:\n{log.read().decode()[-4000:]}")
        time.sleep(LOOK_EVERY)


def _ask(sql: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()[0]


def _truncate(*tables: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(tables)} CASCADE")


def main(*, count: int, runs: int, is_json: bool) -> None:
    """Measure in turns and print."""
    contestants: list[Contestant] = [Chainsched(), Procrastinate()]
    databases = setup_databases(verbosity=0, interactive=False)
    try:
        measured = [[measure(contestant, count) for contestant in contestants] for _ in range(runs)]
    finally:
        teardown_databases(databases, verbosity=0)
    medians = {
        contestant.name: {
            name: statistics.median(getattr(run[at], name) for run in measured)
            for name in ("rate", "own_cpu", "server_cpu")
        }
        for at, contestant in enumerate(contestants)
    }
    ratio = medians["chainsched"]["rate"] / medians["procrastinate"]["rate"]
    if is_json:
        print(json.dumps({"count": count, "runs": runs, "ratio": ratio, "medians": medians}))
        return
    print(f"{count:,} jobs that do nothing, median of {runs} runs; CPU in µs a job")
    print(f"{'':<15}{'jobs/s':>8}{'own CPU':>10}{'server':>10}  command")
    for contestant in contestants:
        row = medians[contestant.name]
        figures = f"{row['rate']:8,.0f}{row['own_cpu']:10,.0f}{row['server_cpu']:10,.0f}"
        print(f"{contestant.name:<15}{figures}  {' & '.join(' '.join(command) for command in contestant.commands)}")
    print(f"chainsched runs {ratio:.1f} x the jobs of Procrastinate")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.throughput")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true", dest="is_json")
    return parser.parse_args()


if __name__ == "__main__":
    main(**vars(_arguments()))
