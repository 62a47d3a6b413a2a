"""Task servers: who runs dispatched work."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Protocol

from chainsched.conf import get_config


class TaskServer(Protocol):
    """Runs executions that were dispatched."""

    def known_workflows(self, *, now: datetime) -> Collection[str]:
        """The names it can run at present; rows that name another stay queued."""
        ...

    def recent_workflows(self, *, now: datetime) -> Collection[str]:
        """The names it can run, or could until a moment ago; what was dispatched for another goes back."""
        ...

    def submit(self, execution_ids: Sequence[int]) -> None:
        """Take over these pending executions."""
        ...


def get_server() -> TaskServer:
    """The server that ``CHAINSCHED['TASK_SERVER']`` names."""
    from chainsched.servers.database import DatabaseServer  # noqa: PLC0415 - the models must be loaded first
    from chainsched.servers.inline import InlineServer  # noqa: PLC0415

    return {"database": DatabaseServer, "inline": InlineServer}[get_config().task_server]()
