"""pgqueuer, two processes that take 100 jobs at once.

Worker: twice ``pgqueuer.run(…, batch_size=100)`` (its default is 10) on uvloop, as ``pgq run`` does, over one asyncpg
connection each (over psycopg its idle workers notice a job only after up to a second, and a job costs about a tenth
more CPU); one ``async`` entry point, all tables logged (its default). Enqueued by ``SyncQueries.enqueue()`` over one
psycopg connection, in bulk lists of 1,000. It keeps three rows of log a job, without input or output.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache

import asyncpg
import pgqueuer
import psycopg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, SyncPsycopgDriver
from pgqueuer.queries import Queries, SyncQueries
from psycopg.conninfo import conninfo_to_dict

from bench.marks import mark
from bench.peers.environment import DATABASE_URL

PAGE = 1000


@asynccontextmanager
async def worker() -> AsyncIterator[PgQueuer]:
    """The manager that ``pgq run`` runs."""
    connection = await _connect()
    manager = PgQueuer(AsyncpgDriver(connection))

    @manager.entrypoint("nothing")
    async def do_nothing(_job: object) -> None:
        mark()

    yield manager
    await connection.close()


def install() -> None:
    """Create its tables."""
    asyncio.run(_install())


async def _install() -> None:
    connection = await _connect()
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


def prepare(_many: int, _singles: int) -> None:
    """Delete all jobs."""
    with psycopg.connect(DATABASE_URL, autocommit=True) as connection:
        connection.execute("TRUNCATE pgqueuer, pgqueuer_log, pgqueuer_statistics")


def enqueue_many(count: int) -> None:
    """Enqueue in lists."""
    for start in range(0, count, PAGE):
        size = min(PAGE, count - start)
        _queries().enqueue(["nothing"] * size, [None] * size, [0] * size)


def enqueue_one() -> None:
    """Enqueue one job."""
    _queries().enqueue("nothing", None)


async def _connect() -> asyncpg.Connection:
    given = conninfo_to_dict(DATABASE_URL)  # asyncpg does not read a URL with the directory of a socket
    given["database"] = given.pop("dbname")
    return await asyncpg.connect(**given)


@cache
def _queries() -> SyncQueries:
    return SyncQueries(SyncPsycopgDriver(psycopg.connect(DATABASE_URL, autocommit=True)))


if __name__ == "__main__":
    uvloop.run(pgqueuer.run(worker, batch_size=100))
