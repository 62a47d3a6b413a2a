"""The worker: claims what it can start, and writes down what has happened, in batches."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime

from chainsched.conf import get_config
from chainsched.db.clock import database_now
from chainsched.domain.outcomes import Finished
from chainsched.flow.run.claim import begin, claim, find_cancelled, hand_back, note_progress, release
from chainsched.flow.run.record import Recorded, record
from chainsched.models import Process
from chainsched.runtime.loops.poller import Turn
from chainsched.runtime.workers.runner import Collected, Runner

logger = logging.getLogger(__name__)


class Worker:
    """One turn records what finished and fills the free places of its runner."""

    def __init__(self, process: Process, runner: Runner, *, workflows: Sequence[str]) -> None:
        self._process = process
        self._runner = runner
        self._workflows = workflows
        self._unwritten = Collected()
        self._put_aside: list[Finished] = []
        self._tried_at: datetime | None = None
        self._held: set[int] = set()
        self._told: set[int] = set()
        self._asked_at: datetime | None = None
        self._looked_at: datetime | None = None
        self._is_unsure = False
        self._claims_no_more = False
        self._is_abandoned = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way and nothing is left to write."""
        return self._runner.running == 0 and not self._unwritten.over and not self._put_aside

    def claim_no_more(self) -> None:
        """Finish and record what was claimed."""
        self._claims_no_more = True

    def drain(self) -> None:
        """Claim nothing more; what runs is finished and recorded, what has not begun goes back."""
        self.claim_no_more()
        self._runner.withdraw()

    def abandon(self) -> None:
        """Do nothing more at all: the lease is lost, and nothing of this worker counts."""
        self._is_abandoned = True

    def turn(self, now: datetime) -> Turn:
        if self._is_abandoned:
            return Turn()
        written = self._write(now)
        self._pass_cancels_on(now)
        self._find_strays(now)
        if not self._claims_no_more:
            self._start()
        return Turn(did=written)

    def _write(self, now: datetime) -> int:
        """Write what happened; it is kept until the database has taken it."""
        self._keep(self._runner.collect())
        kept = self._unwritten
        if kept.begun:
            begin(kept.begun, process=self._process)
            kept.begun = {}
        if kept.progress:
            # Before the results: an execution that has ended is final.
            kept.progress = note_progress(kept.progress, process=self._process)
        if kept.withdrawn:
            left = release(kept.withdrawn, process=self._process)
            given_back = set(kept.withdrawn) - left
            self._held -= given_back
            # Whoever takes it next has to be told again, and that may be us.
            self._told -= given_back
            kept.withdrawn = list(left)
        return self._record_fresh() + self._record_held(now)

    def _keep(self, collected: Collected) -> None:
        self._unwritten.finished += collected.finished
        self._unwritten.begun |= collected.begun
        self._unwritten.progress |= collected.progress
        self._unwritten.withdrawn += collected.withdrawn

    def _record_fresh(self) -> int:
        """Record what has just ended; that whose rows somebody holds is put aside, and waited for no more.

        The time is read after the results were: a job may have ended since the turn began, and nothing should seem
        to have ended before the last thing that it did.
        """
        finished = self._unwritten.finished
        if not finished:
            return 0
        recorded = record(finished, now=database_now(), by=self._process)
        self._unwritten.finished = []
        self._put_aside += [item for item in finished if item.execution_id in recorded.unwritten]
        return self._note_over(recorded)

    def _record_held(self, now: datetime) -> int:
        """Try now and then what was put aside, without waiting for anybody."""
        if not self._put_aside or not self._is_time(self._tried_at, now):
            return 0
        self._tried_at = now
        recorded = record(self._put_aside, now=database_now(), by=self._process, is_waiting=False)
        self._put_aside = [item for item in self._put_aside if item.execution_id in recorded.unwritten]
        return self._note_over(recorded)

    def _note_over(self, recorded: Recorded) -> int:
        over = {*recorded.ended, *recorded.late}
        self._held -= over
        self._told -= over
        return len(recorded.ended)

    @staticmethod
    def _is_time(last_at: datetime | None, now: datetime) -> bool:
        """Whether an interval has gone by."""
        return last_at is None or (now - last_at).total_seconds() >= get_config().worker_interval

    def _pass_cancels_on(self, now: datetime) -> None:
        """Tell jobs that somebody wants them to stop, wherever that was said; asked for now and then."""
        if not self._held or not self._is_time(self._asked_at, now):
            return
        self._asked_at = now
        wanted = find_cancelled(process=self._process) - self._told
        self._told |= wanted
        self._runner.cancel(wanted)

    def _find_strays(self, now: datetime) -> None:
        """Give back what stands under our name and is not in our hands.

        A claim that failed may have been committed all the same; and a server that takes another's place may have
        lost the commit with which we wrote something down, which nobody tells us.
        """
        self._looked_at = self._looked_at or now
        if self._is_unsure or (now - self._looked_at).total_seconds() >= get_config().process_expiry:
            self._looked_at = now
            found = hand_back(process=self._process, known=self._held)
            if found and not self._is_unsure:
                logger.warning("%d executions that were written down are open again; they are made once more.", found)

    def _start(self) -> None:
        """Fill the free places."""
        self._is_unsure = True
        claims = claim(process=self._process, workflows=self._workflows, limit=self._runner.free, is_begun=False)
        self._is_unsure = False
        for item in claims:
            if self._is_abandoned:
                return
            self._held.add(item.execution_id)
            self._runner.start(item)
