"""Task servers: each runs the executions that the dispatcher has dispatched."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Protocol, cast

from chainsched.conf import load_server


class TaskServer(Protocol):
    """Runs executions that were dispatched."""

    @abstractmethod
    def known_workflows(self, *, now: datetime) -> Collection[str]:
        """The names it can run at present; queued rows that name another workflow stay queued."""
        ...

    @abstractmethod
    def recent_workflows(self, *, now: datetime) -> Collection[str]:
        """The names it can run, or could until a short time ago; pending executions that name another go back."""
        ...

    @abstractmethod
    def submit(self, execution_ids: Sequence[int]) -> None:
        """Take over these pending executions; called at the end of each turn, so there may be none."""
        ...


def get_server() -> TaskServer:
    """A new object of the class that ``CHAINSCHED['TASK_SERVER']`` names."""
    return cast("TaskServer", load_server()())
