"""chainsched, whose manifests run because their group is triggered.

``run_scheduler --processes 2`` with ``MAX_ACTIVE_JOBS`` at 2,000 or, as *default*, with no setting at all. Jobs run in
isolated child processes. It keeps the queue row and the execution with its input, output, times and process.
Enqueued by ``trigger()`` of manifests that were read before, in bulk by ``trigger()`` of their group. Hops are those of
manifests that depend on each other, chains of six.

*two-schedulers* are two ``run_scheduler --processes 0`` and two ``run_worker --processes 1``. *finished* is one
scheduler in a database that has fifty finished executions of each manifest before the first round.
"""

import os
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from itertools import cycle

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bench.settings")
django.setup()

from django.core.management import call_command  # noqa: E402 - Django must be set up first
from django.db import connection  # noqa: E402
from django.db.models import QuerySet  # noqa: E402

from bench import workflows  # noqa: E402
from chainsched import Every, ManifestItem  # noqa: E402
from chainsched.db.clock import database_now  # noqa: E402
from chainsched.flow.schedule.declare import Schedules  # noqa: E402
from chainsched.flow.schedule.seed import seed  # noqa: E402
from chainsched.models import Manifest, ManifestGroup, ManifestState  # noqa: E402

KEEP = "CHAINSCHED_BENCH_KEEP"
MANY, SINGLES, CHAINS = "many", "singles", "chains"
INTERVAL = Every.days(30)
# Enough for each to be idle again when its next turn comes.
SPARE = 20
LENGTH = 6


def install() -> None:
    """Create the tables."""
    call_command("migrate", run_syncdb=True, verbosity=0)


def prepare(many: int, singles: int) -> None:
    """Delete all manifests with their runs, and declare new ones that are enabled and due in a month.

    With CHAINSCHED_BENCH_KEEP those of an earlier call stay as they are, and their runs too.
    """
    if os.environ.get(KEEP) and Manifest.objects.filter(group__name=MANY).count() == many:
        return
    clear()
    schedules = Schedules()
    for group, count in ((MANY, many), (SINGLES, singles or SPARE)):
        items = [ManifestItem(f"{group}-{number}") for number in range(count)]
        schedules.schedule_many(workflows.do_nothing, None, items, INTERVAL, group=group)
    for number in range(SPARE):
        _declare_chain(schedules, f"chain-{number}")
    seed(schedules, now=database_now())
    arm(ManifestState.objects.all(), in_seconds=30 * 86_400)


def _declare_chain(schedules: Schedules, name: str) -> None:
    chain = schedules.schedule(workflows.do_nothing, name, None, INTERVAL, group=CHAINS)
    for link in range(1, LENGTH):
        chain = chain.then_include(workflows.do_nothing, f"{name}-{link}", group=CHAINS)


def clear() -> None:
    """Empty the tables of manifests, queue rows and executions."""
    tables = "chainsched_metadata, chainsched_workqueue, chainsched_manifeststate, chainsched_manifest"
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {tables} CASCADE")


def arm(states: QuerySet[ManifestState], *, in_seconds: float) -> None:
    """Let those of these manifests that have an alarm be due at one moment."""
    states.filter(next_run_at__isnull=False).update(next_run_at=database_now() + timedelta(seconds=in_seconds))


def enqueue_many(_count: int) -> dict[str, float] | None:
    """Trigger the group."""
    ManifestGroup.objects.get(name=MANY).trigger()
    return None


def enqueue_one() -> None:
    """Trigger the next manifest."""
    next(_of_group(SINGLES)).trigger()


def enqueue_chain(_length: int) -> None:
    """Trigger the head of the next chain."""
    next(_of_group(CHAINS)).trigger()


@cache
def _of_group(group: str) -> Iterator[Manifest]:
    """The manifests of a group that depend on no other, again and again."""
    found = Manifest.objects.filter(group__name=group)
    return cycle([manifest for manifest in found.order_by("id") if manifest.schedule_type == "interval"])
