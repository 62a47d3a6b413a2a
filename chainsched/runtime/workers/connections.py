"""The connections of jobs: nothing that one job leaves in a connection reaches the next."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

from asgiref.sync import SyncToAsync
from django.db import close_old_connections, connections

from chainsched.db.sessions import is_in_transaction
from chainsched.domain import outcomes
from chainsched.domain.outcomes import FailureType, Outcome
from chainsched.domain.states import ExecutionState
from chainsched.flow.run.execute import LeftOpen

PATIENCE = 1.0

_under_way: set[Coroutine[Any, Any, Any]] = set()


def renew() -> list[str]:
    """Close this thread's connections that are broken, too old or in a transaction; returns the names of the last."""
    left_open = [connection for connection in connections.all(initialized_only=True) if is_in_transaction(connection)]
    for connection in left_open:
        # Django closes none that it believes to be in a transaction; what comes next would be written there, and lost.
        connection.in_atomic_block = connection.closed_in_transaction = False
        connection.close()
    close_old_connections()
    return [connection.alias for connection in left_open]


def renew_after(outcome: Outcome) -> Outcome:
    """Renew when a job has ended. One that left a transaction open has failed: what it wrote there is gone."""
    left_open = renew()
    if not left_open or outcome.state is not ExecutionState.COMPLETED:
        return outcome
    return outcomes.failed(FailureType.OPEN_TRANSACTION, str(LeftOpen(left_open)))


async def with_fresh_sessions(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Await a job. Its queries run in a thread of their own, in their order, and so is the renewal put in there.

    Raises LeftOpen for one that left a transaction open there. All async jobs of a process share that thread: while
    another one is under way, nobody knows whose a transaction is.
    """
    SyncToAsync.single_thread_executor.submit(renew)
    _under_way.add(coroutine)
    try:
        returned = await coroutine
    finally:
        _under_way.discard(coroutine)
        renewal = SyncToAsync.single_thread_executor.submit(renew)
    if not _under_way and (left_open := await _soon(renewal)):
        raise LeftOpen(left_open)
    return returned


async def _soon(renewal: Future[list[str]]) -> list[str]:
    """What a renewal found. A query that the job did not wait for holds it up, and is not waited for here either."""
    await asyncio.wait([asyncio.wrap_future(renewal)], timeout=PATIENCE)
    return renewal.result() if renewal.done() else []
