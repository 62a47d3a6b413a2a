"""Task servers: each runs jobs. Its workers take queued rows for themselves, or the dispatcher submits executions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Protocol, cast

from django.utils.functional import SimpleLazyObject

from chainsched.conf import load_server
from chainsched.domain.routing import Pool
from chainsched.flow.operate.take import Taken as Taken
from chainsched.models import Process


class TaskServer(Protocol):
    """Runs executions.

    Workers of a server that *pulls* take queued rows for themselves. To one that is *pushed to* the dispatcher submits
    pending executions as far as it has room; it claims them by their ids.
    """

    @abstractmethod
    def pools(self, *, now: datetime) -> Collection[Pool]:
        """What it can run at present, from which queues, and how many executions it may be given now.

        Rows that no pool takes stay queued.
        """
        ...

    @abstractmethod
    def recent_workflows(self, *, now: datetime) -> Collection[str]:
        """The names of which it still claims pending executions; those that name another go back to the queue."""
        ...

    @abstractmethod
    def take(self, *, process: Process, limit: int, now: datetime) -> Taken:
        """Work that a worker takes for itself in its turn at ``now``, at most so much; nothing if it is pushed to."""
        ...

    @abstractmethod
    def submit(self, execution_ids: Sequence[int]) -> None:
        """Take over these pending executions; called in each turn that found room, and then there may be none.

        Executions that are still unclaimed after a minute are submitted again, so many in each further minute.
        """
        ...

    @abstractmethod
    def cancel(self, execution_ids: Collection[int]) -> None:
        """Let these executions, which were asked to stop, stop as soon as may be; some may have ended meanwhile.

        A pending one is closed already and cannot be claimed. Called for executions that were submitted, once each.
        """
        ...

    @abstractmethod
    def forget(self, execution_ids: Collection[int]) -> None:
        """Drop these executions, which were submitted and went back to the queue: they do not exist any more."""
        ...


def known_pools(*, now: datetime) -> Collection[Pool]:
    """The pools of the server at present; it is asked when they are first looked at, if they are at all."""
    return cast("Collection[Pool]", SimpleLazyObject(lambda: get_server().pools(now=now)))


def get_server() -> TaskServer:
    """A new object of the class that ``CHAINSCHED['TASK_SERVER']`` names."""
    return cast("TaskServer", load_server()())
