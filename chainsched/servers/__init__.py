"""Task servers: each runs jobs. Its workers take queued rows for themselves, or the dispatcher submits executions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Protocol, cast

from django.utils.functional import SimpleLazyObject

from chainsched.conf import load_server
from chainsched.flow.operate.take import Taken as Taken
from chainsched.models import Process


class TaskServer(Protocol):
    """Runs executions.

    Workers of a server that *pulls* take queued rows for themselves. To one that is *pushed to* the dispatcher submits
    pending executions as far as it has room; it claims them by their ids.
    """

    @abstractmethod
    def known_workflows(self, *, now: datetime) -> Collection[str]:
        """The names it can run at present; queued rows that name another workflow stay queued."""
        ...

    @abstractmethod
    def recent_workflows(self, *, now: datetime) -> Collection[str]:
        """The names of which it still claims pending executions; those that name another go back to the queue."""
        ...

    @abstractmethod
    def room(self, *, now: datetime) -> int | None:
        """How many executions it may be given now; None if the limits of chainsched alone decide."""
        ...

    @abstractmethod
    def take(self, *, process: Process, workflows: Collection[str], limit: int) -> Taken:
        """Work that a worker takes for itself, at most so much; nothing from a server that is pushed to."""
        ...

    @abstractmethod
    def submit(self, execution_ids: Sequence[int]) -> None:
        """Take over these pending executions; called in each turn that found room, and then there may be none.

        Executions that are still unclaimed after a minute are submitted again, so many in each further minute.
        """
        ...


def known_workflows(*, now: datetime) -> Collection[str]:
    """The names that the server can run at present; it is asked when they are first looked at, if they are at all."""
    return cast("Collection[str]", SimpleLazyObject(lambda: get_server().known_workflows(now=now)))


def get_server() -> TaskServer:
    """A new object of the class that ``CHAINSCHED['TASK_SERVER']`` names."""
    return cast("TaskServer", load_server()())
