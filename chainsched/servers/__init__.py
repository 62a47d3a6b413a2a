"""Task servers: each runs the executions that the dispatcher has dispatched."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Protocol, cast

from django.utils.functional import SimpleLazyObject

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


def known_workflows(*, now: datetime) -> Collection[str]:
    """The names that the server can run at present; it is asked when they are first looked at, if they are at all."""
    return cast("Collection[str]", SimpleLazyObject(lambda: get_server().known_workflows(now=now)))


def get_server() -> TaskServer:
    """A new object of the class that ``CHAINSCHED['TASK_SERVER']`` names."""
    return cast("TaskServer", load_server()())
