"""A running process: its loops as threads, its lease and worker, and how it stops.

The loops outlive everything but the process. Lease and worker form a shift: when the lease is lost, because the
database was away for too long or somebody froze us, everything of that shift is ended and a new one begins under a
new identity.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType

from django.db import connections

from chainsched.conf import get_config
from chainsched.flow.transact import TRANSIENT
from chainsched.models import notices
from chainsched.models.clock import database_now
from chainsched.registry import registry
from chainsched.runtime.children import Children
from chainsched.runtime.lease import Lease
from chainsched.runtime.listener import Listener
from chainsched.runtime.loops import WAKES, WORKER, Loops, poller_for
from chainsched.runtime.nursery import Nursery
from chainsched.runtime.outage import outage
from chainsched.runtime.poller import Poller, Turn
from chainsched.runtime.runner import Runner, ThreadRunner
from chainsched.runtime.worker import Worker

logger = logging.getLogger(__name__)

PAUSE = 1.0
MAX_PAUSE = 10.0


@dataclass(frozen=True, slots=True)
class Roles:
    """What a process does: which loops it turns, and how many jobs it runs at once."""

    kind: str
    loops: Sequence[str]
    processes: int
    threads: int = 1

    @property
    def jobs_at_once(self) -> int:
        return self.processes * self.threads


@dataclass(slots=True)
class Shift:
    """One lease, and the worker whose claims stand under it."""

    lease: Lease
    worker: Worker
    poller: Poller | None
    is_lost: bool = False


class Supervisor:
    """Runs the loops and workers of one process until it is told to stop."""

    def __init__(self, roles: Roles, *, nursery: Nursery | None = None) -> None:
        """Jobs run in children from the nursery or, without one, in threads of this process."""
        self._roles = roles
        self._workflows = registry.names() if roles.jobs_at_once else []
        # A queue and not an event: a signal handler may put something in at any moment, whoever holds which lock.
        self._changes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._result_ready = threading.Event()
        self._worker_idle = threading.Event()
        self._is_stopping = False
        self._exit_code = 0
        self._signals = 0
        self._runner = self._runner_for(nursery)
        self._loops = Loops(roles.loops, after=self._pass_on, on_death=self._lose_part)
        self._listener = Listener(self._hear)
        self._shift: Shift | None = None

    def run(self, *, seconds: float | None = None) -> int:
        """Turn until stopped by a signal, by ``stop`` or after ``seconds``; returns the exit code."""
        until = None if seconds is None else time.monotonic() + seconds
        notices.sign_with(uuid.uuid4().hex)
        self._runner.open()
        self._loops.start()
        if Listener.is_possible():
            self._listener.start()
        while (shift := self._open_shift(until)) is not None:
            self._wait(shift, until)
            if self._is_stopping or not shift.is_lost:
                return self._drain(shift)
            if not self._runner.is_killable:
                return self._give_up(shift)
            self._abandon(shift)
        return self._drain(None)

    def run_once(self) -> None:
        """Take one turn of everything in this thread, and wait for the jobs that it started."""
        self._runner.open()
        lease = self._new_lease()
        lease.start()
        worker = Worker(lease.process, self._runner, workflows=self._workflows)
        self._loops.turn_once()
        if self._roles.jobs_at_once:
            worker.turn(database_now())
            worker.drain()
        while not worker.is_idle:
            self._result_ready.wait(PAUSE)
            self._result_ready.clear()
            worker.turn(database_now())
        self._runner.close()
        lease.stop()

    def stop(self) -> None:
        """Ask for an orderly end; returns at once."""
        self._is_stopping = True
        self._changes.put(None)

    def listen_to_signals(self) -> None:
        """Drain on the first SIGTERM, SIGINT or SIGHUP, abort on the second; nohup holds."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        # The terminal was closed; there is none on Windows.
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals > 1:
            os._exit(128 + number)
        self.stop()

    def _wait(self, shift: Shift, until: float | None) -> None:
        """Wait for the end, for the time to be up, or for the lease to be lost.

        Lost it is also when a beat is never answered: whoever waits for that answer cannot say so.
        """
        while not self._is_stopping and not shift.is_lost and _is_before(until):
            trusted_until = shift.lease.trusted_until()
            deadline = trusted_until if until is None else min(until, trusted_until)
            self._rest(deadline - time.monotonic())
            shift.is_lost = shift.is_lost or not _is_before(shift.lease.trusted_until())

    def _rest(self, seconds: float) -> None:
        """Until something changes, but no longer than this."""
        with contextlib.suppress(queue.Empty):
            self._changes.get(timeout=max(0.0, seconds))

    def _open_shift(self, until: float | None) -> Shift | None:
        """Begin a shift, as soon as the database lets us; None if it is time to stop before that."""
        pause = PAUSE
        while not self._is_stopping and _is_before(until):
            try:
                lease = self._new_lease()
            except TRANSIENT as error:
                outage.begin(error, at="lease")
                connections.close_all()
                self._rest(pause)
                pause = min(2 * pause, MAX_PAUSE)
            else:
                outage.end(at="lease")
                return self._begin(lease)
        return None

    def _begin(self, lease: Lease) -> Shift:
        worker = Worker(lease.process, self._runner, workflows=self._workflows)
        poller = self._poller_for(worker) if self._roles.jobs_at_once else None
        shift = self._shift = Shift(lease, worker, poller)
        self._runner.trust(lease.trusted_until, on_distrust=lambda: self._lose(lease))
        lease.start()
        if poller is not None:
            poller.start()
            # Rows may wait for somebody who knows their workflow.
            self._wake("dispatcher")
            self._tell_others()
        return shift

    def _tell_others(self) -> None:
        """Let dispatchers elsewhere know that somebody new can run jobs; they find out by themselves otherwise."""
        try:
            notices.send(notices.DISPATCHER)
        except TRANSIENT:
            connections.close_all()

    def _new_lease(self) -> Lease:
        lease = Lease(
            self._roles.kind,
            workflows=self._workflows,
            on_loss=lambda: self._lose(lease),
            turns=self._loops.turned_at,
        )
        return lease

    def _lose(self, lease: Lease) -> None:
        if self._shift is not None and self._shift.lease is lease:
            self._shift.is_lost = True
            self._changes.put(None)

    def _abandon(self, shift: Shift) -> None:
        """End everything of a shift at once: others may be running its jobs already, and nothing of it counts."""
        logger.error("This process lost its lease; what it was running is ended, and it begins anew.")
        self._abandon_work(shift)
        self._runner.kill()
        # An answer that the network lost is waited for without end; the next lease is taken over a fresh connection.
        connections.close_all()

    def _abandon_work(self, shift: Shift) -> None:
        shift.worker.abandon()
        shift.lease.abandon()
        if shift.poller is not None:
            shift.poller.stop()

    def _give_up(self, shift: Shift) -> int:
        """What runs in threads cannot be ended without this process."""
        logger.critical("This process lost its lease; it ends now and should be started again.")
        self._abandon_work(shift)
        self._stop_loops()
        self._runner.close()
        return 1

    def _runner_for(self, nursery: Nursery | None) -> Runner:
        if nursery is None:
            return ThreadRunner(self._roles.jobs_at_once, on_result=self._note_result)
        return Children(
            nursery,
            processes=self._roles.processes,
            threads=self._roles.threads,
            on_result=self._note_result,
            on_death=self._lose_part,
        )

    def _poller_for(self, worker: Worker) -> Poller:
        return poller_for(WORKER, worker.turn, after=self._pass_on, on_death=self._lose_part)

    def _pass_on(self, name: str, turn: Turn) -> None:
        """Wake the loops that may have something to do after this turn."""
        if name == WORKER and self._shift is not None and self._shift.worker.is_idle:
            self._worker_idle.set()
        for other in WAKES[name] if turn.did else ():
            self._wake(other)

    def _hear(self, payload: str) -> None:
        """Another process made something to do; with no name, any of them may have."""
        if notices.is_own(payload):
            return
        topic = notices.topic_of(payload)
        for name in [topic] if topic else [*self._loops.names, WORKER]:
            self._wake(name)

    def _wake(self, name: str) -> None:
        if name != WORKER:
            self._loops.wake(name)
        elif self._shift is not None and self._shift.poller is not None:
            self._shift.poller.wake()

    def _note_result(self) -> None:
        self._result_ready.set()
        self._wake(WORKER)

    def _lose_part(self) -> None:
        """A process without one of its parts looks alive and is not; it ends, so that somebody starts it again."""
        logger.critical("A part of this process ended unexpectedly; it ends as a whole.")
        self._exit_code = 1
        self.stop()

    def _drain(self, shift: Shift | None) -> int:
        """Start nothing more, let running jobs finish, record them, and give the lease back."""
        self._stop_loops()
        is_drained = shift is None or self._drain_worker(shift)
        if shift is not None and shift.poller is not None:
            shift.poller.stop()
            shift.poller.join(get_config().shutdown_timeout)
        self._loops.join(get_config().shutdown_timeout)
        self._runner.close()
        if shift is not None:
            self._return(shift.lease)
        return self._exit_code if is_drained else 1

    def _drain_worker(self, shift: Shift) -> bool:
        if shift.poller is None:
            return True
        self._worker_idle.clear()
        shift.worker.drain()
        shift.poller.wake()
        if self._worker_idle.wait(get_config().shutdown_timeout):
            return True
        logger.error("%d jobs did not finish in time; they count as lost and are retried.", self._runner.running)
        self._runner.end_running()
        # Those that could be ended are written down; threads go on until the process is gone.
        return self._worker_idle.wait(get_config().kill_grace if self._runner.is_killable else 0)

    def _return(self, lease: Lease) -> None:
        # The connection that this thread began with may have broken long ago, unnoticed.
        connections.close_all()
        try:
            lease.stop()
        except TRANSIENT as error:
            logger.warning("The lease could not be given back and will run out: %s", str(error).strip())

    def _stop_loops(self) -> None:
        self._listener.stop()
        self._loops.stop()


def _is_before(until: float | None) -> bool:
    return until is None or time.monotonic() < until
