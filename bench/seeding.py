"""Seeding a hundred thousand manifests, compared with Django's ``bulk_create`` of the same rows.

    python -m tests.postgres -- python -m bench.seeding [COUNT]

Prints the seconds of both, their ratio, the statements per thousand rows, and the writes of a second seeding.
"""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

from django.db import connection  # noqa: E402 - Django must be set up first
from django.test.utils import CaptureQueriesContext, setup_databases, teardown_databases  # noqa: E402

from chainsched import Every, ManifestItem  # noqa: E402
from chainsched.db.clock import database_now  # noqa: E402
from chainsched.flow.schedule.declare import Schedules  # noqa: E402
from chainsched.flow.schedule.seed import seed  # noqa: E402
from chainsched.models import Manifest, ManifestGroup, ManifestState  # noqa: E402
from tests.testapp import workflows  # noqa: E402


@dataclass(frozen=True)
class Measured:
    """The duration of an action, and its numbers of statements and of writes."""

    seconds: float
    statements: int
    writes: int


def measure(action: Callable[[], object]) -> Measured:
    """Time an action and count its statements."""
    with CaptureQueriesContext(connection) as captured:
        started = time.perf_counter()
        action()
        seconds = time.perf_counter() - started
    writes = [query for query in captured.captured_queries if _writes_rows(query["sql"])]
    return Measured(seconds, len(captured), len(writes))


def _writes_rows(sql: str) -> bool:
    return sql.startswith(("INSERT", "UPDATE")) and "chainsched_namedlock" not in sql


def declare(count: int) -> Schedules:
    """One batch of table slices."""
    schedules = Schedules()
    items = [ManifestItem(str(number), workflows.Slice(f"table_{number}")) for number in range(count)]
    schedules.schedule_many(workflows.copy, "sync", items, Every.minutes(5))
    return schedules


def create_plainly(count: int) -> None:
    """The same rows by ``bulk_create``, without any check."""
    group = ManifestGroup.objects.create(name="plain")
    manifests = Manifest.objects.bulk_create(
        [
            Manifest(
                external_id=f"plain-{number}",
                group=group,
                workflow="testapp.copy",
                input={"table": f"table_{number}", "size": 500},
                schedule_type="interval",
                interval_seconds=300,
                is_declared=True,
            )
            for number in range(count)
        ],
        batch_size=1000,
    )
    now = database_now()
    ManifestState.objects.bulk_create(
        [ManifestState(manifest=manifest, next_run_at=now) for manifest in manifests], batch_size=1000
    )


def main(count: int) -> None:
    """Measure and print."""
    databases = setup_databases(verbosity=0, interactive=False)
    try:
        plain = measure(lambda: create_plainly(count))
        Manifest.objects.all().delete()
        schedules = declare(count)
        first = measure(lambda: seed(schedules, now=database_now()))
        again = measure(lambda: seed(schedules, now=database_now()))
    finally:
        teardown_databases(databases, verbosity=0)
    print(f"{connection.vendor}, {count:,} manifests")
    print(f"bulk_create  {plain.seconds:6.1f} s")
    print(f"seed         {first.seconds:6.1f} s  = {first.seconds / plain.seconds:.2f} x bulk_create")
    print(f"             {first.statements / count * 1000:6.1f} statements per thousand rows")
    print(f"seed again   {again.seconds:6.1f} s, {again.writes} writes")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
