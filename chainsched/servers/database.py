"""The default server: workers take queued rows from the database for themselves."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from chainsched.conf import get_config
from chainsched.domain.routing import Pool
from chainsched.flow.operate.take import Taken, take
from chainsched.models import Process
from chainsched.servers import TaskServer


class DatabaseServer(TaskServer):
    """Leaves the queue to the workers."""

    def pools(self, *, now: datetime) -> Collection[Pool]:
        """Those of the live processes, whose workers take the rows that they can start."""
        return Process.objects.alive(beaten_since=_one_expiry_before(now)).pools()

    def recent_workflows(self, *, now: datetime) -> Collection[str]:
        """None: an execution that another server has left pending goes back to the queue."""
        return ()

    def take(self, *, process: Process, limit: int, now: datetime) -> Taken:
        return take(process=process, limit=limit, now=now)

    def submit(self, execution_ids: Sequence[int]) -> None:
        """Do nothing: what another server has left pending goes back to the queue."""

    def cancel(self, execution_ids: Collection[int]) -> None:
        """Do nothing: nothing was submitted, and each worker reads from the rows which of its jobs are to stop."""

    def forget(self, execution_ids: Collection[int]) -> None:
        """Do nothing: nothing was submitted."""


def _one_expiry_before(now: datetime) -> datetime:
    return now - timedelta(seconds=get_config().process_expiry)
