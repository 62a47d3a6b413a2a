"""The clock over jobs and children: who has overstayed, who stands still, and what waits behind whom.

Jobs that overrun are told, interrupted and killed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from chainsched.conf import get_config
from chainsched.runtime.workers.child_pool import ChildPool
from chainsched.runtime.workers.child_state import ChildState, Job, is_kept_waiting, is_stuck, is_unresponsive
from chainsched.runtime.workers.results import Results

logger = logging.getLogger(__name__)

# A job shows as begun in the database once it has run this long; shorter ones are written when they end.
BEGUN_SECONDS = 0.2
TICK = 1.0
# While somebody was told to stop the clock goes faster.
STOPPING_TICK = 0.05


class Timeouts:
    """Looks at all children and what they run, again and again."""

    def __init__(
        self,
        pool: ChildPool,
        results: Results,
        *,
        on_result: Callable[[], None],
        take_back: Callable[[ChildState], None],
    ) -> None:
        self._pool = pool
        self._results = results
        self._on_result = on_result
        self._take_back = take_back
        self._looked_at = time.monotonic()

    def look(self, now: float) -> None:
        """Do what the time demands."""
        self._excuse_all_after_standing_still(now)
        for child in self._pool:
            for job in child.begun:
                self._watch_job(child, job, now)
            self._recall(child, now)
            self._replace_if_unresponsive(child, now)

    def patience(self, now: float) -> float:
        """How long until the next look."""
        if any(job.stop_asked_at for child in self._pool for job in child.jobs.values()):
            return STOPPING_TICK
        running = (job for child in self._pool for job in child.begun)
        return min([TICK, *(_deadline(job, now) - now for job in running)])

    def tell_to_stop(self, child: ChildState, job: Job, now: float) -> None:
        """Ask a job to stop; it is pressed from now on."""
        job.stop_asked_at = now
        self._pool.tell(child, {"stop": job.id})

    def _excuse_all_after_standing_still(self, now: float) -> None:
        """What children said while this process was frozen has not been heard yet."""
        if now - self._looked_at > 2 * TICK:
            for child in self._pool:
                child.heard_at = now
        self._looked_at = now

    def _watch_job(self, child: ChildState, job: Job, now: float) -> None:
        began_at = job.began_at or now
        if not job.is_noted and now - began_at >= BEGUN_SECONDS:
            job.is_noted = True
            self._results.begin(job)
            self._on_result()
        if job.stop_asked_at is None and now - began_at >= job.item.timeout_seconds:
            job.timed_out = True
            self.tell_to_stop(child, job, now)
        if job.stop_asked_at is not None:
            self._press(child, job, now)

    def _press(self, child: ChildState, job: Job, now: float) -> None:
        """It was told; then it is interrupted, and at the end of the grace its child is killed."""
        grace, waited = get_config().kill_grace, job.overstayed(now)
        if waited >= grace / 2 and not job.is_interrupted:
            job.is_interrupted = True
            self._pool.tell(child, {"interrupt": job.id})
        if waited < grace:
            return
        if waited >= get_config().shutdown_timeout or all(other.overstayed(now) >= grace for other in child.begun):
            child.was_killed_for = job.id
            self._pool.kill(child)
        else:
            # Others run in the same process: they may finish first, and nothing new begins there.
            self._pool.retire(child)
            self._take_back(child)

    def _recall(self, child: ChildState, now: float) -> None:
        """Take back what waits behind a job that takes long; there is more when the child gives a sign of life."""
        if is_stuck(child, now) and is_kept_waiting(child, now):
            self._take_back(child)
            child.is_deaf = True
            self._pool.tell(child, {"answer": True})

    def _replace_if_unresponsive(self, child: ChildState, now: float) -> None:
        if is_unresponsive(child, now):
            logger.error("A child did not begin what it was given; it is replaced.")
            self._pool.kill(child)


def _deadline(job: Job, now: float) -> float:
    """When there is next something to do about a job that runs."""
    return (job.began_at or now) + (job.item.timeout_seconds if job.is_noted else BEGUN_SECONDS)
