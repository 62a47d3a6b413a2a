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
from chainsched.registry import registry
from chainsched.runtime.loops.loops import WAKES, WORKER, Loops
from chainsched.runtime.loops.poller import Turn
from chainsched.runtime.process.lease import Lease
from chainsched.runtime.process.listener import Listener
from chainsched.runtime.process.worker_session import WorkerSession
from chainsched.runtime.support.background import run_in_background
from chainsched.runtime.support.db_outage import outage
from chainsched.runtime.support.deadlines import is_before, seconds_until
from chainsched.runtime.workers.fork_server import ForkServer
from chainsched.runtime.workers.process_runner import ProcessRunner
from chainsched.runtime.workers.runner import Runner
from chainsched.runtime.workers.thread_runner import ThreadRunner
from chainsched.runtime.workers.worker import Worker

logger = logging.getLogger(__name__)

PAUSE = 1.0
MAX_PAUSE = 10.0
# How often it is looked whether anything hangs.
WATCH_SECONDS = 5.0
# A statement of ours takes no longer than STATEMENT_TIMEOUT, and no answer comes later than that.
HUNG_SECONDS = 75.0


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


class Supervisor:
    """Runs the loops and workers of one process until it is told to stop."""

    def __init__(self, roles: Roles, *, fork_server: ForkServer | None = None) -> None:
        """Jobs run in children from the nursery or, without one, in threads of this process."""
        self._roles = roles
        self._workflows = registry.names() if roles.jobs_at_once else []
        # A queue and not an event: a signal handler may put something in at any moment, whoever holds which lock.
        self._changes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._result_ready = threading.Event()
        self._is_stopping = False
        self._exit_code = 0
        self._signals = 0
        self._runner = self._runner_for(fork_server)
        self._loops = Loops(roles.loops, after=self._pass_on, on_death=self._lose_part)
        self._listener = Listener(self._hear)
        self._session: WorkerSession | None = None

    def run(self, *, seconds: float | None = None) -> int:
        """Turn until stopped by a signal, by ``stop`` or after ``seconds``; returns the exit code."""
        until = None if seconds is None else time.monotonic() + seconds
        notify.sign_with(uuid.uuid4().hex)
        # This thread must hear signals, so it leaves all work that might hang to others.
        connections.close_all()
        self._runner.open()
        self._loops.start()
        if Listener.is_possible():
            self._listener.start()
        while (session := self._open_session(until)) is not None:
            self._wait(session, until)
            if self._is_stopping or not session.is_lost:
                return self._drain(session)
            if not self._runner.is_killable:
                return self._give_up(session)
            self._abandon(session)
        return self._drain(None)

    def run_once(self) -> None:
        """Take one turn of everything in this thread, and wait for the jobs that it started."""
        self._runner.open()
        lease = self._new_lease()
        self._runner.trust(lease.process.pk, until=lease.trusted_until, on_distrust=self.stop)
        lease.start()
        worker = Worker(lease.process, self._runner, workflows=self._workflows)
        self._loops.turn_once()
        if self._roles.jobs_at_once:
            self._await_children()
            worker.turn(database_now())
            worker.claim_no_more()
        while not worker.is_idle and not self._is_stopping:
            self._result_ready.wait(PAUSE)
            self._result_ready.clear()
            worker.turn(database_now())
        self._runner.close()
        lease.stop()

    def _await_children(self) -> None:
        """Give children the time to be born; without all of them, what there are will do."""
        deadline = time.monotonic() + MAX_PAUSE
        while self._runner.free < self._roles.jobs_at_once and not self._is_stopping and is_before(deadline):
            self._result_ready.wait(PAUSE)
            self._result_ready.clear()

    @property
    def has_threads_left(self) -> bool:
        """Whether jobs still run in threads of this process, which nobody can end."""
        return not self._runner.is_killable and self._runner.running > 0

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

    def _wait(self, session: WorkerSession, until: float | None) -> None:
        """Wait for the end, for the time to be up, or for the lease to be lost.

        Lost it is also when a beat is never answered: whoever waits for that answer cannot say so.
        """
        while not self._is_stopping and not session.is_lost and is_before(until):
            ends = [session.lease.trusted_until(), time.monotonic() + WATCH_SECONDS]
            self._rest(seconds_until(min(ends if until is None else [*ends, until])))
            session.is_lost = (
                session.is_lost or not is_before(session.lease.trusted_until()) or self._is_worker_hung(session)
            )
            self._renew_hung(after=HUNG_SECONDS)

    def _is_worker_hung(self, session: WorkerSession) -> bool:
        if session.is_hung(HUNG_SECONDS):
            logger.error("The worker waits for an answer that does not come.")
            return True
        return False

    def _renew_hung(self, *, after: float) -> None:
        for name in self._loops.renew_hung(after=after):
            logger.error("The %s waited for an answer that did not come; another one takes its place.", name)
        self._listener = self._listener.renewed()

    def _rest(self, seconds: float) -> None:
        """Until something changes, but no longer than this."""
        with contextlib.suppress(queue.Empty):
            self._changes.get(timeout=max(0.0, seconds))

    def _rest_until(self, is_so: Callable[[], bool], until: float | None) -> None:
        """Until this is so, the time is up, or it is time to stop."""
        while not is_so() and not self._is_stopping and is_before(until):
            self._rest(MAX_PAUSE if until is None else until - time.monotonic())

    def _open_session(self, until: float | None) -> WorkerSession | None:
        """Begin a shift, as soon as the database lets us; None if it is time to stop before that."""
        pause = PAUSE
        while not self._is_stopping and is_before(until):
            opening = run_in_background(self._take_lease)
            opening.add_done_callback(lambda _: self._changes.put(None))
            answered_by = time.monotonic() + get_config().process_expiry
            self._rest_until(opening.done, answered_by if until is None else min(until, answered_by))
            if not opening.done() and (self._is_stopping or not is_before(until)):
                return None
            try:
                lease = opening.result(0)
            except (DatabaseError, InterfaceError, TimeoutError) as error:
                # One that comes later is nobody's, and runs out.
                outage.begin(error, at="lease")
                again_at = time.monotonic() + pause * random.uniform(0.5, 1)  # noqa: S311 - spreads load
                self._rest_until(lambda: False, again_at if until is None else min(until, again_at))
                pause = min(2 * pause, MAX_PAUSE)
            else:
                outage.end(at="lease")
                return self._begin(lease)
        return None

    def _begin(self, lease: Lease) -> WorkerSession:
        if self._session is not None:
            # Whatever cut us off has cut off the loops as well, in the middle of their turns.
            self._renew_hung(after=PAUSE)
        session = self._session = WorkerSession(
            lease, self._runner, workflows=self._workflows, after=self._pass_on, on_death=self._lose_part
        )
        self._runner.trust(lease.process.pk, until=lease.trusted_until, on_distrust=lambda: self._lose(lease))
        session.start()
        if self._roles.jobs_at_once:
            # Rows may wait for somebody who knows their workflow.
            self._wake("dispatcher")
        return session

    def _take_lease(self) -> Lease:
        """A new one. Dispatchers elsewhere are told that somebody new can run jobs, or find out by themselves."""
        lease = self._new_lease()
        if self._roles.jobs_at_once:
            with contextlib.suppress(DatabaseError, InterfaceError):
                notify.send(notify.DISPATCHER)
        return lease

    def _new_lease(self) -> Lease:
        lease = Lease(
            self._roles.kind,
            workflows=self._workflows,
            on_loss=lambda: self._lose(lease),
            turns=lambda: self._loops.turned_at() | (self._session.turned_at() if self._session else {}),
        )
        return lease

    def _lose(self, lease: Lease) -> None:
        if self._session is not None and self._session.lease is lease:
            self._session.is_lost = True
            self._changes.put(None)

    def _abandon(self, session: WorkerSession) -> None:
        """End everything of a shift at once: others may be running its jobs already, and nothing of it counts."""
        logger.error("This process lost its lease; what it was running is ended, and it begins anew.")
        session.abandon()
        self._runner.kill()

    def _give_up(self, session: WorkerSession) -> int:
        """What runs in threads cannot be ended without this process."""
        logger.critical("This process lost its lease; it ends now and should be started again.")
        session.abandon()
        self._stop_loops()
        self._runner.close()
        return 1

    def _runner_for(self, fork_server: ForkServer | None) -> Runner:
        if fork_server is None:
            return ThreadRunner(self._roles.jobs_at_once, on_result=self._note_result)
        return ProcessRunner(
            fork_server,
            processes=self._roles.processes,
            threads=self._roles.threads,
            on_result=self._note_result,
            on_death=self._lose_part,
        )

    def _pass_on(self, name: str, turn: Turn) -> None:
        """Wake the loops that may have something to do after this turn."""
        for other in WAKES[name] if turn.did else ():
            self._wake(other)

    def _hear(self, payload: str) -> None:
        """Another process made something to do; with no name, any of them may have."""
        if notify.is_own(payload):
            return
        topic = notify.topic_of(payload)
        for name in [topic] if topic else [*self._loops.names, WORKER]:
            self._wake(name)

    def _wake(self, name: str) -> None:
        if name != WORKER:
            self._loops.wake(name)
        elif self._session is not None:
            self._session.wake()

    def _note_result(self) -> None:
        self._result_ready.set()
        self._wake(WORKER)

    def _lose_part(self) -> None:
        """A process without one of its parts looks alive and is not; it ends, so that somebody starts it again."""
        logger.critical("A part of this process ended unexpectedly; it ends as a whole.")
        self._exit_code = 1
        self.stop()

    def _drain(self, session: WorkerSession | None) -> int:
        """Start nothing more, let running jobs finish, record them, and give the lease back.

        There is one time for all of it, in which turns that hang are waited for as well.
        """
        deadline = time.monotonic() + get_config().shutdown_timeout
        self._stop_loops()
        is_drained = session is None or session.drain(deadline)
        self._loops.join(seconds_until(deadline))
        self._runner.close()
        if session is not None:
            session.give_lease_back()
        return self._exit_code if is_drained else 1

    def _stop_loops(self) -> None:
        self._listener.stop()
        self._loops.stop()
