"""The worker: claims what it can start, and writes down what has happened, in batches."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime

from chainsched.conf import get_config
from chainsched.domain.outcomes import Finished
from chainsched.flow.execute import begin, claim, find_cancelled, hand_back, note_progress, release
from chainsched.flow.record import record
from chainsched.models import Process
from chainsched.runtime.poller import Turn
from chainsched.runtime.runner import Harvest, Runner

logger = logging.getLogger(__name__)


class Worker:
    """One turn records what finished and fills the free places of its runner."""

    def __init__(self, process: Process, runner: Runner, *, workflows: Sequence[str]) -> None:
        self._process = process
        self._runner = runner
        self._workflows = workflows
        self._unwritten = Harvest()
        self._held: set[int] = set()
        self._told: set[int] = set()
        self._asked_at: datetime | None = None
        self._is_unsure = False
        self._is_draining = False
        self._is_abandoned = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way and nothing is left to write."""
        return self._runner.running == 0 and not self._unwritten.finished and not self._unwritten.withdrawn

    def drain(self) -> None:
        """Claim nothing more; what runs is finished and recorded, what has not begun goes back."""
        self._is_draining = True
        self._runner.withdraw()

    def abandon(self) -> None:
        """Do nothing more at all: the lease is lost, and nothing of this worker counts."""
        self._is_abandoned = True

    def turn(self, now: datetime) -> Turn:
        if self._is_abandoned:
            return Turn()
        written = self._write(now)
        self._pass_cancels_on(now)
        if not self._is_draining:
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
            note_progress(kept.progress, process=self._process)
            kept.progress = {}
        if kept.withdrawn:
            release(kept.withdrawn, process=self._process)
            self._held -= set(kept.withdrawn)
            # Whoever takes it next has to be told again, and that may be us.
            self._told -= set(kept.withdrawn)
            kept.withdrawn = []
        return self._record(kept.finished, now) if kept.finished else 0

    def _keep(self, harvest: Harvest) -> None:
        self._unwritten.finished += harvest.finished
        self._unwritten.begun |= harvest.begun
        self._unwritten.progress |= harvest.progress
        self._unwritten.withdrawn += harvest.withdrawn

    def _record(self, finished: list[Finished], now: datetime) -> int:
        recorded = record(finished, now=now, by=self._process)
        self._unwritten.finished = [item for item in finished if item.execution_id in recorded.unwritten]
        over = {*recorded.ended, *recorded.late}
        self._held -= over
        self._told -= over
        return len(recorded.ended)

    def _pass_cancels_on(self, now: datetime) -> None:
        """Tell jobs that somebody wants them to stop, wherever that was said; asked for now and then."""
        if not self._held or (self._asked_at and (now - self._asked_at).total_seconds() < get_config().worker_interval):
            return
        self._asked_at = now
        wanted = find_cancelled(process=self._process) - self._told
        self._told |= wanted
        self._runner.cancel(wanted)

    def _start(self) -> None:
        """Fill the free places. After a claim that failed, what it may have taken all the same is given back."""
        if self._is_unsure:
            hand_back(process=self._process, known=self._held)
        self._is_unsure = True
        claims = claim(process=self._process, workflows=self._workflows, limit=self._runner.free, is_begun=False)
        self._is_unsure = False
        for item in claims:
            if self._is_abandoned:
                return
            self._held.add(item.execution_id)
            self._runner.start(item)
