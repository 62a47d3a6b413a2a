"""Huey on PostgreSQL, two worker processes.

Worker: ``huey_consumer --workers 2 --worker-type process``, quiet, without periodic tasks; it listens for new jobs (its
default). Enqueued by calling the task; it has no call for many. A result of None is not stored (its default) and the
row of a job is deleted when it is taken, so that it keeps nothing.
"""

from huey import PostgresHuey

from bench.marks import mark
from bench.peers.environment import DATABASE_URL

huey = PostgresHuey("chainschedbench", dsn=DATABASE_URL)


@huey.task()
def do_nothing() -> None:
    """Leave a mark."""
    mark()


def install() -> None:
    """Nothing to create: importing the module has done it."""


def prepare(_many: int, _singles: int) -> None:
    """Delete all jobs."""
    huey.flush()


def enqueue_many(count: int) -> None:
    """Enqueue one after the other."""
    for _ in range(count):
        do_nothing()


def enqueue_one() -> None:
    """Enqueue one job."""
    do_nothing()
