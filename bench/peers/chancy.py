"""Chancy, two worker processes of 100 ``async`` jobs at once.

Worker: twice ``chancy worker start``, the queue with the ``async`` executor, its concurrency of 100 (the default of
that executor) and ``eager_polling`` (otherwise it looks for the next jobs every five seconds only), a logger that says
warnings only (its default prints a line or two a job). Enqueued by ``sync_push()``, in bulk by ``sync_push_many()`` of
1,000. It keeps the row of the job. Ends are written once a second (its fixed interval), which the figures include.
"""

import asyncio
import logging

import psycopg
from chancy import Chancy, Queue, job

from bench.marks import mark
from bench.peers.environment import DATABASE_URL

logger = logging.getLogger("bench.chancy")
logger.setLevel(logging.WARNING)

app = Chancy(DATABASE_URL, log=logger)


@job()
async def do_nothing() -> None:
    """Leave a mark."""
    mark()


def install() -> None:
    """Create its tables and its queue."""
    asyncio.run(_install())


async def _install() -> None:
    async with app:
        await app.migrate()
        await app.declare(Queue("default", executor=Chancy.Executor.Async, eager_polling=True))


def prepare(_many: int, _singles: int) -> None:
    """Delete all jobs."""
    with psycopg.connect(DATABASE_URL, autocommit=True) as connection:
        connection.execute("TRUNCATE chancy_jobs")


def enqueue_many(count: int) -> None:
    """Enqueue in batches."""
    for _ in app.sync_push_many([do_nothing.job] * count):
        pass


def enqueue_one() -> None:
    """Enqueue one job."""
    app.sync_push(do_nothing.job)
