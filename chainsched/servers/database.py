"""The default server: workers claim pending rows from the database by themselves."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from chainsched.conf import get_config
from chainsched.models import Process
from chainsched.models.process import ProcessQuerySet
from chainsched.servers import TaskServer


class DatabaseServer(TaskServer):
    """Leaves the rows where workers find them."""

    def known_workflows(self, *, now: datetime) -> Collection[str]:
        return _names(Process.objects.alive(beaten_since=_one_expiry_before(now)))

    def recent_workflows(self, *, now: datetime) -> Collection[str]:
        """Includes workers that stopped within one expiry: most of them are being restarted."""
        return _names(Process.objects.with_heartbeat(since=_one_expiry_before(now)))

    def submit(self, execution_ids: Sequence[int]) -> None:
        """Do nothing: a pending row is all that a worker needs."""


def _one_expiry_before(now: datetime) -> datetime:
    return now - timedelta(seconds=get_config().process_expiry)


def _names(processes: ProcessQuerySet) -> set[str]:
    return {name for workflows in processes.values_list("workflows", flat=True) for name in workflows}
