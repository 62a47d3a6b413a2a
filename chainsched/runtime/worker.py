"""The worker: claims what it can start, and records what has finished, in batches."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime

from chainsched.domain.outcomes import Finished
from chainsched.flow.execute import claim, hand_back
from chainsched.flow.record import record
from chainsched.models import Process
from chainsched.runtime.poller import Turn
from chainsched.runtime.runner import Runner

logger = logging.getLogger(__name__)


class Worker:
    """One turn records what finished and fills the free places of its runner."""

    def __init__(self, process: Process, runner: Runner, *, workflows: Sequence[str]) -> None:
        self._process = process
        self._runner = runner
        self._workflows = workflows
        self._unrecorded: list[Finished] = []
        self._held: set[int] = set()
        self._is_unsure = False
        self._is_draining = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way and nothing is left to record."""
        return self._runner.running == 0 and not self._unrecorded

    def drain(self) -> None:
        """Claim nothing more; what runs is finished and recorded."""
        self._is_draining = True

    def turn(self, now: datetime) -> Turn:
        recorded = self._record(now)
        started = 0 if self._is_draining else self._start()
        return Turn(did=recorded + started)

    def _record(self, now: datetime) -> int:
        """Write results; they are kept until the database has taken them."""
        self._unrecorded += self._runner.collect()
        if not self._unrecorded:
            return 0
        recorded = record(self._unrecorded, now=now, by=self._process)
        self._unrecorded = [item for item in self._unrecorded if item.execution_id in recorded.unwritten]
        self._held -= {*recorded.ended, *recorded.late}
        return len(recorded.ended)

    def _start(self) -> int:
        """Fill the free places. After a claim that failed, what it may have taken all the same is given back."""
        if self._is_unsure:
            hand_back(process=self._process, known=self._held)
        self._is_unsure = True
        claims = claim(process=self._process, workflows=self._workflows, limit=self._runner.free)
        self._is_unsure = False
        for item in claims:
            self._held.add(item.execution_id)
            self._runner.start(item)
        return len(claims)
