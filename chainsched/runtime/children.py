"""The supervisor's side of its children: who runs what, for how long, and what becomes of it.

One thread with a selector, no database and no user code: nothing that a job or the database does can hold up its
clock. Jobs that overrun are told, interrupted and killed; a child that dies fails what it was running and hands back
what waited for it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import selectors
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from chainsched.conf import get_config
from chainsched.domain.outcomes import Finished, Outcome
from chainsched.domain.states import ExecutionState
from chainsched.flow.execute import Claim
from chainsched.runtime.nursery import Nursery
from chainsched.runtime.roster import Child, Job, blame, death_of, is_stuck
from chainsched.runtime.runner import Harvest, Runner
from chainsched.runtime.wire import Channel, Garbled, Message, pack_claim, unpack_outcome

logger = logging.getLogger(__name__)

# Work that a child may have waiting beside what it runs, in seconds of it, so that short jobs keep it busy.
AHEAD_SECONDS = 0.5
MAX_AHEAD = 500
# Results are handed on together: after this time, or when there are many.
GATHER_SECONDS = 0.005
GATHER_RESULTS = 200
# A job shows as begun in the database once it has run this long; shorter ones are written when they end.
BEGUN_SECONDS = 0.2
STILLBORN_PAUSE = 1.0
TICK = 1.0


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
        self._nursery = nursery
        self._processes = processes
        self._threads = threads
        self._on_result = on_result
        self._on_death = on_death
        self._lock = threading.Lock()
        self._orders: deque[Callable[[], None]] = deque()
        self._harvest = Harvest()
        self._gathered_since: float | None = None
        self._outstanding = 0
        self._waiting: deque[Job] = deque()
        self._children: list[Child] = []
        self._unborn: deque[Child] = deque()
        self._seconds_per_job: float | None = None
        self._is_draining = False
        self._is_closing = False
        self._born_again_at = 0.0
        self._trusted_until: Callable[[], float] = lambda: float("inf")
        self._on_distrust: Callable[[], None] = lambda: None
        self._is_distrusted = False
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="chainsched-children", daemon=True)

    def open(self) -> None:
        """Begin to live; children are born at once, so that the first job need not wait for them."""
        self._selector.register(self._woken, selectors.EVENT_READ, self._drain_wakes)
        self._selector.register(self._nursery.channel.socket, selectors.EVENT_READ, self._hear_nursery)
        self._thread.start()

    def trust(self, until: Callable[[], float], *, on_distrust: Callable[[], None]) -> None:
        """Kill everything when this monotonic time has come: others may take our jobs from then on."""
        self._order(lambda: self._set_trust(until, on_distrust))

    @property
    def free(self) -> int:
        with self._lock:
            return max(0, self._processes * (self._threads + self._ahead()) - self._outstanding)

    @property
    def running(self) -> int:
        with self._lock:
            return self._outstanding

    def start(self, item: Claim) -> None:
        with self._lock:
            self._outstanding += 1
        job = Job(item, claimed_at=time.monotonic())
        self._order(lambda: self._put_back(job) if self._is_draining else self._waiting.append(job))

    def cancel(self, execution_ids: Iterable[int]) -> None:
        for execution_id in execution_ids:
            self._order(functools.partial(self._ask_to_stop, execution_id))

    def withdraw(self) -> None:
        self._order(self._withdraw)

    def collect(self) -> Harvest:
        with self._lock:
            harvest, self._harvest = self._harvest, Harvest()
            self._gathered_since = None
            self._outstanding -= len(harvest.finished) + len(harvest.withdrawn)
        return harvest

    def end_running(self) -> None:
        self._order(self._end_running)

    def kill(self) -> None:
        """End every child now and forget what they were doing."""
        self._order(self._kill_all)

    def close(self) -> None:
        """Let the children end when they are done, and the nursery with whoever is left."""
        self._order(self._close)
        self._thread.join(get_config().kill_grace)
        self._nursery.close()

    def _run(self) -> None:
        try:
            self._turn_until_closed()
        finally:
            self._selector.close()
            if not self._is_closing:
                self._on_death()

    def _turn_until_closed(self) -> None:
        while not (self._is_closing and not self._children):
            for key, _ in self._selector.select(self._patience()):
                key.data()
            while self._orders:
                self._orders.popleft()()
            self._keep_time()
            self._fill()
            self._hand_on()

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
        if self._gathered_since is not None:
            return GATHER_SECONDS
        stopping = any(job.stop_asked_at for child in self._children for job in child.jobs.values())
        return 0.05 if stopping else min(TICK, self._next_deadline())

    def _next_deadline(self) -> float:
        now = time.monotonic()
        running = (job for child in self._children for job in child.begun)
        deadlines = [
            (job.began_at or now) + (job.item.timeout_seconds if job.is_noted else BEGUN_SECONDS) for job in running
        ]
        return max(0.0, min([self._trusted_until(), *deadlines]) - now)

    def _fill(self) -> None:
        """Bear missing children and give out what waits."""
        now = time.monotonic()
        if not self._is_draining and now >= self._born_again_at:
            for _ in range(self._processes - len([child for child in self._children if not child.is_retiring])):
                self._bear(now)
        if self._is_distrusted:
            # Claimed under the lease that is gone, and handed over a moment too late.
            self._forget_waiting()
        while self._waiting and (child := self._least_busy()) is not None:
            batch = self._next_batch(child)
            child.jobs.update({job.id: job for job in batch})
            child.channel.send({"run": [pack_claim(job.item) for job in batch]})
            self._watch(child)

    def _next_batch(self, child: Child) -> list[Job]:
        room = self._threads + self._ahead() - len(child.jobs)
        share = max(1, -(-len(self._waiting) // max(1, len(self._children))))
        return [self._waiting.popleft() for _ in range(min(room, share, len(self._waiting)))]

    def _least_busy(self) -> Child | None:
        depth = self._threads + self._ahead()
        ready = [child for child in self._children if not child.is_retiring and not child.is_recalled]
        child = min(ready, key=lambda child: len(child.jobs), default=None)
        return child if child is not None and len(child.jobs) < depth else None

    def _ahead(self) -> int:
        if not self._seconds_per_job:
            return 0
        return min(MAX_AHEAD, int(AHEAD_SECONDS / self._seconds_per_job))

    def _bear(self, now: float) -> None:
        ours, theirs = socket.socketpair()
        child = Child(Channel(ours), born_at=now)
        self._children.append(child)
        self._unborn.append(child)
        self._selector.register(ours, selectors.EVENT_READ, lambda: self._hear(child))
        self._nursery.bear(theirs)

    def _hear_nursery(self) -> None:
        messages, is_there = self._nursery.channel.receive()
        for message in messages:
            if "born" in message:
                self._welcome(self._unborn.popleft(), pid=message["born"])
            else:
                self._note_death(message["died"], message["status"])
        if not is_there:
            self._selector.unregister(self._nursery.channel.socket)
            if not self._is_closing:
                logger.critical("The process that bears children is gone.")
                self._on_death()

    def _welcome(self, child: Child, *, pid: int) -> None:
        child.pid = pid
        if child.is_condemned:
            self._kill(child)

    def _note_death(self, pid: int, status: int) -> None:
        child = next((child for child in self._children if child.pid == pid), None)
        if child is None:
            return
        if not child.is_silent:
            # What it said before it died is still in the socket.
            self._hear(child)
            self._silence(child)
        self._bury(child, status)

    def _silence(self, child: Child) -> None:
        """Listen no more; a socket that a descendant of the child keeps open would never end by itself."""
        if not child.is_silent:
            child.is_silent = True
            self._selector.unregister(child.channel.socket)

    def _bury(self, child: Child, status: int) -> None:
        """Fail what a dead child was running, and hand back what waited for it."""
        self._children.remove(child)
        child.channel.close()
        for job in child.jobs.values():
            if job.began_at is None:
                self._put_back(job)
            else:
                self._finish(job, death_of(job, child, status))
        if not child.has_worked and not child.is_retiring:
            logger.error("A child ended before it ran anything (status %d); the next one comes after a pause.", status)
            self._born_again_at = time.monotonic() + STILLBORN_PAUSE

    def _put_back(self, job: Job) -> None:
        if job.stop_asked_at is not None:
            self._finish(job, Outcome(ExecutionState.CANCELLED))
        elif self._is_draining:
            with self._lock:
                self._harvest.withdrawn.append(job.id)
        else:
            self._waiting.appendleft(job)

    def _hear(self, child: Child) -> None:
        try:
            messages, is_there = child.channel.receive()
            for message in messages:
                self._understand(child, message)
        except (Garbled, KeyError, TypeError) as error:
            logger.error("A child said something that makes no sense (%s); it is replaced.", error)
            self._kill(child)
            is_there = False
        child.channel.flush()
        self._watch(child)
        if not is_there and not child.is_silent:
            # It may have closed its socket and live on, unheard. Its death is reported by the nursery.
            self._silence(child)
            self._kill(child)

    def _watch(self, child: Child) -> None:
        """Wait for room to write only while something is unsent."""
        if child.is_silent:
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if child.channel.has_unsent else 0)
        if self._selector.get_key(child.channel.socket).events != wanted:
            self._selector.modify(child.channel.socket, wanted, lambda: self._hear(child))

    def _understand(self, child: Child, message: Message) -> None:
        now = time.monotonic()
        if "finished" in message and (job := child.jobs.pop(message["finished"], None)) is not None:
            self._learn(now - (job.began_at or now))
            self._finish(job, blame(job, unpack_outcome(message["outcome"])), progress=message.get("progress"))
        if "began" in message and (next_job := child.jobs.get(message["began"])) is not None:
            next_job.began_at = now
            child.has_worked = True
            if next_job.stop_asked_at is not None:
                next_job.stop_asked_at = now
        if "progress_of" in message:
            with self._lock:
                self._harvest.progress[message["progress_of"]] = message["progress"]
        if "returned" in message:
            child.is_recalled = False
            for execution_id in reversed(message["returned"]):
                if execution_id in child.jobs:
                    self._put_back(child.jobs.pop(execution_id))
        child.is_retiring = child.is_retiring or bool(message.get("retiring"))

    def _learn(self, seconds: float) -> None:
        """Remember how long jobs take, the last ones most; a long one counts at once."""
        known = self._seconds_per_job
        seconds = max(seconds, 1e-4)
        self._seconds_per_job = seconds if known is None or seconds > 10 * known else 0.9 * known + 0.1 * seconds

    def _finish(self, job: Job, outcome: Outcome, *, progress: Any = None) -> None:
        with self._lock:
            self._harvest.finished.append(Finished(job.id, outcome, began_after=job.delay))
            self._harvest.progress.pop(job.id, None)
            if progress is not None:
                self._harvest.progress[job.id] = progress
            if self._gathered_since is None:
                self._gathered_since = time.monotonic()

    def _hand_on(self) -> None:
        """Let the recording thread know, not of every single result but of some together."""
        with self._lock:
            since = self._gathered_since
            is_time = since is not None and (
                time.monotonic() - since >= GATHER_SECONDS
                or len(self._harvest.finished) >= GATHER_RESULTS
                or len(self._harvest.finished) == self._outstanding
            )
            if is_time:
                self._gathered_since = None
            is_time = is_time or bool(self._harvest.withdrawn)
        if is_time:
            self._on_result()

    def _keep_time(self) -> None:
        now = time.monotonic()
        if now >= self._trusted_until():
            self._trusted_until = lambda: float("inf")
            self._is_distrusted = True
            self._kill_all()
            self._on_distrust()
        for child in list(self._children):
            for job in child.begun:
                self._watch_job(child, job, now)
            self._recall(child, now)
        self._give_up_waiting(now)

    def _watch_job(self, child: Child, job: Job, now: float) -> None:
        began_at = job.began_at or now
        if not job.is_noted and now - began_at >= BEGUN_SECONDS:
            job.is_noted = True
            with self._lock:
                self._harvest.begun[job.id] = began_at - job.claimed_at
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
            child.channel.send({"interrupt": job.id})
        if waited >= grace and (len(child.begun) == 1 or waited >= get_config().shutdown_timeout):
            child.was_killed_for = job.id
            self._kill(child)
        elif waited >= grace:
            # Others run in the same process: they may finish first, and nothing new begins there.
            self._retire(child)

    def _tell_to_stop(self, child: Child, job: Job, now: float) -> None:
        job.stop_asked_at = now
        child.channel.send({"stop": job.id})

    def _ask_to_stop(self, execution_id: int) -> None:
        """Somebody cancelled it. One that has not begun is not begun any more."""
        for child in self._children:
            job = child.jobs.get(execution_id)
            if job is not None and job.stop_asked_at is None:
                self._tell_to_stop(child, job, time.monotonic())
        for job in [job for job in self._waiting if job.id == execution_id]:
            self._waiting.remove(job)
            self._finish(job, Outcome(ExecutionState.CANCELLED))

    def _recall(self, child: Child, now: float) -> None:
        """Take back what waits behind a job that takes long."""
        if is_stuck(child, now) and len(child.jobs) > len(child.begun) and not child.is_recalled:
            child.is_recalled = True
            child.channel.send({"return": True})

    def _give_up_waiting(self, now: float) -> None:
        """Hand back what nobody here will begin soon, so that somebody else may: jobs turned out to be long."""
        ready = [child for child in self._children if not child.is_retiring]
        if self._waiting and ready and all(is_stuck(child, now) for child in ready):
            self._seconds_per_job = None
            with self._lock:
                self._harvest.withdrawn += [job.id for job in self._waiting]
            self._waiting.clear()

    def _retire(self, child: Child) -> None:
        if not child.is_retiring:
            child.is_retiring = True
            child.channel.send({"end": True})

    def _withdraw(self) -> None:
        """Give back everything that has not begun."""
        with self._lock:
            self._harvest.withdrawn += [job.id for job in self._waiting]
        self._waiting.clear()
        self._is_draining = True
        for child in self._children:
            self._retire(child)

    def _close(self) -> None:
        self._is_closing = True
        self._withdraw()

    def _set_trust(self, until: Callable[[], float], on_distrust: Callable[[], None]) -> None:
        self._trusted_until, self._on_distrust = until, on_distrust
        self._is_distrusted = False

    def _kill(self, child: Child) -> None:
        """End a child by force; one that is being born right now as soon as its pid is known."""
        child.is_retiring = child.is_condemned = True
        if child.pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)

    def _end_running(self) -> None:
        for child in self._children:
            child.is_ended_early = True
            self._kill(child)

    def _forget_waiting(self) -> None:
        with self._lock:
            self._outstanding -= len(self._waiting)
        self._waiting.clear()

    def _kill_all(self) -> None:
        for child in self._children:
            child.jobs.clear()
            self._kill(child)
        self._waiting.clear()
        with self._lock:
            self._harvest = Harvest()
            self._outstanding = 0
