"""The supervisor's side of its children: who runs what, for how long, and what becomes of it.

One thread with a selector, no database and no user code: nothing that a job or the database does can hold up its
clock. Jobs that overrun are told, interrupted and killed; a child that dies fails what it was running and hands back
what waited for it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from chainsched.conf import get_config
from chainsched.domain.outcomes import Outcome
from chainsched.domain.pace import Pace
from chainsched.domain.states import ExecutionState
from chainsched.flow.execute import Claim
from chainsched.runtime.brood import Brood
from chainsched.runtime.gathering import GATHER_SECONDS, Gathering
from chainsched.runtime.nursery import Nursery
from chainsched.runtime.roster import Child, Job, blame, death_of, is_stuck
from chainsched.runtime.runner import Harvest, Runner
from chainsched.runtime.wire import Message, pack_claim, unpack_outcome

logger = logging.getLogger(__name__)

# A job shows as begun in the database once it has run this long; shorter ones are written when they end.
BEGUN_SECONDS = 0.2
TICK = 1.0
# While somebody was told to stop the clock goes faster.
STOPPING_TICK = 0.05


class Children(Runner):
    """Runs claims in child processes."""

    is_killable = True

    def __init__(
        self,
        nursery: Nursery,
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
        self._brood = Brood(nursery, self._selector, self)
        self._gathering = Gathering()
        self._pace = Pace()
        self._waiting: deque[Job] = deque()
        self._orders: deque[Callable[[], None]] = deque()
        self._is_draining = False
        self._is_closing = False
        self._trusted_until: Callable[[], float] = lambda: float("inf")
        self._on_distrust: Callable[[], None] = lambda: None
        self._is_distrusted = False
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="chainsched-children", daemon=True)

    def open(self) -> None:
        """Begin to live; children are born at once, so that the first job need not wait for them."""
        self._selector.register(self._woken, selectors.EVENT_READ, self._drain_wakes)
        self._brood.open()
        self._thread.start()

    def trust(self, until: Callable[[], float], *, on_distrust: Callable[[], None]) -> None:
        """Kill everything when this monotonic time has come: others may take our jobs from then on."""
        self._order(lambda: self._set_trust(until, on_distrust))

    @property
    def free(self) -> int:
        return max(0, self._processes * self._depth - self._gathering.outstanding)

    @property
    def running(self) -> int:
        return self._gathering.outstanding

    def start(self, item: Claim) -> None:
        self._gathering.expect()
        job = Job(item, claimed_at=time.monotonic())
        self._order(lambda: self._put_back(job) if self._is_draining else self._waiting.append(job))

    def cancel(self, execution_ids: Iterable[int]) -> None:
        for execution_id in execution_ids:
            self._order(functools.partial(self._ask_to_stop, execution_id))

    def withdraw(self) -> None:
        self._order(self._withdraw)

    def collect(self) -> Harvest:
        return self._gathering.collect()

    def end_running(self) -> None:
        self._order(self._end_running)

    def kill(self) -> None:
        """End every child now and forget what they were doing."""
        self._order(self._kill_all)

    def close(self) -> None:
        """Let the children end when they are done, and the nursery with whoever is left."""
        self._order(self._close)
        self._thread.join(get_config().kill_grace)
        self._brood.close()

    # The thread.

    def _run(self) -> None:
        try:
            self._turn_until_closed()
        finally:
            self._selector.close()
            if not self._is_closing:
                self._on_death()

    def _turn_until_closed(self) -> None:
        while not (self._is_closing and not self._brood):
            for key, _ in self._selector.select(self._patience()):
                key.data()
            while self._orders:
                self._orders.popleft()()
            self._keep_time()
            self._give_out()
            if self._gathering.is_ripe():
                self._on_result()

    def _order(self, order: Callable[[], Any]) -> None:
        self._orders.append(order)
        with contextlib.suppress(BlockingIOError, OSError):
            self._waker.send(b"w")

    def _drain_wakes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass

    def _patience(self) -> float:
        """How long to wait when nothing comes in."""
        if self._orders:
            return 0
        if self._gathering.has_results:
            return GATHER_SECONDS
        stopping = any(job.stop_asked_at for child in self._brood for job in child.jobs.values())
        return STOPPING_TICK if stopping else min(TICK, self._next_deadline())

    def _next_deadline(self) -> float:
        now = time.monotonic()
        running = (job for child in self._brood for job in child.begun)
        deadlines = [
            (job.began_at or now) + (job.item.timeout_seconds if job.is_noted else BEGUN_SECONDS) for job in running
        ]
        return max(0.0, min([self._trusted_until(), *deadlines]) - now)

    # Giving out work.

    @property
    def _depth(self) -> int:
        """How many jobs a child may have, running and waiting."""
        return self._threads + self._pace.ahead

    def _give_out(self) -> None:
        """Replace missing children and give them what waits."""
        if not self._is_draining:
            self._brood.fill(self._processes)
        if self._is_distrusted:
            # Claimed under the lease that is gone, and handed over a moment too late.
            self._gathering.forget(len(self._waiting))
            self._waiting.clear()
        while self._waiting and (child := self._least_busy()) is not None:
            batch = self._next_batch(child)
            child.jobs.update({job.id: job for job in batch})
            self._brood.tell(child, {"run": [pack_claim(job.item) for job in batch]})

    def _next_batch(self, child: Child) -> list[Job]:
        room = self._depth - len(child.jobs)
        share = max(1, -(-len(self._waiting) // max(1, len(self._brood))))
        return [self._waiting.popleft() for _ in range(min(room, share, len(self._waiting)))]

    def _least_busy(self) -> Child | None:
        ready = [child for child in self._brood if not child.is_retiring and not child.is_recalled]
        child = min(ready, key=lambda child: len(child.jobs), default=None)
        return child if child is not None and len(child.jobs) < self._depth else None

    def _put_back(self, job: Job) -> None:
        """Nobody has begun it: somebody else may, here or elsewhere."""
        if job.stop_asked_at is not None:
            self._gathering.finish(job, Outcome(ExecutionState.CANCELLED))
        elif self._is_draining:
            self._gathering.withdraw([job])
        else:
            self._waiting.appendleft(job)

    # What children say, and how they end.

    def on_message(self, child: Child, message: Message) -> None:
        now = time.monotonic()
        if "finished" in message and (job := child.jobs.pop(message["finished"], None)) is not None:
            self._pace.learn(now - (job.began_at or now))
            outcome = blame(job, unpack_outcome(message["outcome"]))
            self._gathering.finish(job, outcome, progress=message.get("progress"))
        if "began" in message and (next_job := child.jobs.get(message["began"])) is not None:
            next_job.began_at = now
            child.has_worked = True
            if next_job.stop_asked_at is not None:
                next_job.stop_asked_at = now
        if "progress_of" in message:
            self._gathering.progress(message["progress_of"], message["progress"])
        if "returned" in message:
            child.is_recalled = False
            for execution_id in reversed(message["returned"]):
                if execution_id in child.jobs:
                    self._put_back(child.jobs.pop(execution_id))
        child.is_retiring = child.is_retiring or bool(message.get("retiring"))

    def on_end(self, child: Child, status: int) -> None:
        """Fail what a dead child was running, and hand back what waited for it."""
        for job in child.jobs.values():
            if job.began_at is None:
                self._put_back(job)
            else:
                self._gathering.finish(job, death_of(job, child, status))

    def on_barren(self) -> None:
        if not self._is_closing:
            logger.critical("The process that bears children is gone.")
            self._on_death()

    # The clock.

    def _keep_time(self) -> None:
        now = time.monotonic()
        if now >= self._trusted_until():
            self._trusted_until = lambda: float("inf")
            self._is_distrusted = True
            self._kill_all()
            self._on_distrust()
        for child in self._brood:
            for job in child.begun:
                self._watch_job(child, job, now)
            self._recall(child, now)
        self._give_up_waiting(now)

    def _watch_job(self, child: Child, job: Job, now: float) -> None:
        began_at = job.began_at or now
        if not job.is_noted and now - began_at >= BEGUN_SECONDS:
            job.is_noted = True
            self._gathering.begin(job)
            self._on_result()
        if job.stop_asked_at is None and now - began_at >= job.item.timeout_seconds:
            job.timed_out = True
            self._tell_to_stop(child, job, now)
        if job.stop_asked_at is not None:
            self._press(child, job, now - job.stop_asked_at)

    def _press(self, child: Child, job: Job, waited: float) -> None:
        """It was told; then it is interrupted, and at the end of the grace its child is killed."""
        grace = get_config().kill_grace
        if waited >= grace / 2 and not job.is_interrupted:
            job.is_interrupted = True
            self._brood.tell(child, {"interrupt": job.id})
        if waited >= grace and (len(child.begun) == 1 or waited >= get_config().shutdown_timeout):
            child.was_killed_for = job.id
            self._brood.kill(child)
        elif waited >= grace:
            # Others run in the same process: they may finish first, and nothing new begins there.
            self._brood.retire(child)

    def _recall(self, child: Child, now: float) -> None:
        """Take back what waits behind a job that takes long."""
        if is_stuck(child, now) and len(child.jobs) > len(child.begun) and not child.is_recalled:
            child.is_recalled = True
            self._brood.tell(child, {"return": True})

    def _give_up_waiting(self, now: float) -> None:
        """Hand back what nobody here will begin soon, so that somebody else may: jobs turned out to be long."""
        ready = [child for child in self._brood if not child.is_retiring]
        if self._waiting and ready and all(is_stuck(child, now) for child in ready):
            self._pace.forget()
            self._hand_back_waiting()

    # Orders.

    def _tell_to_stop(self, child: Child, job: Job, now: float) -> None:
        job.stop_asked_at = now
        self._brood.tell(child, {"stop": job.id})

    def _ask_to_stop(self, execution_id: int) -> None:
        """Somebody cancelled it. One that has not begun is not begun any more."""
        for child in self._brood:
            job = child.jobs.get(execution_id)
            if job is not None and job.stop_asked_at is None:
                self._tell_to_stop(child, job, time.monotonic())
        for job in [job for job in self._waiting if job.id == execution_id]:
            self._waiting.remove(job)
            self._gathering.finish(job, Outcome(ExecutionState.CANCELLED))

    def _withdraw(self) -> None:
        """Give back everything that has not begun."""
        self._is_draining = True
        self._hand_back_waiting()
        for child in self._brood:
            self._brood.retire(child)

    def _hand_back_waiting(self) -> None:
        self._gathering.withdraw(self._waiting)
        self._waiting.clear()

    def _close(self) -> None:
        self._is_closing = True
        self._withdraw()

    def _set_trust(self, until: Callable[[], float], on_distrust: Callable[[], None]) -> None:
        self._trusted_until, self._on_distrust = until, on_distrust
        self._is_distrusted = False

    def _end_running(self) -> None:
        for child in self._brood:
            child.is_ended_early = True
            self._brood.kill(child)

    def _kill_all(self) -> None:
        for child in self._brood:
            child.jobs.clear()
            self._brood.kill(child)
        self._waiting.clear()
        self._gathering.forget_all()
