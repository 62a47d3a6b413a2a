"""What has become of the claims of a worker: the supervisor's thread puts it in, the recording thread takes it out.

All that these two threads share is here, behind one lock. Results are handed on together: not each one, but some.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

from chainsched.domain.outcomes import Finished, Outcome
from chainsched.runtime.workers.child_state import Job
from chainsched.runtime.workers.runner import Collected

# Results are handed on after this time, or when there are many.
GATHER_SECONDS = 0.005
GATHER_RESULTS = 200


class Results:
    """Counts the claims that are out, and gathers what comes back of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._harvest = Collected()
        self._outstanding = 0
        self._since: float | None = None

    @property
    def outstanding(self) -> int:
        """How many claims are waiting, under way, or finished and not collected."""
        with self._lock:
            return self._outstanding

    @property
    def has_results(self) -> bool:
        """Whether results wait to be handed on."""
        with self._lock:
            return self._since is not None

    def expect(self) -> None:
        """One more claim is out."""
        with self._lock:
            self._outstanding += 1

    def begin(self, job: Job) -> None:
        """It has been running for a while."""
        if job.delay is not None:
            with self._lock:
                self._harvest.begun[job.id] = job.delay

    def progress(self, execution_id: int, progress: Any) -> None:
        with self._lock:
            self._harvest.progress[execution_id] = progress

    def finish(self, job: Job, outcome: Outcome, *, progress: Any = None) -> None:
        with self._lock:
            self._harvest.finished.append(Finished(job.id, outcome, began_after=job.delay))
            if progress is not None:
                self._harvest.progress[job.id] = progress
            if self._since is None:
                self._since = time.monotonic()

    def withdraw(self, jobs: Iterable[Job]) -> None:
        """They are given back without having begun."""
        with self._lock:
            self._harvest.withdrawn += [job.id for job in jobs]

    def discard(self, number: int) -> None:
        """So many claims are nobody's any more."""
        with self._lock:
            self._outstanding -= number

    def discard_all(self, *, held: int) -> None:
        """The claims that are held are nobody's any more, nor is what has gathered; others may still be on the way."""
        with self._lock:
            self._outstanding -= held + self._harvest.over
            self._harvest, self._since = Collected(), None

    def is_ripe(self) -> bool:
        """Whether it is time to hand on what has gathered; results that were announced are not announced again."""
        with self._lock:
            finished = len(self._harvest.finished)
            is_time = self._since is not None and (
                time.monotonic() - self._since >= GATHER_SECONDS
                or finished >= GATHER_RESULTS
                or finished == self._outstanding
            )
            if is_time:
                self._since = None
            return is_time or bool(self._harvest.withdrawn)

    def collect(self) -> Collected:
        """What has gathered since the last call."""
        with self._lock:
            collected, self._harvest = self._harvest, Collected()
            self._since = None
            self._outstanding -= collected.over
        return collected
