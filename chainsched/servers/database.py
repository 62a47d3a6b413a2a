"""The default server: workers claim pending rows from the database by themselves."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from chainsched.conf import get_config
from chainsched.models import Process
from chainsched.servers import TaskServer


class DatabaseServer(TaskServer):
    """Leaves the rows where workers find them."""

    def known_workflows(self, *, now: datetime) -> Collection[str]:
        beaten_since = now - timedelta(seconds=get_config().process_expiry)
        alive = Process.objects.alive(beaten_since=beaten_since).values_list("workflows", flat=True)
        return {name for workflows in alive for name in workflows}

    def submit(self, execution_ids: Sequence[int]) -> None:
        """Do nothing: a pending row is all that a worker needs."""
