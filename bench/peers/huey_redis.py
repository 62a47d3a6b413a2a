"""Huey on Redis, two worker processes.

Worker: ``huey_consumer --workers 2 --worker-type process``, quiet, without periodic tasks. Enqueued by calling the
task; it has no call for many. A result of None is not stored (its default), so that it keeps nothing, and the queue is
in Redis. The CPU of Redis is not counted.
"""

from huey import RedisHuey

from bench.marks import mark
from bench.peers.environment import REDIS_URL

huey = RedisHuey("chainschedbench", url=REDIS_URL)


@huey.task()
def do_nothing() -> None:
    """Leave a mark."""
    mark()


def install() -> None:
    """Nothing to create."""


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
