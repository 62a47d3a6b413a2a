"""A running process: its loops as threads, its lease and worker, and how it stops.

The loops run as long as the process. Lease and worker form a session: when the lease is lost, because the database
was unavailable for too long or this process was frozen, all jobs of that session are ended and a new session begins
with a new process row.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import random
import signal
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType

from django.db import DatabaseError, InterfaceError, connections

from chainsched.conf import get_config
from chainsched.db import notify
from chainsched.db.clock import database_now
from chainsched.domain.loops import TURNING, WORKER
from chainsched.domain.routing import Pool
from chainsched.registry import registry
from chainsched.runtime.loops.loops import Loops
from chainsched.runtime.loops.poller import Turn
from chainsched.runtime.process.lease import Lease
from chainsched.runtime.process.listener import Listener
from chainsched.runtime.process.signal_thread import SignalThread
from chainsched.runtime.process.worker_session import WorkerSession
from chainsched.runtime.support.background import run_in_background
from chainsched.runtime.support.db_outage import outage
from chainsched.runtime.support.deadlines import is_before, seconds_until
from chainsched.runtime.support.garbage import collect_less_often, leave_out_what_exists
from chainsched.runtime.workers.fork_server import ForkServer
from chainsched.runtime.workers.process_runner import ProcessRunner
from chainsched.runtime.workers.runner import Runner
from chainsched.runtime.workers.thread_runner import ThreadRunner
from chainsched.runtime.workers.worker import Worker
from chainsched.servers import get_server
from chainsched.servers.inline import InlineServer

logger = logging.getLogger(__name__)

PAUSE = 1.0
MAX_PAUSE = 10.0
# How often loops and worker are checked for database calls that hang.
WATCH_SECONDS = 5.0
# No statement of a loop or worker takes longer than STATEMENT_TIMEOUT, so a later reply will not come.
HUNG_SECONDS = 75.0


@dataclass(frozen=True, slots=True)
class Roles:
    """The tasks of a process: which loops it turns, how many jobs it runs at once, from which queues or, None, all."""

    kind: str
    loops: Sequence[str]
    processes: int
    threads: int = 1
    queues: Sequence[str] | None = None

    @property
    def jobs_at_once(self) -> int:
        return self.processes * self.threads


class Supervisor:
    """Runs the loops and workers of one process until it is asked to stop."""

    def __init__(self, roles: Roles, *, fork_server: ForkServer | None = None) -> None:
        """Jobs run in children of the fork server or, without one, in threads of this process."""
        self._roles = roles
        self._pool = Pool(registry.names() if roles.jobs_at_once else [], roles.queues)
        # A queue and not an event: a signal handler may put an item in at any moment, even if a thread holds its lock.
        self._changes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._result_ready = threading.Event()
        self._is_stopping = False
        self._exit_code = 0
        self._signals = 0
        self._runner = self._runner_for(fork_server)
        self._loops = Loops(roles.loops, after=self._wake_followers, on_death=self._stop_after_crash)
        self._listener = Listener(self._on_topic)
        self._signal_thread = SignalThread()
        self._session: WorkerSession | None = None

    def run(self, *, seconds: float | None = None) -> int:
        """Turn until stopped by a signal, by ``stop`` or after ``seconds``; returns the exit code."""
        until = None if seconds is None else time.monotonic() + seconds
        notify.sign_with(uuid.uuid4().hex)
        # This thread must receive signals, so it leaves all work that might hang to other threads.
        connections.close_all()
        self._settle_memory()
        self._start_signals()
        self._runner.open()
        self._loops.start()
        if Listener.is_possible():
            self._listener.start()
        while (session := self._open_session(until)) is not None:
            self._watch_session(session, until)
            if self._is_stopping or not session.is_lost:
                return self._drain(session)
            if not self._runner.is_killable:
                return self._exit_after_lease_loss(session)
            self._abandon(session)
        return self._drain(None)

    def run_once(self) -> None:
        """Take one turn of each loop and of the worker in this thread, and wait for the jobs that it started."""
        self._start_signals()
        self._runner.open()
        lease = self._new_lease()
        self._runner.use_lease(lease.process.pk, until=lease.trusted_until, on_expiry=self.stop)
        lease.start()
        worker = Worker(lease.process, self._runner)
        self._loops.turn_once()
        if self._roles.jobs_at_once:
            self._await_children()
            worker.turn(database_now())
            worker.stop_claiming()
        while not worker.is_idle and not self._is_stopping:
            self._result_ready.wait(PAUSE)
            self._result_ready.clear()
            worker.turn(database_now())
        self._runner.close()
        self._signal_thread.drain(time.monotonic() + get_config().shutdown_timeout)
        lease.stop()

    def _await_children(self) -> None:
        """Wait until the children have started; after ``MAX_PAUSE``, go on with those that have."""
        deadline = time.monotonic() + MAX_PAUSE
        while self._runner.free < self._roles.jobs_at_once and not self._is_stopping and is_before(deadline):
            self._result_ready.wait(PAUSE)
            self._result_ready.clear()

    @property
    def has_threads_left(self) -> bool:
        """Whether jobs still run in threads of this process, which cannot be ended."""
        return not self._runner.is_killable and self._runner.running > 0

    def stop(self) -> None:
        """Ask the process to drain and end; returns at once."""
        self._is_stopping = True
        self._changes.put(None)

    def listen_to_signals(self) -> None:
        """Drain on the first SIGTERM, SIGINT or SIGHUP, abort on the second; under nohup SIGHUP stays ignored."""
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

    def _watch_session(self, session: WorkerSession, until: float | None) -> None:
        """Wait until the process should stop, the time is up, or the lease is lost.

        It is lost also when the database never replies to a beat: the heartbeat thread hangs then and cannot report it.
        """
        while not self._is_stopping and not session.is_lost and is_before(until):
            ends = [session.lease.trusted_until(), time.monotonic() + WATCH_SECONDS]
            self._wait_for_change(seconds_until(min(ends if until is None else [*ends, until])))
            session.is_lost = (
                session.is_lost or not is_before(session.lease.trusted_until()) or self._is_worker_hung(session)
            )
            self._renew_hung(after=HUNG_SECONDS)

    def _is_worker_hung(self, session: WorkerSession) -> bool:
        if session.is_hung(HUNG_SECONDS):
            logger.error("Worker has had no database reply for %.0f s; reconnecting.", HUNG_SECONDS)
            return True
        return False

    def _renew_hung(self, *, after: float) -> None:
        for name in self._loops.renew_hung(after=after):
            logger.error("The %s has had no database reply for %.0f s; replacing its thread.", name, after)
        self._listener = self._listener.renewed()

    def _wait_for_change(self, seconds: float) -> None:
        """Wait until a thread or a signal reports a change, but no longer than this."""
        with contextlib.suppress(queue.Empty):
            self._changes.get(timeout=max(0.0, seconds))

    def _wait_until(self, condition: Callable[[], bool], until: float | None) -> None:
        """Wait until this holds, the time is up, or the process should stop."""
        while not condition() and not self._is_stopping and is_before(until):
            self._wait_for_change(MAX_PAUSE if until is None else until - time.monotonic())

    def _open_session(self, until: float | None) -> WorkerSession | None:
        """Begin a session as soon as the database allows it; None if the process should stop before that."""
        pause = PAUSE
        while not self._is_stopping and is_before(until):
            opening = run_in_background(self._take_lease)
            opening.add_done_callback(lambda _: self._changes.put(None))
            answered_by = time.monotonic() + get_config().process_expiry
            self._wait_until(opening.done, answered_by if until is None else min(until, answered_by))
            if not opening.done() and (self._is_stopping or not is_before(until)):
                return None
            try:
                lease = opening.result(0)
            except (DatabaseError, InterfaceError, TimeoutError) as error:
                # A lease that this attempt takes later is not used, and expires.
                outage.begin(error, at="lease")
                again_at = time.monotonic() + pause * random.uniform(0.5, 1)  # noqa: S311 - spreads load
                self._wait_until(lambda: False, again_at if until is None else min(until, again_at))
                pause = min(2 * pause, MAX_PAUSE)
            else:
                outage.end(at="lease")
                return self._start_session(lease)
        return None

    def _start_session(self, lease: Lease) -> WorkerSession:
        if self._session is not None:
            # The outage that cost the last lease has probably hit the loops as well, in the middle of their turns.
            self._renew_hung(after=PAUSE)
        session = self._session = WorkerSession(
            lease, self._runner, after=self._wake_followers, on_death=self._stop_after_crash
        )
        self._runner.use_lease(
            lease.process.pk, until=lease.trusted_until, on_expiry=lambda: self._note_lease_loss(lease)
        )
        session.start()
        if self._roles.jobs_at_once:
            # Rows may wait for a process that knows their workflow.
            self._wake("dispatcher")
        return session

    def _take_lease(self) -> Lease:
        """Take a lease. Dispatchers elsewhere are notified of the new worker, or find it at their next turn."""
        lease = self._new_lease()
        if self._roles.jobs_at_once:
            with contextlib.suppress(DatabaseError, InterfaceError):
                notify.send(notify.DISPATCHER)
        return lease

    def _new_lease(self) -> Lease:
        lease = Lease(
            self._roles.kind,
            pool=self._pool,
            slots=self._roles.jobs_at_once,
            on_loss=lambda: self._note_lease_loss(lease),
            turns=lambda: self._loops.turned_at() | (self._session.turned_at() if self._session else {}),
            signals=self._signal_thread.as_facts,
        )
        return lease

    def _note_lease_loss(self, lease: Lease) -> None:
        if self._session is not None and self._session.lease is lease:
            self._session.is_lost = True
            self._changes.put(None)

    def _abandon(self, session: WorkerSession) -> None:
        """End all jobs of a session at once: other workers may run them already, and no result of it counts."""
        logger.error("Process %d lost its lease; killing its jobs and taking a new lease.", session.lease.process.pk)
        session.abandon()
        self._runner.kill()

    def _exit_after_lease_loss(self, session: WorkerSession) -> int:
        """End this process: jobs in its threads cannot be ended otherwise."""
        logger.critical("Process %d lost its lease; exiting, start it again.", session.lease.process.pk)
        session.abandon()
        self._stop_loops()
        self._runner.close()
        self._signal_thread.drain(time.monotonic())
        return 1

    def _runner_for(self, fork_server: ForkServer | None) -> Runner:
        if fork_server is None:
            return ThreadRunner(self._roles.jobs_at_once, on_result=self._note_result)
        return ProcessRunner(
            fork_server,
            processes=self._roles.processes,
            threads=self._roles.threads,
            on_result=self._note_result,
            on_death=self._stop_after_crash,
        )

    def _wake_followers(self, name: str, turn: Turn) -> None:
        """Wake the loops that may have rows to process after this turn."""
        for other in TURNING[name].wakes if turn.did else ():
            self._wake(other)

    def _on_topic(self, payload: str) -> None:
        """Wake the loop that another process wrote rows for; without a topic, all loops and the worker."""
        if notify.is_own(payload):
            return
        topic = notify.topic_of(payload)
        # Rows that may be dispatched are for workers that take them, and for the dispatcher that submits them.
        names = [WORKER, topic] if topic == notify.DISPATCHER else [topic]
        for name in names if topic else [WORKER, *self._loops.names]:
            self._wake(name)

    def _wake(self, name: str) -> None:
        if name != WORKER:
            self._loops.wake(name)
        elif self._session is not None:
            self._session.wake()

    def _note_result(self) -> None:
        self._result_ready.set()
        self._wake(WORKER)

    def _stop_after_crash(self) -> None:
        """Stop after a thread or the fork server ended: without it this process would look alive and do no work.

        The service manager starts it again.
        """
        logger.critical("A thread or the fork server ended unexpectedly; stopping this process (pid %d).", os.getpid())
        self._exit_code = 1
        self.stop()

    def _drain(self, session: WorkerSession | None) -> int:
        """Start no more jobs, let running ones finish, record them, send the signals, and release the lease.

        One timeout covers all of it, the wait for turns that hang and for receivers included.
        """
        deadline = time.monotonic() + get_config().shutdown_timeout
        self._stop_loops()
        is_drained = session is None or session.drain(deadline)
        self._loops.join(seconds_until(deadline))
        self._runner.close()
        self._signal_thread.drain(deadline)
        if session is not None:
            session.release_lease()
        return self._exit_code if is_drained else 1

    def _settle_memory(self) -> None:
        """Spare this process full collections of the code that it has loaded; jobs in its threads keep the pace."""
        leave_out_what_exists()
        if self._runner.is_killable:
            collect_less_often()

    def _start_signals(self) -> None:
        """Let receivers be called in a thread of their own; the inline server, for tests, has them called at once."""
        if not isinstance(get_server(), InlineServer):
            self._signal_thread.start()

    def _stop_loops(self) -> None:
        self._listener.stop()
        self._loops.stop()
