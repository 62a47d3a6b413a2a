"""Transactions of the stages: short ones; repeated if the database was busy, in parts if a row cannot be written."""

from __future__ import annotations

import contextlib
import functools
import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from django.db import InterfaceError, InternalError, OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from chainsched.conf import get_config
from chainsched.db import locks
from chainsched.db.locks import Patience

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

# Deadlocks, timeouts, lost connections: these errors say nothing about the rows.
TRANSIENT = (OperationalError, InterfaceError, InternalError)
MAX_TRIES = 3
FIRST_PAUSE = 0.05

_is_own: ContextVar[bool] = ContextVar("is_own", default=False)


@contextlib.contextmanager
def transact(patience: Patience = Patience.USUAL) -> Iterator[None]:
    """A transaction on our database. Inside a caller's transaction it becomes a savepoint and changes nothing of it."""
    alias = get_config().database
    connection = connections[alias]
    is_outermost = not connection.in_atomic_block
    with _owning(connection), transaction.atomic(using=alias):
        if is_outermost:
            locks.begin(connection, patience)
        yield


@contextlib.contextmanager
def _owning(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Remember that the transaction is ours, if no caller's is open around it; a test's own does not count."""
    is_callers = any(not getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)
    before = _is_own.set(_is_own.get() or not is_callers)
    try:
        yield
    finally:
        _is_own.reset(before)


def is_own_transaction() -> bool:
    """Whether the open transaction was begun by a stage and ends with it, and not with a caller's own work.

    In a caller's transaction no row may be locked that the caller did not ask for: it may stay open for minutes.
    """
    return _is_own.get()


@contextlib.contextmanager
def index_reads() -> Iterator[None]:
    """For pages over large tables: PostgreSQL uses the indexes, regardless of its row estimates.

    In a transaction, so that a pooler passes on a clean session; inside a caller's transaction the settings are put
    back. SQLite needs no transaction, and one that only reads would keep writers waiting there.
    """
    connection = connections[get_config().database]
    if connection.vendor != "postgresql":
        yield
        return
    with transaction.atomic(using=connection.alias):
        before = locks.set_locally(connection, locks.BY_INDEX)
        yield
        locks.set_locally(connection, before)


@dataclass(slots=True)
class Parts(Generic[T, R]):
    """The results of the parts that were written, and the items that could not be written.

    ``refused`` are items that the database or the code rejects; ``busy`` are items with rows that another transaction
    holds just now, or that PostgreSQL cannot process.
    """

    results: list[R] = field(default_factory=list)
    refused: list[tuple[T, Exception]] = field(default_factory=list)
    busy: list[T] = field(default_factory=list)


def in_parts(items: Sequence[T], write: Callable[[Sequence[T]], R]) -> Parts[T, R]:
    """Write all items in one transaction; if that fails because of an item, in two halves, down to single items.

    So one bad row costs a few more transactions and nothing else, and a row that another transaction holds delays no
    other. A problem of the database itself is raised after some tries: it says nothing about the rows, and the caller
    still has them.
    """
    parts: Parts[T, R] = Parts()
    waiting = [items] if items else []
    while waiting:
        part = waiting.pop()
        try:
            parts.results.append(persist(functools.partial(write, part)))
        except TRANSIENT as error:
            if not locks.is_about_rows(error):
                raise
            if len(part) == 1:
                parts.busy.append(part[0])
            else:
                waiting += _halves(part)
        except Exception as error:  # noqa: BLE001 - no error of one row may keep the others from being written
            if len(part) == 1:
                parts.refused.append((part[0], error))
            else:
                logger.warning("Writing %d rows failed (%r); trying smaller parts.", len(part), error)
                waiting += _halves(part)
    return parts


def _halves(part: Sequence[T]) -> list[Sequence[T]]:
    middle = len(part) // 2
    return [part[middle:], part[:middle]]


def persist(write: Callable[[], R]) -> R:
    """Write; if the database was busy, write again after a pause that grows and varies.

    Not inside a caller's transaction, which is lost as a whole; nor after a lock timeout or a statement timeout, which
    have waited long enough already.
    """
    for attempt in range(1, MAX_TRIES):
        try:
            return write()
        except TRANSIENT as error:
            if connections[get_config().database].in_atomic_block or locks.is_about_rows(error):
                raise
            logger.debug("The database was busy (%s); trying again.", " ".join(str(error).split()))
            time.sleep(FIRST_PAUSE * 2**attempt * random.uniform(0.5, 1))  # noqa: S311 - spreads load
    return write()
