"""The default server: workers take queued rows from the database for themselves."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from chainsched.conf import get_config
from chainsched.flow.operate.take import Taken, take
from chainsched.models import Process
from chainsched.models.process import ProcessQuerySet
from chainsched.servers import TaskServer


class DatabaseServer(TaskServer):
    """Leaves the queue to the workers."""

    def known_workflows(self, *, now: datetime) -> Collection[str]:
        return _names(Process.objects.alive(beaten_since=_one_expiry_before(now)))

    def recent_workflows(self, *, now: datetime) -> Collection[str]:
        """None: an execution that another server has left pending goes back to the queue."""
        return ()

    def room(self, *, now: datetime) -> int | None:
        """No room: workers take the rows that they can start."""
        return 0

    def take(self, *, process: Process, workflows: Collection[str], limit: int) -> Taken:
        return take(process=process, workflows=workflows, limit=limit)

    def submit(self, execution_ids: Sequence[int]) -> None:
        """Do nothing: what another server has left pending goes back to the queue."""


def _one_expiry_before(now: datetime) -> datetime:
    return now - timedelta(seconds=get_config().process_expiry)


def _names(processes: ProcessQuerySet) -> set[str]:
    return {name for workflows in processes.values_list("workflows", flat=True) for name in workflows}
