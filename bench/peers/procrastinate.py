"""Procrastinate as a Django app, two worker processes of 20 jobs at once.

Worker: twice ``procrastinate worker --concurrency 20`` of its Django app, an ``async`` task (others go to threads), its
own pool of psycopg, LISTEN on (its default). Enqueued by ``defer()`` over Django's connection, in bulk by
``batch_defer()`` of 1,000. It keeps the row of the job and three events.
"""

import django

django.setup()

from django.core.management import call_command  # noqa: E402 - Django must be set up first
from django.db import connection  # noqa: E402
from procrastinate.contrib.django import app  # noqa: E402

from bench.marks import mark  # noqa: E402

PAGE = 1000


@app.task(name="nothing", queue="bench")
async def do_nothing() -> None:
    """Leave a mark."""
    mark()


def install() -> None:
    """Create its tables."""
    call_command("migrate", "procrastinate", verbosity=0)


def prepare(_many: int, _singles: int) -> None:
    """Delete all jobs."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE procrastinate_jobs, procrastinate_events CASCADE")


def enqueue_many(count: int) -> None:
    """Enqueue in batches."""
    for start in range(0, count, PAGE):
        do_nothing.batch_defer(*({} for _ in range(min(PAGE, count - start))))


def enqueue_one() -> None:
    """Enqueue one job."""
    do_nothing.defer()
