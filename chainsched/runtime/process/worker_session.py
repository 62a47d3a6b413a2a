"""A worker session: one lease, the worker that takes work under it, and the two ways in which both end.

Normally a session is drained and its lease released. A session that lost its lease is abandoned: its results do not
count.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import datetime

from django.db import DatabaseError, InterfaceError

from chainsched.conf import get_config
from chainsched.domain.loops import WORKER
from chainsched.runtime.loops.loops import poller_for
from chainsched.runtime.loops.poller import Poller, Turn
from chainsched.runtime.process.lease import Lease
from chainsched.runtime.support.background import run_in_background
from chainsched.runtime.support.deadlines import is_before, seconds_until
from chainsched.runtime.workers.runner import Runner
from chainsched.runtime.workers.worker import Worker

logger = logging.getLogger(__name__)

# How often a drain checks without a wake-up whether it is complete.
CHECK_SECONDS = 1.0
# How long releasing the lease may take.
LAST_BEAT_SECONDS = 5.0


class WorkerSession:
    """Begins with its lease; its worker turns in a separate thread, if its process has workflows to run."""

    def __init__(
        self,
        lease: Lease,
        runner: Runner,
        *,
        after: Callable[[str, Turn], None],
        on_death: Callable[[], None],
    ) -> None:
        self.lease = lease
        self.is_lost = False
        self._runner = runner
        self._after = after
        self._turned = threading.Event()
        self._worker = Worker(lease.process, runner)
        self._poller = self._new_poller(on_death) if lease.process.workflows else None

    def start(self) -> None:
        self.lease.start()
        if self._poller is not None:
            self._poller.start()

    def wake(self) -> None:
        """Let the worker take its next turn now."""
        if self._poller is not None:
            self._poller.wake()

    def is_hung(self, seconds: float) -> bool:
        """Whether the worker has waited for a database reply for so long, although the lease was renewed."""
        return self._poller is not None and self._poller.is_hung(seconds)

    def turned_at(self) -> dict[str, datetime]:
        """When its worker last completed a turn; before the first, when it began. Empty without a worker."""
        if self._poller is None:
            return {}
        return {WORKER: self._poller.turned_at or self.lease.process.started_at}

    def abandon(self) -> None:
        """Stop renewing, taking work and recording; returns at once."""
        self._worker.abandon()
        self.lease.abandon()
        if self._poller is not None:
            self._poller.stop()

    def drain(self, deadline: float) -> bool:
        """Start no more jobs and let running ones finish; False if a result was not recorded in time."""
        if self._poller is None:
            return True
        is_drained = self._finish(self._poller, deadline)
        self._poller.stop()
        self._poller.join(seconds_until(deadline))
        return is_drained

    def release_lease(self) -> None:
        """Release the lease, so that no reaper waits for it; if the database does not reply, it expires."""
        try:
            run_in_background(self.lease.stop).result(LAST_BEAT_SECONDS)
        except (DatabaseError, InterfaceError, TimeoutError) as error:
            reason = str(error).strip() or "the database does not reply"
            logger.warning("Process %d could not release its lease; it will expire: %s", self.lease.process.pk, reason)

    def _new_poller(self, on_death: Callable[[], None]) -> Poller:
        return poller_for(WORKER, self._worker.turn, after=self._note_turn, on_death=on_death)

    def _note_turn(self, name: str, turn: Turn) -> None:
        self._turned.set()
        self._after(name, turn)

    def _finish(self, poller: Poller, deadline: float) -> bool:
        self._worker.drain()
        poller.wake()
        if self._is_idle_by(deadline, poller):
            return True
        logger.error("Jobs did not finish or were not recorded in time; %d still run.", self._runner.running)
        self._runner.end_running()
        # Jobs that were ended are recorded; jobs in threads go on until the process exits.
        grace = get_config().kill_grace if self._runner.is_killable else 0
        return self._is_idle_by(time.monotonic() + grace, poller)

    def _is_idle_by(self, deadline: float, poller: Poller) -> bool:
        """Wait until no job runs and no result is left to write. An idle worker needs no database for that.

        A turn that began before the drain may be taking work. One that hangs there until the deadline has started no
        job; if it took any all the same, a reaper closes these as lost when the lease is released.
        """
        while not poller.holds_between_turns(lambda: self._worker.is_idle) and is_before(deadline):
            self._turned.wait(min(CHECK_SECONDS, seconds_until(deadline)))
            self._turned.clear()
        return self._worker.is_idle
