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
from datetime import datetime
from typing import Generic, TypeVar

from django.db import InterfaceError, InternalError, OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from chainsched.conf import get_config
from chainsched.db import locks
from chainsched.db.locks import Patience
from chainsched.domain.redaction import redact_text

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

# Deadlocks, timeouts, lost connections: most of these errors say nothing about the rows.
TRANSIENT = (OperationalError, InterfaceError, InternalError)
MAX_TRIES = 3
FIRST_PAUSE = 0.05
# How long a writer that needs many locks at once tries to get them, and how long it pauses at most.
MAX_WAITS = {Patience.SHORT: 0.5, Patience.USUAL: 3.0, Patience.LONG: 600.0}
MAX_PAUSE = 1.0

# So many rows that a table refuses, and none that was written: then it is not the rows.
ENOUGH = 3
MAX_REASON = 500
# Of rows that cannot be written, for each turn.
MAX_LINES = 10

_is_own: ContextVar[bool] = ContextVar("is_own", default=False)


class LostMidway(OperationalError):
    """The connection was lost in the middle of a transaction, perhaps because of its length or of a row in it."""


@contextlib.contextmanager
def transact(patience: Patience = Patience.USUAL) -> Iterator[datetime | None]:
    """A transaction on our database. Inside a caller's transaction it becomes a savepoint and changes nothing of it.

    Gives the time of its beginning by the database's clock; none where it is a savepoint.
    """
    alias = get_config().database
    connection = connections[alias]
    is_outermost, session, begun_at = not connection.in_atomic_block, None, None
    try:
        with _owning(connection), transaction.atomic(using=alias):
            if is_outermost:
                begun_at = locks.begin(connection, patience)
                session = connection.connection
            yield begun_at
    except TRANSIENT as error:
        # Django replaces a connection on which it cannot roll back.
        if session is not None and connection.connection is not session:
            raise LostMidway(*error.args) from error
        raise


def is_about_rows(error: Exception) -> bool:
    """Whether other rows, or fewer, may be written after this error; otherwise it is the database's own trouble."""
    return not isinstance(error, TRANSIENT) or isinstance(error, LostMidway) or locks.is_about_rows(error)


@contextlib.contextmanager
def _owning(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Remember that the transaction is ours, if no caller's is open around it; a test's own does not count."""
    is_callers = not all(_is_from_testcase(block) for block in connection.atomic_blocks)
    before = _is_own.set(_is_own.get() or not is_callers)
    try:
        yield
    finally:
        _is_own.reset(before)


def _is_from_testcase(block: transaction.Atomic) -> bool:
    return getattr(block, "_from_testcase", False)


def is_own_transaction() -> bool:
    """Whether the open transaction was begun by a stage and ends with it, and not with a caller's own work.

    In a caller's transaction no row may be locked that the caller did not ask for: it may stay open for minutes.
    """
    return _is_own.get()


def wait_briefly() -> None:
    """Wait for no lock for long from now on: the caller holds locks that others need, and writes patiently.

    In a caller's transaction nothing changes: its locks are held until it ends, whatever this call does. Nor in that of
    a test case, which goes on with statements of its own.
    """
    connection = connections[get_config().database]
    if is_own_transaction() and not any(_is_from_testcase(block) for block in connection.atomic_blocks):
        locks.wait_briefly(connection)


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
        before = locks.set_locally(connection, locks.FOR_PAGES)
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
    busy: list[tuple[T, Exception]] = field(default_factory=list)

    @property
    def unwritable(self) -> list[tuple[T, Exception]]:
        """The items that another try soon would not write, either."""
        return self.refused + [(item, error) for item, error in self.busy if not _is_passing(error)]

    def note(self, item: T, error: Exception) -> None:
        """Note an item that could not be written by itself; raises the error if it says nothing about the item."""
        if isinstance(error, TRANSIENT):
            self.busy.append((item, error))
            return
        self.refused.append((item, error))
        if locks.is_about_tables(error) and self.has_only_table_errors and len(self.refused) >= ENOUGH:
            raise error

    @property
    def has_only_table_errors(self) -> bool:
        """Whether nothing was written, and not because of the items."""
        refused = [error for _, error in self.refused]
        return bool(refused) and not self.results and all(locks.is_about_tables(error) for error in refused)


def _is_passing(error: Exception) -> bool:
    return isinstance(error, LostMidway) or locks.is_lock_timeout(error)


def in_parts(items: Sequence[T], write: Callable[[Sequence[T]], R]) -> Parts[T, R]:
    """Write all items in one transaction; if that fails because of an item, in two halves, down to single items.

    So one bad row costs a few more transactions and nothing else, and a row that another transaction holds delays no
    other; nor is a batch tried for ever that takes longer than a transaction may. A problem of the database itself is
    raised after some tries: it says nothing about the rows, and the caller still has them.
    """
    parts: Parts[T, R] = Parts()
    waiting = [items] if items else []
    while waiting:
        part = waiting.pop()
        try:
            parts.results.append(persist(functools.partial(write, part), is_divisible=len(part) > 1))
        except Exception as error:
            if not is_about_rows(error):
                raise
            if len(part) == 1:
                parts.note(part[0], error)
                continue
            level = logging.DEBUG if locks.is_lock_timeout(error) else logging.WARNING
            logger.log(level, "Writing %d rows failed (%s); trying smaller parts.", len(part), in_words(error))
            waiting += _halves(part)
    if parts.has_only_table_errors:
        raise parts.refused[0][1]
    return parts


def report_unwritable(message: str, unwritable: Sequence[tuple[int, Exception]]) -> None:
    """Log a line for each of these ids with its error, up to a bound; the message has a place for both."""
    for item, error in unwritable[:MAX_LINES]:
        logger.error(message, item, in_words(error))
    if len(unwritable) > MAX_LINES:
        logger.error(
            "The same applies to %d more; the last: %s", len(unwritable) - MAX_LINES, in_words(unwritable[-1][1])
        )


def in_words(error: Exception) -> str:
    """What an error says, in one line, without the contents of the row that PostgreSQL adds in further ones."""
    said = redact_text(str(error).strip().partition("\n")[0])
    return f"{type(error).__name__}: {said}"[:MAX_REASON]


def _halves(part: Sequence[T]) -> list[Sequence[T]]:
    middle = len(part) // 2
    return [part[middle:], part[:middle]]


def persist(write: Callable[[], R], *, is_divisible: bool = False) -> R:
    """Write; if the database was busy, write again after a pause that grows and varies.

    Not inside a caller's transaction, which is lost as a whole; nor after an error that fewer rows may avoid, such as a
    timeout, which has waited long enough already. A connection that is lost midway is no such error if what is written
    cannot be divided.
    """
    for attempt in range(1, MAX_TRIES):
        try:
            return write()
        except TRANSIENT as error:
            is_about_size = is_divisible and isinstance(error, LostMidway)
            if connections[get_config().database].in_atomic_block or is_about_size or locks.is_about_rows(error):
                raise
            logger.debug("The database was busy (%s); trying again.", " ".join(str(error).split()))
            time.sleep(FIRST_PAUSE * 2**attempt * random.uniform(0.5, 1))  # noqa: S311 - spreads load
    return write()


def persist_patiently(write: Callable[[], R], *, patience: Patience = Patience.USUAL) -> R:
    """Write what needs many locks at once, where another transaction may hold one of them for minutes.

    ``write`` calls ``wait_briefly`` when it holds its first lock. If it has to give up, all of its locks are released;
    after a pause it begins anew, until its patience is over. So it holds up no other row while it waits for one.
    """
    deadline, pause = time.monotonic() + MAX_WAITS[patience], FIRST_PAUSE
    while True:
        try:
            return persist(write)
        except TRANSIENT as error:
            is_callers = connections[get_config().database].in_atomic_block
            if is_callers or not locks.is_lock_timeout(error) or time.monotonic() >= deadline:
                raise
            logger.info("Another transaction holds a row that is needed; all locks are released until the next try.")
        time.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - spreads load
        pause = min(2 * pause, MAX_PAUSE)
