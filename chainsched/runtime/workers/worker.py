"""The worker: takes the jobs that it can start and writes their progress and results, in batches."""

from __future__ import annotations

import logging
from datetime import datetime

from chainsched.conf import get_config
from chainsched.db.clock import database_now
from chainsched.domain import outcomes
from chainsched.domain.outcomes import FailureType, Finished
from chainsched.flow.maintain.recall import give_back
from chainsched.flow.operate.take import Taken
from chainsched.flow.run.claim import find_cancelled, note_progress
from chainsched.flow.run.record import Recorded, record
from chainsched.models import Metadata, Process
from chainsched.runtime.loops.poller import Turn
from chainsched.runtime.workers.runner import Collected, Runner
from chainsched.servers import get_server

logger = logging.getLogger(__name__)

FORGOTTEN = "Its end was recorded, and the database server that took over does not know it."


class Worker:
    """One turn records the finished jobs and fills the free slots of its runner."""

    def __init__(self, process: Process, runner: Runner) -> None:
        self._process = process
        self._runner = runner
        self._unwritten = Collected()
        self._deferred: list[Finished] = []
        self._deferred_tried_at: datetime | None = None
        self._held: set[int] = set()
        self._cancels_sent: set[int] = set()
        self._cancels_read_at: datetime | None = None
        self._claims_checked_at: datetime | None = None
        self._is_claim_uncertain = False
        self._has_stopped_claiming = False
        self._is_abandoned = False

    @property
    def is_idle(self) -> bool:
        """Whether no job is running and no result is left to write."""
        is_done = self._runner.running == 0 and not self._unwritten.settled and not self._deferred
        return is_done and not self._is_claim_uncertain

    def stop_claiming(self) -> None:
        """Take no more jobs; those that were taken are finished and recorded."""
        self._has_stopped_claiming = True

    def drain(self) -> None:
        """Take no more jobs; running ones are finished and recorded, those that have not begun go back to the queue."""
        self.stop_claiming()
        self._runner.withdraw()

    def abandon(self) -> None:
        """Do nothing more: the lease is lost, and no result of this worker counts."""
        self._is_abandoned = True

    def turn(self, now: datetime) -> Turn:
        if self._is_abandoned:
            return Turn()
        written = self._write(now)
        self._forward_cancels(now)
        self._return_unknown_claims(now)
        taken = Taken() if self._has_stopped_claiming else self._start(now)
        return Turn(did=written + taken.cancelled, has_more=taken.has_more)

    def _write(self, now: datetime) -> int:
        """Write progress, returned jobs and results; each is kept until the database has accepted it."""
        self._keep(self._runner.collect())
        kept = self._unwritten
        if kept.progress:
            # Before the results: an execution that has ended is final.
            kept.progress = note_progress(kept.progress, process=self._process)
        if kept.withdrawn:
            left = give_back(kept.withdrawn, process=self._process, now=database_now())
            given_back = set(kept.withdrawn) - left
            self._held -= given_back
            # When they are taken again, they are other executions.
            self._cancels_sent -= given_back
            kept.withdrawn = list(left)
        return self._record_finished() + self._record_deferred(now)

    def _keep(self, collected: Collected) -> None:
        self._unwritten.finished += collected.finished
        self._unwritten.progress |= collected.progress
        self._unwritten.withdrawn += collected.withdrawn

    def _record_finished(self) -> int:
        """Record the jobs that have just ended; those with rows that another transaction has locked are deferred.

        The time is read after the results: a job may have ended since the turn began, and no job should seem to have
        ended before the last thing that it did. Dependents are queued with them, so that this turn can take these.
        """
        finished = self._unwritten.finished
        if not finished:
            return 0
        recorded = record(finished, now=database_now(), by=self._process, opens=True)
        self._unwritten.finished = []
        self._deferred += [item for item in finished if item.execution_id in recorded.unwritten]
        return self._forget_closed(recorded)

    def _record_deferred(self, now: datetime) -> int:
        """Try the deferred results again, once per interval and without waiting for locks."""
        if not self._deferred or not self._is_time(self._deferred_tried_at, now):
            return 0
        self._deferred_tried_at = now
        recorded = record(self._deferred, now=database_now(), by=self._process, is_waiting=False)
        self._deferred = [item for item in self._deferred if item.execution_id in recorded.unwritten]
        return self._forget_closed(recorded)

    def _forget_closed(self, recorded: Recorded) -> int:
        closed = {*recorded.ended, *recorded.late}
        self._held -= closed
        self._cancels_sent -= closed
        return len(recorded.ended)

    @staticmethod
    def _is_time(last_at: datetime | None, now: datetime) -> bool:
        """Whether an interval has passed."""
        return last_at is None or (now - last_at).total_seconds() >= get_config().worker_interval

    def _forward_cancels(self, now: datetime) -> None:
        """Ask jobs to stop that were cancelled, from any process; the rows are read once per interval."""
        if not self._held or not self._is_time(self._cancels_read_at, now):
            return
        self._cancels_read_at = now
        wanted = find_cancelled(process=self._process) - self._cancels_sent
        self._cancels_sent |= wanted
        self._runner.cancel(wanted)

    def _return_unknown_claims(self, now: datetime) -> None:
        """Deal with executions that this process has by their rows and does not know.

        A transaction that failed may have been committed all the same: the executions that it took go back. After a
        failover the new database server may lack the commit of a recorded result, which it does not report: that run
        is lost.
        """
        self._claims_checked_at = self._claims_checked_at or now
        if self._is_claim_uncertain:
            found = Metadata.objects.unknown_to(self._process, known=self._held)
            self._is_claim_uncertain = bool(give_back(found, process=self._process, now=now))
        elif (now - self._claims_checked_at).total_seconds() >= get_config().process_expiry:
            self._claims_checked_at = now
            self._fail_forgotten(now)

    def _fail_forgotten(self, now: datetime) -> None:
        found = Metadata.objects.unknown_to(self._process, known=self._held)
        if found:
            logger.warning(
                "%d recorded executions are in progress again after a failover; they will run again.", len(found)
            )
            record([Finished(id_, outcomes.failed(FailureType.LOST, FORGOTTEN)) for id_ in found], now=now)

    def _start(self, now: datetime) -> Taken:
        """Fill the free slots."""
        self._is_claim_uncertain = True
        taken = get_server().take(process=self._process, limit=self._runner.free, now=now)
        if taken.claims and not self._is_abandoned:
            self._held.update(item.execution_id for item in taken.claims)
            self._runner.start(*taken.claims)
        self._is_claim_uncertain = False
        return taken
