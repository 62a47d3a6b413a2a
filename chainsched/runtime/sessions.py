"""The connections of jobs: nothing that one job leaves in a connection reaches the next."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from asgiref.sync import SyncToAsync
from django.db import close_old_connections, connections

from chainsched.domain import outcomes
from chainsched.domain.outcomes import FailureType, Outcome
from chainsched.domain.states import ExecutionState


def renew() -> list[str]:
    """Close this thread's connections that are broken, too old or in a transaction; returns the names of the last."""
    left_open = [connection for connection in connections.all(initialized_only=True) if connection.in_atomic_block]
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
    names = ", ".join(sorted(left_open))
    reason = f"It left a transaction open (database {names}); what it wrote there was rolled back."
    return outcomes.failed(FailureType.OPEN_TRANSACTION, reason)


async def with_fresh_sessions(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Await a job. Its queries run in a thread of their own, in their order, and so is the renewal put in there."""
    SyncToAsync.single_thread_executor.submit(renew)
    try:
        return await coroutine
    finally:
        SyncToAsync.single_thread_executor.submit(renew)
