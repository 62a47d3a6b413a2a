"""The results of a worker's claims: the runner's thread adds them, the recording thread takes them out.

All data that these two threads share is here, behind one lock. Results are announced in batches, not one by one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

from chainsched.domain.outcomes import Finished, Outcome
from chainsched.runtime.workers.child_state import Job
from chainsched.runtime.workers.runner import Collected

# Results are announced after this time, or when there are this many and they are half of those that are awaited.
GATHER_SECONDS = 0.005
GATHER_RESULTS = 200
# Of so many claims results come quickly or keep the children busy for a while, and a recording of a few costs nearly as
# much as one of hundreds.
MANY = 100
GATHER_MANY_SECONDS = 0.025


class Results:
    """Counts the outstanding claims and collects their results."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._collected = Collected()
        self._outstanding = 0
        self._since: float | None = None

    @property
    def outstanding(self) -> int:
        """How many claims are waiting, running, or finished and not collected."""
        with self._lock:
            return self._outstanding

    @property
    def has_results(self) -> bool:
        """Whether there are results that were not announced."""
        with self._lock:
            return self._since is not None

    def expect(self, number: int) -> None:
        """Count so many claims more."""
        with self._lock:
            self._outstanding += number

    def progress(self, execution_id: int, progress: Any) -> None:
        with self._lock:
            self._collected.progress[execution_id] = progress

    def finish(self, job: Job, outcome: Outcome, *, progress: Any = None) -> None:
        with self._lock:
            self._collected.finished.append(Finished(job.id, outcome, began_after=job.delay))
            if progress is not None:
                self._collected.progress[job.id] = progress
            if self._since is None:
                self._since = time.monotonic()

    def withdraw(self, jobs: Iterable[Job]) -> None:
        """Return jobs that have not begun."""
        with self._lock:
            self._collected.withdrawn += [job.id for job in jobs]

    def discard(self, number: int) -> None:
        """Count so many claims no longer."""
        with self._lock:
            self._outstanding -= number

    def discard_all(self, *, held: int) -> None:
        """Discard the held claims and all collected results; further claims may still be on the way to the runner."""
        with self._lock:
            self._outstanding -= held + self._collected.settled
            self._collected, self._since = Collected(), None

    def is_ready(self) -> bool:
        """Whether to announce the collected results now; results that were announced are not announced again."""
        with self._lock:
            finished = len(self._collected.finished)
            gather_seconds = GATHER_SECONDS if self._outstanding < MANY else GATHER_MANY_SECONDS
            is_time = self._since is not None and (
                finished == self._outstanding
                or finished >= max(GATHER_RESULTS, self._outstanding / 2)
                or time.monotonic() - self._since >= gather_seconds
            )
            if is_time:
                self._since = None
            return is_time or bool(self._collected.withdrawn)

    def collect(self) -> Collected:
        """The events since the last call."""
        with self._lock:
            collected, self._collected = self._collected, Collected()
            self._since = None
            self._outstanding -= collected.settled
        return collected
