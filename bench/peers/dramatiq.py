"""Dramatiq on Redis, two worker processes of eight threads.

Worker: ``dramatiq --processes 2 --threads 8`` (8 is its default), the default middleware. Enqueued by ``send()``; it
has no call for many. It keeps nothing, and the queue is in Redis. The CPU of Redis is not counted.
"""

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.marks import mark
from bench.peers.environment import REDIS_URL, forget_keys

PREFIX = "chainsched-bench-dramatiq"

broker = RedisBroker(url=REDIS_URL, namespace=PREFIX)
dramatiq.set_broker(broker)


@dramatiq.actor
def do_nothing() -> None:
    """Leave a mark."""
    mark()


def install() -> None:
    """Nothing to create."""


def prepare(_many: int, _singles: int) -> None:
    """Delete all jobs."""
    forget_keys(PREFIX)


def enqueue_many(count: int) -> None:
    """Enqueue one after the other."""
    for _ in range(count):
        do_nothing.send()


def enqueue_one() -> None:
    """Enqueue one job."""
    do_nothing.send()
