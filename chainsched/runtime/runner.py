"""Where claimed work runs: the seam between a worker and the threads or processes behind it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Protocol

from django.db import close_old_connections, connections

from chainsched.domain.outcomes import Finished
from chainsched.flow.execute import Claim, execute


class Runner(Protocol):
    """Runs claims and hands back what became of them."""

    @property
    def free(self) -> int:
        """How many claims it can begin at once."""
        ...

    @property
    def running(self) -> int:
        """How many claims are under way or finished and not collected."""
        ...

    def start(self, item: Claim) -> None:
        """Begin a claim; only called while ``free`` is above zero."""
        ...

    def collect(self) -> list[Finished]:
        """What has finished since the last call."""
        ...

    def close(self) -> None:
        """Begin nothing more."""
        ...


class ThreadRunner(Runner):
    """Runs claims in threads of this process.

    Code that blocks cannot be stopped here, so timeouts are not enforced: for development and small sites.
    """

    def __init__(self, threads: int, *, on_result: Callable[[], None]) -> None:
        self._size = threads
        self._running = 0
        self._on_result = on_result
        self._inbox: queue.SimpleQueue[Claim | None] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[Finished] = queue.SimpleQueue()
        for number in range(threads):
            threading.Thread(target=self._run, name=f"chainsched-job-{number}", daemon=True).start()

    @property
    def free(self) -> int:
        return self._size - self._running

    @property
    def running(self) -> int:
        return self._running

    def start(self, item: Claim) -> None:
        self._running += 1
        self._inbox.put(item)

    def collect(self) -> list[Finished]:
        results = []
        while not self._outbox.empty():
            results.append(self._outbox.get())
        self._running -= len(results)
        return results

    def close(self) -> None:
        for _ in range(self._size):
            self._inbox.put(None)

    def _run(self) -> None:
        while (item := self._inbox.get()) is not None:
            close_old_connections()
            outcome = execute(item)
            close_old_connections()
            self._outbox.put(Finished(item.execution_id, outcome))
            self._on_result()
        connections.close_all()
