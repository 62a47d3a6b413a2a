"""What rows that may not start cost those that take rows: a look of a worker, and a turn of the dispatcher.

    python -m tests.postgres --durable -- python -m bench.parked [--count N]

First with an empty queue; then with N rows that wait while their group is disabled, and N of a group whose one place
is taken, before and after the dispatcher has parked them; then the time that it takes to let them in again. Medians of
several turns, in milliseconds.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from datetime import timedelta

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bench.settings")
django.setup()

from django.db import connection  # noqa: E402 - Django must be set up first
from django.test.utils import setup_databases, teardown_databases  # noqa: E402

from chainsched import Every, ManifestItem  # noqa: E402
from chainsched.db import bulk  # noqa: E402
from chainsched.db.clock import database_now  # noqa: E402
from chainsched.flow.operate.take import take  # noqa: E402
from chainsched.flow.run.evaluate import evaluate  # noqa: E402
from chainsched.flow.schedule.declare import Schedules  # noqa: E402
from chainsched.flow.schedule.seed import seed  # noqa: E402
from chainsched.models import ManifestGroup, Metadata, Process, WorkQueue  # noqa: E402
from chainsched.runtime.loops.dispatcher import Dispatcher  # noqa: E402
from tests.testapp import workflows  # noqa: E402

TURNS = 15
LINE = "{:<44}{:>16}{:>16}"


def declare(count: int) -> Schedules:
    """Two batches of manifests that do nothing; the group of one has a single place."""
    schedules = Schedules()
    items = [ManifestItem(str(number)) for number in range(count)]
    schedules.schedule_many(workflows.ping, "off", items, Every.minutes(5))
    schedules.schedule_many(workflows.ping, "full", items, Every.minutes(5), group_max_active_jobs=1)
    return schedules


def milliseconds(call: Callable[[], object], *, turns: int = TURNS) -> float:
    """The median time of a call."""
    spent = []
    for _ in range(turns):
        started = time.perf_counter()
        call()
        spent.append(time.perf_counter() - started)
    return 1000 * statistics.median(spent)


def show(title: str, process: Process) -> None:
    """The cost of a look of a worker, and of a turn of a dispatcher that has just parked all that it could."""
    dispatcher = Dispatcher()
    dispatcher.turn(database_now())
    look = milliseconds(lambda: take(process=process, limit=100))
    turn = milliseconds(lambda: dispatcher.turn(database_now()))
    print(LINE.format(title, f"{look:.2f}", f"{turn:.2f}"))


def main(*, count: int) -> None:
    """Measure and print."""
    databases = setup_databases(verbosity=0, interactive=False)
    try:
        now = database_now()
        process = Process.objects.create(
            kind="worker", host="bench", pid=os.getpid(), workflows=["testapp.ping"], slots=2, started_at=now,
            heartbeat_at=now + timedelta(hours=1),
        )  # fmt: skip
        print(LINE.format("milliseconds", "worker's look", "dispatcher"))
        show("empty queue", process)
        seed(declare(count), now=now)
        while evaluate(now=now).seen:
            pass
        ManifestGroup.objects.get(name="off").disable()
        assert len(take(process=process, limit=100).claims) == 1  # noqa: S101
        bulk.analyze(WorkQueue, Metadata)
        look = milliseconds(lambda: take(process=process, limit=100))
        print(LINE.format(f"{2 * count - 1:,} rows in line that may not start", f"{look:.2f}", ""))
        dispatcher, started = Dispatcher(), time.perf_counter()
        while dispatcher.turn(database_now()).has_more:
            pass
        print(f"parked in {time.perf_counter() - started:.2f} s, page by page")
        show("the same before autovacuum has come", process)
        with connection.cursor() as cursor:
            cursor.execute("VACUUM ANALYZE chainsched_workqueue")
        show(f"{WorkQueue.objects.exclude(parked_for='').count():,} parked rows", process)
        started = time.perf_counter()
        ManifestGroup.objects.get(name="off").enable()
        print(f"let in by enabling the group in {time.perf_counter() - started:.2f} s")
    finally:
        teardown_databases(databases, verbosity=0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    main(count=parser.parse_args().count)
