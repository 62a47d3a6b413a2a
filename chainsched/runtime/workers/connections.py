"""The database connections of jobs: no transaction or broken connection of one job reaches the next."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Any

from asgiref.sync import SyncToAsync
from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from chainsched.conf import get_config
from chainsched.db.kept_sessions import close_kept, keep
from chainsched.db.sessions import is_in_transaction
from chainsched.domain import outcomes
from chainsched.domain.outcomes import FailureType, Outcome
from chainsched.domain.states import ExecutionState
from chainsched.flow.run.execute import LeftOpen

RENEWAL_SECONDS = 1.0

_running_coroutines: set[Coroutine[Any, Any, Any]] = set()


class _Thread(threading.local):
    """Whether this thread has no open connection, and so nothing to renew until it opens one."""

    is_clean = False
    # Its connections at the last search. One that fails while it opens stays open, and is not announced.
    searched: Sequence[BaseDatabaseWrapper] = ()


_this_thread = _Thread()


def _note_connection(**_: Any) -> None:
    _this_thread.is_clean = False


connection_created.connect(_note_connection, dispatch_uid="chainsched.runtime.workers.connections")


def renew() -> list[str]:
    """Let this thread's next job find its connections as if they were new; returns those left in a transaction.

    A session of PostgreSQL is reset and kept, if it stands between two transactions; others are closed. A thread that
    has opened none since the last time is not searched: the search takes longer than all else around a short job.
    """
    is_clean = _this_thread.is_clean and not any(map(_is_open, _this_thread.searched))
    return [] if is_clean else _renew()


def _renew() -> list[str]:
    searched = _this_thread.searched = _all_of_thread()
    opened = [connection for connection in searched if _is_open(connection)]
    left_open = [connection for connection in opened if is_in_transaction(connection)]
    for connection in left_open:
        # Django closes none that it believes to be in a transaction; later writes would go into it and be lost.
        connection.in_atomic_block = connection.closed_in_transaction = False
        connection.close()
    is_keeping = bool(opened) and get_config().keep_sessions
    for connection in opened:
        if connection.vendor == "postgresql" and not (is_keeping and keep(connection)):
            connection.close()
    if opened:
        close_old_connections()
    _this_thread.is_clean = not any(map(_is_open, opened))
    return [connection.alias for connection in left_open]


def _all_of_thread() -> Sequence[BaseDatabaseWrapper]:
    """This thread's connections, those included that it has not used; without these where one has no driver here."""
    try:
        return connections.all()
    except (ImproperlyConfigured, ImportError):
        return connections.all(initialized_only=True)


def _is_open(connection: BaseDatabaseWrapper) -> bool:
    return connection.connection is not None or connection.in_atomic_block


def close_all() -> None:
    """Close all connections of this thread, which runs no more jobs."""
    for connection in connections.all(initialized_only=True):
        close_kept(connection)
        connection.close()


def renew_after(outcome: Outcome) -> Outcome:
    """Renew after a job. One that left a transaction open has failed: its writes in there are lost."""
    left_open = renew()
    if not left_open or outcome.state is not ExecutionState.COMPLETED:
        return outcome
    return outcomes.failed(FailureType.OPEN_TRANSACTION, str(LeftOpen(left_open)))


async def with_fresh_connections(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Await a job. Its queries run one by one in a separate thread, so the connections are renewed in that thread.

    Raises LeftOpen for a job that left a transaction open there. All async jobs of a process share that thread: while
    another job is running, an open transaction cannot be attributed to either.
    """
    SyncToAsync.single_thread_executor.submit(renew)
    _running_coroutines.add(coroutine)
    try:
        returned = await coroutine
    finally:
        _running_coroutines.discard(coroutine)
        renewal = SyncToAsync.single_thread_executor.submit(renew)
    if not _running_coroutines and (left_open := await _result_if_quick(renewal)):
        raise LeftOpen(left_open)
    return returned


async def _result_if_quick(renewal: Future[list[str]]) -> list[str]:
    """The result of a renewal. A query that the job did not wait for delays it; then the result is empty."""
    await asyncio.wait([asyncio.wrap_future(renewal)], timeout=RENEWAL_SECONDS)
    return renewal.result() if renewal.done() else []
