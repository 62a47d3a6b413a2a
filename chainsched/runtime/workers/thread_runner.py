"""Jobs in threads of the worker's own process: for development, and for small sites."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from chainsched.db import kept_sessions
from chainsched.domain.outcomes import Finished
from chainsched.domain.run_context import Claim
from chainsched.flow.run.execute import JobLink, execute
from chainsched.runtime.workers.connections import close_all, renew, renew_after, with_fresh_connections
from chainsched.runtime.workers.runner import Collected, Runner


class ThreadRunner(Runner):
    """Runs claims in threads of this process.

    Code that blocks cannot be stopped here, so timeouts are not enforced: for development and small sites.
    """

    def __init__(self, threads: int, *, on_result: Callable[[], None]) -> None:
        self._size = threads
        # Without threads there is no job that could not be ended.
        self.is_killable = threads == 0
        self._running = 0
        self._on_result = on_result
        self._inbox: queue.SimpleQueue[tuple[Claim, float] | None] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[Finished] = queue.SimpleQueue()
        self._progress: dict[int, Any] = {}
        self._stopped: set[int] = set()

    def open(self) -> None:
        for number in range(self._size):
            threading.Thread(target=self._run, name=f"chainsched-job-{number}", daemon=True).start()

    def use_lease(self, process_id: int, *, until: Callable[[], float], on_expiry: Callable[[], None]) -> None:
        """Do nothing: threads cannot be ended, and the lease itself notifies the supervisor when it is lost."""

    @property
    def free(self) -> int:
        return self._size - self._running

    @property
    def running(self) -> int:
        return self._running

    def start(self, *items: Claim) -> None:
        self._running += len(items)
        for item in items:
            self._inbox.put((item, time.monotonic()))

    def cancel(self, execution_ids: Iterable[int]) -> None:
        self._stopped.update(execution_ids)

    def withdraw(self) -> None:
        """Do nothing: every claim begins at once, since no more are taken than there are threads."""

    def collect(self) -> Collected:
        collected = Collected(progress=self._progress)
        self._progress = {}
        while not self._outbox.empty():
            collected.finished.append(self._outbox.get())
        self._running -= len(collected.finished)
        return collected

    def end_running(self) -> None:
        """Do nothing: threads cannot be ended."""

    def kill(self) -> None:
        self.close()

    def close(self) -> None:
        for _ in range(self._size):
            self._inbox.put(None)

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            item, claimed_at = taken
            delay = time.monotonic() - claimed_at
            renew()
            job_link = _ThreadJobLink(item.execution_id, self._stopped, self._note_progress)
            outcome = renew_after(execute(item, job_link=job_link, run_async=_run_async))
            self._stopped.discard(item.execution_id)
            self._outbox.put(Finished(item.execution_id, outcome, began_after=delay))
            self._on_result()
        close_all()

    def _take(self) -> tuple[Claim, float] | None:
        """The next claim; None at the end. Sessions that are unused for long are closed in between."""
        while True:
            with contextlib.suppress(queue.Empty):
                return self._inbox.get(timeout=kept_sessions.KEEP_SECONDS if kept_sessions.close_unused() else None)

    def _note_progress(self, execution_id: int, progress: Any) -> None:
        self._progress[execution_id] = progress


def _run_async(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(with_fresh_connections(coroutine))


@dataclass(frozen=True, slots=True)
class _ThreadJobLink(JobLink):
    """The link of a job to the worker in the same process."""

    execution_id: int
    stopped: set[int]
    note: Callable[[int, Any], None]

    def is_cancelled(self) -> bool:
        return self.execution_id in self.stopped

    def report(self, progress: Any) -> None:
        self.note(self.execution_id, progress)
