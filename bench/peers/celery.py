"""Celery on Redis with results in the database, one worker with two prefork children.

Worker: ``celery worker --concurrency 2``, prefork, 64 jobs fetched ahead for each child (its default is 4), no events,
gossip or mingle. Results by ``django-celery-results``, whose connections are kept (``CELERY_DB_REUSE_MAX``; its default
is a new connection for every job). Acknowledged before the job runs (its default). Enqueued by ``delay()``, in bulk by
``apply_async()`` over one connection; it has no call for many. Hops are those of a ``chain`` of six. It keeps the row
of the result; the queue is in Redis. The CPU of Redis is not counted.
"""

import django

django.setup()

from celery import Celery, chain  # noqa: E402 - Django must be set up first
from django.core.management import call_command  # noqa: E402
from django.db import connection  # noqa: E402

from bench.marks import mark  # noqa: E402
from bench.peers.environment import REDIS_URL, forget_keys  # noqa: E402

PREFIX = "chainsched-bench-celery:"

app = Celery("bench", broker=REDIS_URL, backend="django-db")
app.conf.update(
    broker_transport_options={"global_keyprefix": PREFIX},
    worker_prefetch_multiplier=64,
    CELERY_DB_REUSE_MAX=10**9,
)


@app.task
def do_nothing() -> None:
    """Leave a mark."""
    mark()


def install() -> None:
    """Create the table of results."""
    call_command("migrate", "django_celery_results", verbosity=0)


def prepare(_many: int, _singles: int) -> None:
    """Delete all jobs."""
    forget_keys(PREFIX)
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE django_celery_results_taskresult")


def enqueue_many(count: int) -> None:
    """Enqueue over one connection."""
    with app.producer_pool.acquire(block=True) as producer:
        for _ in range(count):
            do_nothing.apply_async(producer=producer)


def enqueue_one() -> None:
    """Enqueue one job."""
    do_nothing.delay()


def enqueue_chain(length: int) -> None:
    """Enqueue jobs of which each starts when the one before has succeeded."""
    chain(*(do_nothing.si() for _ in range(length))).apply_async()
