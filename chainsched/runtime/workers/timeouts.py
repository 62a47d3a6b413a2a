"""Timeouts of jobs and children: overrunning jobs, frozen children, and jobs that wait behind long ones.

Jobs that overrun are asked to stop, then interrupted, then killed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from chainsched.conf import get_config
from chainsched.runtime.workers.child_pool import ChildPool
from chainsched.runtime.workers.child_state import ChildState, Job, is_kept_waiting, is_stuck, is_unresponsive

logger = logging.getLogger(__name__)

TICK = 1.0
# The interval while a job has been asked to stop.
STOPPING_TICK = 0.05


class Timeouts:
    """Checks all children and their running jobs, again and again."""

    def __init__(self, pool: ChildPool, *, take_back: Callable[[ChildState], None]) -> None:
        self._pool = pool
        self._take_back = take_back
        self._checked_at = time.monotonic()

    def check(self, now: float) -> None:
        """Act on all timeouts that have passed."""
        self._reset_after_freeze(now)
        for child in self._pool:
            for job in child.begun:
                self._watch_job(child, job, now)
            self._take_back_if_stuck(child, now)
            self._replace_if_unresponsive(child, now)

    def seconds_to_next(self, now: float) -> float:
        """The seconds until the next check is needed."""
        running = [job for child in self._pool for job in child.begun]
        if any(job.stop_asked_at for job in running):
            return STOPPING_TICK
        return min([TICK, *(_deadline(job, now) - now for job in running)])

    def ask_to_stop(self, child: ChildState, job: Job, now: float) -> None:
        """Ask a job to stop; it is interrupted and killed if it does not."""
        job.stop_asked_at = now
        self._pool.send(child, {"stop": job.id})

    def _reset_after_freeze(self, now: float) -> None:
        """Restart the clocks of children after this process was frozen: their messages have not been read yet."""
        if now - self._checked_at > 2 * TICK:
            for child in self._pool:
                child.last_message_at = now
        self._checked_at = now

    def _watch_job(self, child: ChildState, job: Job, now: float) -> None:
        began_at = job.began_at or now
        if job.stop_asked_at is None and now - began_at >= job.item.timeout_seconds:
            job.timed_out = True
            self.ask_to_stop(child, job, now)
        if job.stop_asked_at is not None:
            self._enforce_stop(child, job, now)

    def _enforce_stop(self, child: ChildState, job: Job, now: float) -> None:
        """Interrupt a job that was asked to stop after half the grace period; kill its child at the end of it."""
        grace, waited = get_config().kill_grace, job.seconds_since_stop(now)
        if waited >= grace / 2 and not job.is_interrupted:
            job.is_interrupted = True
            self._pool.send(child, {"interrupt": job.id})
        if waited < grace:
            return
        are_all_late = all(other.seconds_since_stop(now) >= grace for other in child.begun)
        if are_all_late or waited >= get_config().shutdown_timeout:
            child.was_killed_for = job.id
            self._pool.kill(child)
        else:
            # Other jobs run in the same process: they may finish first, and no new job starts there.
            self._pool.retire(child)
            self._take_back(child)

    def _take_back_if_stuck(self, child: ChildState, now: float) -> None:
        """Take back jobs that wait behind a long one; the child gets no more until it replies."""
        if is_stuck(child, now) and is_kept_waiting(child, now):
            self._take_back(child)
            child.is_reply_awaited = True
            self._pool.send(child, {"answer": True})

    def _replace_if_unresponsive(self, child: ChildState, now: float) -> None:
        if is_unresponsive(child, now):
            silent_seconds = now - child.last_message_at
            logger.error("Worker child (pid %s) began no job for %.0f s; replacing it.", child.pid, silent_seconds)
            self._pool.kill(child)


def _deadline(job: Job, now: float) -> float:
    """The monotonic time of the next check that a running job needs."""
    return (job.began_at or now) + job.item.timeout_seconds
