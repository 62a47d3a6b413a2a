"""The supervisor's side of its child processes: assigns jobs to them and collects the results.

One thread with a selector, no database and no user code: neither a job nor the database can delay its timeouts. When
a child exits, the jobs that it was running fail, and those that it had not begun go to another child or are returned.
"""

from __future__ import annotations

import functools
import logging
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from chainsched.conf import get_config
from chainsched.domain.lookahead import Lookahead
from chainsched.domain.outcomes import Outcome
from chainsched.domain.run_context import Claim
from chainsched.domain.states import ExecutionState
from chainsched.runtime.workers.child_pool import ChildPool
from chainsched.runtime.workers.child_state import ChildState, Job, is_stuck, outcome_of_exit, outcome_of_result
from chainsched.runtime.workers.fork_server import ForkServer
from chainsched.runtime.workers.free_slots import FreeSlots, MissingChildren
from chainsched.runtime.workers.mailbox import Mailbox
from chainsched.runtime.workers.protocol import GarbledMessage, Message, pack_claim, unpack_outcome
from chainsched.runtime.workers.reports import Report
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
        self._timeouts = Timeouts(self._pool, take_back=self._take_back)
        self._lookahead = Lookahead()
        self._waiting: deque[Job] = deque()
        self._mailbox = Mailbox()
        self._is_draining = False
        self._is_closing = False
        self._lease_until: Callable[[], float] = lambda: float("inf")
        self._on_lease_expiry: Callable[[], None] = lambda: None
        # The process row of the current lease; claims of another one are discarded.
        self._process_id: int | None = None
        self._free_slots = FreeSlots()
        self._available_count = 0
        self._missing_children = MissingChildren()
        self._thread = threading.Thread(target=self._run, name="chainsched-process-runner", daemon=True)

    def open(self) -> None:
        """Start the thread and the children at once, so that the first job need not wait for a fork."""
        self._mailbox.open(self._selector)
        self._pool.open()
        self._thread.start()

    def use_lease(self, process_id: int, *, until: Callable[[], float], on_expiry: Callable[[], None]) -> None:
        """Kill all children at this monotonic time: from then on other processes may take their jobs."""
        self._mailbox.post(lambda: self._set_lease(process_id, until, on_expiry))

    @property
    def free(self) -> int:
        return 0 if self._is_draining else self._free_slots.ask()

    @property
    def running(self) -> int:
        return self._results.outstanding

    def start(self, *items: Claim) -> None:
        self._results.expect(len(items))
        self._free_slots.hand_over(len(items))
        now = time.monotonic()
        jobs = [Job(item, claimed_at=now) for item in items]
        self._mailbox.post(lambda: self._accept(jobs))

    def cancel(self, execution_ids: Iterable[int]) -> None:
        for execution_id in execution_ids:
            self._mailbox.post(functools.partial(self._ask_to_stop, execution_id))

    def withdraw(self) -> None:
        self._mailbox.post(self._withdraw)

    def collect(self) -> Collected:
        return self._results.collect()

    def end_running(self) -> None:
        self._mailbox.post(self._end_running)

    def kill(self) -> None:
        """Kill every child now, discard its jobs, and take no more claims of the same lease."""
        self._mailbox.post(self._kill_all)

    def close(self) -> None:
        """Let children exit after their running jobs; then end the fork server, which kills those that are left."""
        self._mailbox.post(self._close)
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
            for key, _ in self._selector.select(self._select_timeout()):
                key.data()
            self._pool.look(time.monotonic())
            self._mailbox.run_all()
            self._check_times()
            self._assign_waiting()
            self._count_free_slots()
            if self._results.is_ready():
                self._on_result()

    def _select_timeout(self) -> float:
        """How long to wait for messages."""
        if self._mailbox:
            return 0
        now = time.monotonic()
        ends = [self._lease_until() - now, self._pool.seconds_to_look(now), self._timeouts.seconds_to_next(now)]
        return max(0.0, min([*ends, GATHER_SECONDS] if self._results.has_results else ends))

    # Assigning jobs.

    @property
    def _child_capacity(self) -> int:
        """How many jobs a child may hold, running and waiting."""
        return self._threads + self._lookahead.ahead

    def _assign_waiting(self) -> None:
        """Replace missing children and assign the waiting jobs."""
        if not self._is_draining:
            self._pool.fill(self._processes)
        while self._waiting and (child := self._least_busy()) is not None:
            batch = self._next_batch(child)
            if not batch:
                return
            self._assign(child, batch)

    def _assign(self, child: ChildState, batch: Sequence[Job]) -> None:
        now = time.monotonic()
        if not child.jobs:
            child.last_message_at = now
        for job in batch:
            job.given_at = now
            child.jobs[job.id] = job
        # The tokens first: a child treats a job without a token as taken back.
        child.start_tokens.grant(len(batch), until=self._lease_until())
        self._pool.send(child, {"run": [pack_claim(job.item) for job in batch], "round": child.start_tokens.round})
        self._pool.expect_reports(child)

    def _accept(self, jobs: Sequence[Job]) -> None:
        self._free_slots.accept(len(jobs))
        for job in jobs:
            if job.item.process_id != self._process_id:
                # Claimed under a lease that was lost before the claim arrived here.
                self._results.discard(1)
            elif self._is_draining:
                self._requeue(job)
            else:
                self._waiting.append(job)

    def _count_free_slots(self) -> None:
        """Count slots of children that can start a job soon, so that no claim has to be returned at once."""
        available = self._available_children()
        room = 0 if self._waiting else sum(max(0, self._child_capacity - len(child.jobs)) for child in available)
        # Jobs of retiring children take slots as well: there are never more at once than configured.
        taken = sum(len(child.jobs) for child in self._pool if child.is_retiring)
        is_awaited = self._free_slots.count(max(0, room - taken))
        before, self._available_count = self._available_count, len(available)
        if is_awaited or len(available) > before:
            self._on_result()

    def _available_children(self) -> list[ChildState]:
        now = time.monotonic()
        return [child for child in self._pool if child.is_ready and not self._is_full(child, now)]

    def _is_full(self, child: ChildState, now: float) -> bool:
        """Whether a child would not start a job soon: its threads run long jobs, or its reply is awaited."""
        return child.is_reply_awaited or (len(child.begun) >= self._threads and is_stuck(child, now))

    def _next_batch(self, child: ChildState) -> list[Job]:
        room = self._child_capacity - len(child.jobs)
        retiring = sum(len(other.jobs) for other in self._pool if other.is_retiring)
        if retiring:
            # What retiring children still run counts: there are never more at once than configured.
            room = min(room, self._processes * self._threads - sum(len(other.jobs) for other in self._pool))
        share = max(1, -(-len(self._waiting) // max(1, len(self._pool))))
        return [self._waiting.popleft() for _ in range(max(0, min(room, share, len(self._waiting))))]

    def _least_busy(self) -> ChildState | None:
        child = min(self._available_children(), key=lambda child: len(child.jobs), default=None)
        return child if child is not None and len(child.jobs) < self._child_capacity else None

    def _take_back(self, child: ChildState) -> None:
        """Take back all jobs that a child has not begun."""
        for job in reversed(child.take_back()):
            self._requeue(job)

    def _requeue(self, job: Job) -> None:
        """Let a job that has not begun run in another child or, while draining, in another worker."""
        if job.stop_asked_at is not None:
            self._results.finish(job, Outcome(ExecutionState.CANCELLED))
        elif self._is_draining:
            self._results.withdraw([job])
        else:
            self._waiting.appendleft(job)

    # Messages and exits of children.

    def on_reports(self, child: ChildState, reports: Sequence[Report]) -> None:
        child.last_message_at = time.monotonic()
        child.is_reply_awaited = False
        for ended, outcome, began, at in reports:
            if not isinstance(at, float):
                raise GarbledMessage("a report has a time")
            if ended:
                self._finish(child, ended, outcome, at=at)
            if began:
                self._begin(child, began, at=at)

    def on_message(self, child: ChildState, message: Message) -> None:
        now = child.last_message_at = time.monotonic()
        child.is_reply_awaited = False
        if "finished" in message:
            self._finish(child, message["finished"], message["outcome"], at=now, progress=message.get("progress"))
        if "declined" in message and (declined := child.jobs.pop(message["declined"], None)) is not None:
            # It came to this job after its token's time, as after a stop; with the next token it has time again.
            self._requeue(declined)
        if "began" in message:
            self._begin(child, message["began"], at=now)
        if "progress_of" in message:
            self._results.progress(message["progress_of"], message["progress"])
        if message.get("retiring"):
            child.is_retiring = True
            self._take_back(child)

    def _begin(self, child: ChildState, execution_id: int, *, at: float) -> None:
        if (job := child.jobs.get(execution_id)) is not None:
            # By the child's clock, which is this one too; a time that cannot be is not believed.
            job.began_at = _credible(at, since=job.given_at, until=child.last_message_at)
            child.has_worked = True
            if job.stop_asked_at is not None:
                job.stop_asked_at = child.last_message_at

    def _finish(
        self, child: ChildState, execution_id: int, packed: Message | None, *, at: float, progress: Any = None
    ) -> None:
        # Before the job is taken out: one whose outcome is none stays, and fails with its child.
        outcome = unpack_outcome(packed)
        if (job := child.jobs.pop(execution_id, None)) is not None:
            self._results.finish(job, outcome_of_result(job, outcome), progress=progress)
            if job.began_at is not None:
                ended_at = _credible(at, since=job.began_at, until=child.last_message_at)
                self._lookahead.learn(ended_at - job.began_at)

    def on_exit(self, child: ChildState, status: int) -> None:
        """Fail the jobs that the child was running, and requeue those that it had not begun."""
        if child.sent_garbled:
            # What it reported after that is not known: all jobs that took their start tokens may have begun.
            self._take_back(child)
            for job in child.unbegun:
                job.began_at = child.last_message_at
        for job in reversed(child.jobs.values()):
            if job.began_at is None:
                self._requeue(job)
            else:
                self._results.finish(job, outcome_of_exit(job, child, status))

    def on_fork_server_exit(self, pid: int) -> None:
        if not self._is_closing:
            logger.critical("Fork server (pid %d) exited; stopping this process.", pid)
            self._on_death()

    # Timeouts.

    def _check_times(self) -> None:
        now = time.monotonic()
        if now >= self._lease_until():
            self._lease_until = lambda: float("inf")
            self._kill_all()
            self._on_lease_expiry()
        self._timeouts.check(now)
        self._withdraw_if_unstartable(now)

    def _withdraw_if_unstartable(self, now: float) -> None:
        """Return waiting jobs that no child will start soon, so that another worker may: jobs turned out to be long."""
        ready = [child for child in self._pool if child.is_ready]
        are_all_busy = bool(ready) and all(is_stuck(child, now) for child in ready)
        has_proven_child = any(child.is_proven(now) for child in ready)
        self._missing_children.check(
            now, are_there=has_proven_child, are_wanted=not self._is_draining, waiting=len(self._waiting)
        )
        if self._waiting and (are_all_busy or self._missing_children.are_missing):
            self._lookahead.reset()
            self._withdraw_waiting()

    # Calls from other threads.

    def _ask_to_stop(self, execution_id: int) -> None:
        """Ask a cancelled job to stop. One that has not begun is cancelled without being started."""
        for child in self._pool:
            job = child.jobs.get(execution_id)
            if job is not None and job.stop_asked_at is None:
                job.stop_asked_at = time.monotonic()
                if job.began_at is None:
                    self._take_back(child)
                if execution_id in child.jobs:
                    self._timeouts.ask_to_stop(child, job, job.stop_asked_at)
        for job in [job for job in self._waiting if job.id == execution_id]:
            self._waiting.remove(job)
            self._results.finish(job, Outcome(ExecutionState.CANCELLED))

    def _withdraw(self) -> None:
        """Return all jobs that have not begun."""
        self._is_draining = True
        self._withdraw_waiting()
        for child in self._pool:
            self._pool.retire(child)
            self._take_back(child)

    def _withdraw_waiting(self) -> None:
        self._results.withdraw(self._waiting)
        self._waiting.clear()

    def _close(self) -> None:
        self._is_closing = True
        self._withdraw()

    def _set_lease(self, process_id: int, until: Callable[[], float], on_expiry: Callable[[], None]) -> None:
        self._process_id, self._lease_until, self._on_lease_expiry = process_id, until, on_expiry

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


def _credible(at: float, *, since: float | None, until: float) -> float:
    """The time that a child states, if it can be; else the latest one, as for NaN."""
    return at if (since or 0.0) <= at <= until else until
