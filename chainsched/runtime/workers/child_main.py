"""A child: the process in which the project's code runs. It holds no lease and decides nothing.

One thread reads the supervisor's messages; jobs run in the main thread, where a signal can interrupt them, or in
several threads if so configured. A child that loses its supervisor kills itself and its descendants at once.
"""

from __future__ import annotations

import _signal
import contextlib
import ctypes
import os
import resource
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from django.db import connections

from chainsched.db import kept_sessions
from chainsched.domain import outcomes
from chainsched.domain.outcomes import Outcome
from chainsched.domain.run_context import Claim
from chainsched.flow.run.execute import execute
from chainsched.runtime.support.deadlines import is_before
from chainsched.runtime.workers.connections import close_all, renew, renew_after
from chainsched.runtime.workers.event_loop import EventLoop
from chainsched.runtime.workers.job_link import ChildJobLink
from chainsched.runtime.workers.protocol import CHUNK, Decoder, Message, encode, pack_outcome, unpack_claim
from chainsched.runtime.workers.reports import NO_JOB, ReportWriter, pack_report
from chainsched.runtime.workers.start_tokens import StartTokenReader

# A child retires after so many jobs that left exited processes which no code waits for, such as background processes.
MAX_JOBS_WITH_ZOMBIES = 100
# It looks for them after one of so many jobs, and counts that for all of these: they stay, and the look takes time.
ZOMBIE_SAMPLE = 10
KILOBYTE = 1024
_ENDING = [_signal.SIGTERM]


class Interrupted(BaseException):
    """The job was asked to stop and did not; an ``except Exception`` in the job does not catch this."""


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """How many jobs a child runs at once, and after how many jobs or how much memory another one replaces it."""

    threads: int = 1
    max_jobs: int = 10_000
    max_memory: int | None = None


class Result(NamedTuple):
    """The packed outcome of a job, and the progress that was not sent; whether it ever reported any."""

    execution_id: int
    outcome: Message | None
    progress: Any
    has_progress: bool

    def as_message(self) -> Message:
        message: Message = {"finished": self.execution_id, "outcome": self.outcome}
        return message if self.progress is None else {**message, "progress": self.progress}


class ChildProcess:
    """Runs the jobs that its supervisor sends until it is asked to end, reaches a limit, or loses the supervisor."""

    def __init__(
        self, end: socket.socket, start_tokens: StartTokenReader, reports: ReportWriter, limits: ChildLimits
    ) -> None:
        self._end = end
        self._start_tokens = start_tokens
        self._reports = reports
        self._limits = limits
        self._sending = threading.Lock()
        # Each with the round of start tokens in which it was assigned.
        self._inbox: deque[tuple[int, Claim]] = deque()
        self._arrived = threading.Condition()
        self._is_stopping = False
        self._jobs_done = 0
        self._stopped: set[int] = set()
        self._running: dict[int, int] = {}
        self._interrupted: int | None = None
        self._interrupting = threading.Lock()
        self._was_interrupted = False
        self._is_main_sending = False
        self._is_sigterm_postponed = False
        self._main = threading.main_thread().ident
        self._loop = EventLoop()
        self._handlers: tuple[tuple[int, Any], ...] = (
            (_signal.SIGINT, _signal.SIG_IGN),
            (_signal.SIGTERM, self._on_sigterm),
            (_signal.SIGCHLD, _signal.SIG_DFL),
        )
        self._streams = sys.stdin, sys.stdout, sys.stderr
        self._recursion_limit = sys.getrecursionlimit()
        self._jobs_with_zombies = 0

    def run(self) -> None:
        """Run jobs; returns when the child should exit."""
        self._reset_signals()
        threading.Thread(target=self._listen, name="chainsched-child-reader", daemon=True).start()
        if self._limits.threads == 1:
            self._work()
        else:
            workers = [threading.Thread(target=self._work_or_exit, daemon=True) for _ in range(self._limits.threads)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()

    def _reset_signals(self) -> None:
        """Undo the last job's signal settings: its timer would end the next job, its handlers would protect it."""
        # Without the conversions of the module ``signal``, which take longer than all else in here.
        _signal.setitimer(_signal.ITIMER_REAL, 0)
        for number, handler in self._handlers:
            _signal.signal(number, handler)
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, _ENDING)

    def _reset_interpreter(self) -> None:
        """Undo changes of the job before to the standard streams and the recursion limit."""
        sys.stdin, sys.stdout, sys.stderr = self._streams
        sys.setrecursionlimit(self._recursion_limit)

    def _work_or_exit(self) -> None:
        """Work in one of several threads. A child without one of them would look alive, and its job would never end."""
        try:
            self._work()
        except BaseException:  # noqa: BLE001 - any error that ends the thread ends the child
            traceback.print_exc()
            os._exit(1)

    def _work(self) -> None:
        """Run one job after the other. The start of the next is sent with the last result: one report per job."""
        result: Result | None = None
        while (item := self._next(result)) is not None:
            result = self._run_job(item)
        close_all()

    def _next(self, result: Result | None) -> Claim | None:
        """The next job, after its start was reported; None when this child should exit.

        A result after which nothing begins for now is sent, and so wakes the supervisor.
        """
        with self._arrived:
            self._is_stopping = self._is_stopping or self._should_retire()
            item = self._take()
            if item is None and result is not None:
                self._send(result.as_message())
                result = None
            while item is None and not self._is_stopping:
                is_keeping = kept_sessions.close_unused()
                self._arrived.wait(kept_sessions.KEEP_SECONDS if is_keeping else None)
                item = self._take()
            if item is None:
                self._send({"retiring": True})
                self._arrived.notify_all()
                return None
            self._report(result, began=item.execution_id)
            return item

    def _report(self, result: Result | None, *, began: int) -> None:
        """Report a result and a start.

        What does not fit is sent, as is a result after progress, which would arrive after it.
        """
        now = time.monotonic()
        if result is not None:
            is_quiet = not result.has_progress
            if is_quiet and self._reports.write(pack_report(result.execution_id, result.outcome, began, now)):
                return
            self._send(result.as_message())
        if not self._reports.write(pack_report(NO_JOB, None, began, now)):
            self._send({"began": began})

    def _take(self) -> Claim | None:
        """The first waiting job that the supervisor has not taken back; None also when this child should exit.

        If the time of a job is over, because this process was stopped, it may be running elsewhere: it is handed back.
        """
        while self._inbox and not self._is_stopping:
            given_in, item = self._inbox.popleft()
            until = self._start_tokens.use(given_in)
            if until is not None and is_before(until):
                return item
            if until is not None:
                self._send({"declined": item.execution_id})
        return None

    def _run_job(self, item: Claim) -> Result:
        execution_id, thread = item.execution_id, threading.get_ident()
        job_link = ChildJobLink(
            is_stopped=lambda: execution_id in self._stopped,
            send=lambda progress: self.report(execution_id, progress),
        )
        if thread == self._main:
            self._reset_signals()
            self._reset_interpreter()
        self._running[execution_id] = thread
        renew()
        try:
            outcome = execute(item, job_link=job_link, run_async=self._loop.run)
            self._end_job(execution_id)
        except Interrupted as late:
            outcome = outcomes.raised(late)
            self._end_job(execution_id)
        return self._result(execution_id, outcome, job_link)

    def _end_job(self, execution_id: int) -> None:
        """Let no interruption hit the job from here on; one that is already on its way is raised in here."""
        with self._interrupting:
            self._running.pop(execution_id, None)

    def _result(self, execution_id: int, outcome: Outcome, job_link: ChildJobLink) -> Result:
        # An interruption that comes too late for its job must not hit the code below.
        self._stopped.discard(execution_id)
        self._jobs_done += 1
        if self._jobs_done % ZOMBIE_SAMPLE == 0 and _has_zombies():
            self._jobs_with_zombies += ZOMBIE_SAMPLE
        ended = renew_after(outcome)
        unsent = job_link.close()
        return Result(execution_id, pack_outcome(ended), unsent, has_progress=job_link.has_reported)

    def _should_retire(self) -> bool:
        limit = self._limits.max_memory
        # An interruption may have broken a half-made connection, a lock, or an event loop that is still blocked.
        if self._was_interrupted:
            return True
        if self._jobs_done >= self._limits.max_jobs or self._jobs_with_zombies >= MAX_JOBS_WITH_ZOMBIES:
            return True
        return limit is not None and self._jobs_done > 0 and memory_in_use() > limit

    def _listen(self) -> None:
        decoder = Decoder()
        try:
            while data := self._end.recv(CHUNK):
                for message in decoder.feed(data):
                    self._receive(message)
        finally:
            # The supervisor is gone, or sent a malformed message: no result of this child counts any more.
            os.killpg(0, signal.SIGKILL)

    def _receive(self, message: Message) -> None:
        with self._arrived:
            self._inbox.extend((message["round"], unpack_claim(item)) for item in message.get("run", ()))
            self._is_stopping = self._is_stopping or bool(message.get("end"))
            self._arrived.notify_all()
        if message.get("answer"):
            self._send({"answered": True})
        if "stop" in message:
            self._stopped.add(message["stop"])
        if "interrupt" in message:
            self._interrupt(message["interrupt"])

    def _interrupt(self, execution_id: int) -> None:
        """Interrupt a job: in the main thread by a signal, which also ends sleeps and reads; else between two steps."""
        with self._interrupting:
            thread = self._running.get(execution_id)
            if thread is None:
                return
            self._was_interrupted = True
            if thread == threading.main_thread().ident:
                self._interrupted = execution_id
                signal.pthread_kill(thread, signal.SIGTERM)
            elif not self._loop.cancel(thread):
                # Not for a thread that waits for the event loop: it would notice this only after its wait.
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Interrupted))

    def _on_sigterm(self, _number: int, _frame: FrameType | None) -> None:
        """Interrupt the job in the main thread: the one that the supervisor named, or any after a foreign signal."""
        if self._is_main_sending:
            # Half a message would garble the stream; the interruption is repeated once the message is sent.
            self._is_sigterm_postponed = True
            return
        named, self._interrupted = self._interrupted, None
        main = threading.main_thread().ident
        here = [execution_id for execution_id, thread in self._running.items() if thread == main]
        if here and (named is None or named in here):
            self._was_interrupted = True
            raise Interrupted("The job was interrupted." if named else "The process received SIGTERM.")

    def _send(self, message: Message) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        data = encode(message)
        with self._sending:
            try:
                self._is_main_sending = is_main
                self._end.sendall(data)
            finally:
                # Also when a timer signal of the job itself raises in here.
                self._is_main_sending = False
        if is_main and self._is_sigterm_postponed:
            self._is_sigterm_postponed = False
            self._on_sigterm(signal.SIGTERM, None)

    def report(self, execution_id: int, progress: Any) -> None:
        """Send a job's progress to the supervisor."""
        self._send({"progress_of": execution_id, "progress": progress})


def _has_zombies() -> bool:
    """Whether a child process has exited and was not waited for. It is left for the job's code to wait for."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def memory_in_use() -> int:
    """The memory that this process uses now, in bytes; on systems other than Linux the most that it ever used."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KILOBYTE


def run_child(end: socket.socket, limits: ChildLimits) -> None:
    """Run a child over this socket, from its first message to its last."""
    for connection in connections.all(initialized_only=True):
        # A connection that was open at the fork belongs to another process.
        connection.connection = None
    _, (start_tokens, reports), _, _ = socket.recv_fds(end, 1, 2)
    ChildProcess(end, StartTokenReader(start_tokens), ReportWriter(reports), limits).run()
