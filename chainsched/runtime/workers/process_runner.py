"""The supervisor's side of its children: who runs what, and what becomes of it.

One thread with a selector, no database and no user code: nothing that a job or the database does can hold up its
clock. A child that dies fails what it was running and hands back what waited for it.
"""

from __future__ import annotations

import functools
import logging
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from chainsched.conf import get_config
from chainsched.domain.lookahead import Lookahead
from chainsched.domain.outcomes import Outcome
from chainsched.domain.states import ExecutionState
from chainsched.flow.run.claim import Claim
from chainsched.runtime.workers.child_pool import ChildPool
from chainsched.runtime.workers.child_state import ChildState, Job, blame, death_of, is_stuck
from chainsched.runtime.workers.fork_server import ForkServer
from chainsched.runtime.workers.free_slots import FreeSlots, MissingChildren
from chainsched.runtime.workers.mailbox import Mailbox
from chainsched.runtime.workers.protocol import Message, pack_claim, unpack_outcome
from chainsched.runtime.workers.results import GATHER_SECONDS, Results
from chainsched.runtime.workers.runner import Collected, Runner
from chainsched.runtime.workers.timeouts import Timeouts

logger = logging.getLogger(__name__)


class ProcessRunner(Runner):
    """Runs claims in child processes."""

    is_killable = True

    def __init__(
        self,
        fork_server: ForkServer,
        *,
        processes: int,
        threads: int,
        on_result: Callable[[], None],
        on_death: Callable[[], None] = lambda: None,
    ) -> None:
        self._processes = processes
        self._threads = threads
        self._on_result = on_result
        self._on_death = on_death
        self._selector = selectors.DefaultSelector()
        self._pool = ChildPool(fork_server, self._selector, self)
        self._results = Results()
        self._timeouts = Timeouts(self._pool, self._results, on_result=on_result, take_back=self._take_back)
        self._lookahead = Lookahead()
        self._waiting: deque[Job] = deque()
        self._mailbox = Mailbox()
        self._is_draining = False
        self._is_closing = False
        self._trusted_until: Callable[[], float] = lambda: float("inf")
        self._on_distrust: Callable[[], None] = lambda: None
        # The lease whose claims count.
        self._process_id: int | None = None
        self._free_slots = FreeSlots()
        self._takers = 0
        self._missing_children = MissingChildren()
        self._thread = threading.Thread(target=self._run, name="chainsched-children", daemon=True)

    def open(self) -> None:
        """Begin to live; children are born at once, so that the first job need not wait for them."""
        self._mailbox.open(self._selector)
        self._pool.open()
        self._thread.start()

    def trust(self, process_id: int, *, until: Callable[[], float], on_distrust: Callable[[], None]) -> None:
        """Kill everything when this monotonic time has come: others may take our jobs from then on."""
        self._mailbox.give(lambda: self._set_trust(process_id, until, on_distrust))

    @property
    def free(self) -> int:
        return 0 if self._is_draining else self._free_slots.number

    @property
    def running(self) -> int:
        return self._results.outstanding

    def start(self, item: Claim) -> None:
        self._results.expect()
        self._free_slots.hand_over()
        job = Job(item, claimed_at=time.monotonic())
        self._mailbox.give(lambda: self._accept(job))

    def cancel(self, execution_ids: Iterable[int]) -> None:
        for execution_id in execution_ids:
            self._mailbox.give(functools.partial(self._ask_to_stop, execution_id))

    def withdraw(self) -> None:
        self._mailbox.give(self._withdraw)

    def collect(self) -> Collected:
        return self._results.collect()

    def end_running(self) -> None:
        self._mailbox.give(self._end_running)

    def kill(self) -> None:
        """End every child now, forget what they were doing, and take no claim of the same lease any more."""
        self._mailbox.give(self._kill_all)

    def close(self) -> None:
        """Let the children end when they are done, and the nursery with whoever is left."""
        self._mailbox.give(self._close)
        self._thread.join(get_config().kill_grace)
        self._pool.close()
        self._mailbox.close()

    # The thread.

    def _run(self) -> None:
        try:
            self._turn_until_closed()
        finally:
            self._selector.close()
            if not self._is_closing:
                self._on_death()

    def _turn_until_closed(self) -> None:
        while not (self._is_closing and not self._pool):
            for key, _ in self._selector.select(self._patience()):
                key.data()
            self._mailbox.carry_out()
            self._keep_time()
            self._give_out()
            self._count_free_slots()
            if self._results.is_ripe():
                self._on_result()

    def _patience(self) -> float:
        """How long to wait when nothing comes in."""
        if self._mailbox:
            return 0
        if self._results.has_results:
            return GATHER_SECONDS
        now = time.monotonic()
        return max(0.0, min(self._timeouts.patience(now), self._trusted_until() - now))

    # Giving out work.

    @property
    def _depth(self) -> int:
        """How many jobs a child may have, running and waiting."""
        return self._threads + self._lookahead.ahead

    def _give_out(self) -> None:
        """Replace missing children and give them what waits."""
        if not self._is_draining:
            self._pool.fill(self._processes)
        while self._waiting and (child := self._least_busy()) is not None:
            self._give(child, self._next_batch(child))

    def _give(self, child: ChildState, batch: Sequence[Job]) -> None:
        now = time.monotonic()
        if not child.jobs:
            child.heard_at = now
        for job in batch:
            job.given_at = now
            child.jobs[job.id] = job
        # First the permits: a job for which there is none was taken back.
        child.start_tokens.grant(len(batch))
        self._pool.tell(child, {"run": [pack_claim(job.item) for job in batch], "round": child.start_tokens.round})

    def _accept(self, job: Job) -> None:
        self._free_slots.accept()
        if job.item.process_id != self._process_id:
            # Claimed under a lease that is gone, and handed over a moment too late.
            self._results.discard(1)
        elif self._is_draining:
            self._put_back(job)
        else:
            self._waiting.append(job)

    def _count_free_slots(self) -> None:
        """Find room where somebody can take work, so that nothing is claimed that would have to go back at once."""
        takers = self._find_takers()
        room = 0 if self._waiting else sum(max(0, self._depth - len(child.jobs)) for child in takers)
        # What those who retire still run takes the place of other jobs: there are never more at once than asked for.
        taken = sum(len(child.jobs) for child in self._pool if child.is_retiring)
        self._free_slots.count(max(0, room - taken))
        before, self._takers = self._takers, len(takers)
        if len(takers) > before:
            self._on_result()

    def _find_takers(self) -> list[ChildState]:
        now = time.monotonic()
        return [child for child in self._pool if child.is_ready and not self._is_full(child, now)]

    def _is_full(self, child: ChildState, now: float) -> bool:
        """Whether a child would not begin soon what it is given: its hands are full of long jobs, or it is deaf."""
        return child.is_deaf or (len(child.begun) >= self._threads and is_stuck(child, now))

    def _next_batch(self, child: ChildState) -> list[Job]:
        room = self._depth - len(child.jobs)
        share = max(1, -(-len(self._waiting) // max(1, len(self._pool))))
        return [self._waiting.popleft() for _ in range(min(room, share, len(self._waiting)))]

    def _least_busy(self) -> ChildState | None:
        child = min(self._find_takers(), key=lambda child: len(child.jobs), default=None)
        return child if child is not None and len(child.jobs) < self._depth else None

    def _take_back(self, child: ChildState) -> None:
        """Take everything from a child that it has not begun."""
        for job in reversed(child.take_back()):
            self._put_back(job)

    def _put_back(self, job: Job) -> None:
        """Nobody has begun it: somebody else may, here or elsewhere."""
        if job.stop_asked_at is not None:
            self._results.finish(job, Outcome(ExecutionState.CANCELLED))
        elif self._is_draining:
            self._results.withdraw([job])
        else:
            self._waiting.appendleft(job)

    # What children say, and how they end.

    def on_message(self, child: ChildState, message: Message) -> None:
        now = child.heard_at = time.monotonic()
        child.is_deaf = False
        if "finished" in message and (job := child.jobs.pop(message["finished"], None)) is not None:
            self._lookahead.learn(now - (job.began_at or now))
            outcome = blame(job, unpack_outcome(message["outcome"]))
            self._results.finish(job, outcome, progress=message.get("progress"))
        if "began" in message and (next_job := child.jobs.get(message["began"])) is not None:
            next_job.began_at = now
            child.has_worked = True
            if next_job.stop_asked_at is not None:
                next_job.stop_asked_at = now
        if "progress_of" in message:
            self._results.progress(message["progress_of"], message["progress"])
        if message.get("retiring"):
            child.is_retiring = True
            self._take_back(child)

    def on_end(self, child: ChildState, status: int) -> None:
        """Fail what a dead child was running, and hand back what waited for it."""
        for job in reversed(child.jobs.values()):
            if job.began_at is None:
                self._put_back(job)
            else:
                self._results.finish(job, death_of(job, child, status))

    def on_fork_server_exit(self) -> None:
        if not self._is_closing:
            logger.critical("The process that bears children is gone.")
            self._on_death()

    # The clock.

    def _keep_time(self) -> None:
        now = time.monotonic()
        if now >= self._trusted_until():
            self._trusted_until = lambda: float("inf")
            self._kill_all()
            self._on_distrust()
        self._timeouts.look(now)
        self._give_up_waiting(now)

    def _give_up_waiting(self, now: float) -> None:
        """Hand back what nobody here will begin soon, so that somebody else may: jobs turned out to be long."""
        ready = [child for child in self._pool if child.is_ready]
        is_stopped_up = bool(ready) and all(is_stuck(child, now) for child in ready)
        has_hands = any(child.is_proven(now) for child in ready)
        self._missing_children.look(now, are_there=has_hands, are_wanted=not self._is_draining)
        if self._waiting and (is_stopped_up or self._missing_children.are_missing):
            self._lookahead.forget()
            self._hand_back_waiting()

    # Orders.

    def _ask_to_stop(self, execution_id: int) -> None:
        """Somebody cancelled it. One that has not begun is not begun any more."""
        for child in self._pool:
            job = child.jobs.get(execution_id)
            if job is not None and job.stop_asked_at is None:
                job.stop_asked_at = time.monotonic()
                if job.began_at is None:
                    self._take_back(child)
                if execution_id in child.jobs:
                    self._timeouts.tell_to_stop(child, job, job.stop_asked_at)
        for job in [job for job in self._waiting if job.id == execution_id]:
            self._waiting.remove(job)
            self._results.finish(job, Outcome(ExecutionState.CANCELLED))

    def _withdraw(self) -> None:
        """Give back everything that has not begun."""
        self._is_draining = True
        self._hand_back_waiting()
        for child in self._pool:
            self._pool.retire(child)
            self._take_back(child)

    def _hand_back_waiting(self) -> None:
        self._results.withdraw(self._waiting)
        self._waiting.clear()

    def _close(self) -> None:
        self._is_closing = True
        self._withdraw()

    def _set_trust(self, process_id: int, until: Callable[[], float], on_distrust: Callable[[], None]) -> None:
        self._process_id, self._trusted_until, self._on_distrust = process_id, until, on_distrust

    def _end_running(self) -> None:
        for child in self._pool:
            child.is_ended_early = True
            self._pool.kill(child)

    def _kill_all(self) -> None:
        self._process_id = None
        held = len(self._waiting) + sum(len(child.jobs) for child in self._pool)
        for child in self._pool:
            child.jobs.clear()
            self._pool.kill(child)
        self._waiting.clear()
        self._results.discard_all(held=held)
