"""A child: the process in which the project's code runs. It holds no lease and decides nothing.

One thread reads what the supervisor says; jobs run in the main thread, where a signal can break them off, or in
several threads when asked to. A child whose supervisor is gone ends at once, and takes its descendants along.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from django.db import connections

from chainsched.domain import outcomes
from chainsched.domain.outcomes import Outcome
from chainsched.flow.run.claim import Claim
from chainsched.flow.run.execute import execute
from chainsched.runtime.workers.connections import renew, renew_after
from chainsched.runtime.workers.event_loop import EventLoop
from chainsched.runtime.workers.job_link import ChildJobLink
from chainsched.runtime.workers.protocol import CHUNK, Decoder, Message, encode, pack_outcome, unpack_claim
from chainsched.runtime.workers.start_tokens import StartTokenReader

# After so many jobs that found processes dead which nobody waits for, as what they start in the background.
MAX_ORPHANS = 100
KILOBYTE = 1024


class Interrupted(BaseException):
    """The job was told to stop and did not; no ``except Exception`` of its own holds this up."""


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """How a child lives: how many jobs at once, and after what it makes room for a fresh one."""

    threads: int = 1
    max_jobs: int = 10_000
    max_memory: int | None = None


class ChildProcess:
    """Runs what its supervisor sends until it is told to stop, is worn out, or the supervisor is gone."""

    def __init__(self, end: socket.socket, start_tokens: StartTokenReader, limits: ChildLimits) -> None:
        self._end = end
        self._start_tokens = start_tokens
        self._habits = limits
        self._sending = threading.Lock()
        # Each with the round in which it was given.
        self._inbox: deque[tuple[int, Claim]] = deque()
        self._arrived = threading.Condition()
        self._is_stopping = False
        self._done = 0
        self._stopped: set[int] = set()
        self._running: dict[int, int] = {}
        self._interrupted: int | None = None
        self._interrupting = threading.Lock()
        self._was_interrupted = False
        self._is_sending_here = False
        self._is_postponed = False
        self._loop = EventLoop()
        self._streams = sys.stdin, sys.stdout, sys.stderr
        self._recursion_limit = sys.getrecursionlimit()
        self._littered = 0

    def run(self) -> None:
        """Live; returns when there is nothing more to do."""
        self._set_signals()
        threading.Thread(target=self._listen, name="chainsched-wire", daemon=True).start()
        if self._habits.threads == 1:
            self._work()
        else:
            workers = [threading.Thread(target=self._work_or_end, daemon=True) for _ in range(self._habits.threads)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()

    def _set_signals(self) -> None:
        """Whatever the job before has set: its alarm would end the next one, and its handler would save that."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._on_sigterm)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])

    def _set_python(self) -> None:
        """Its streams and its limit of recursion, whatever the job before has done with them."""
        sys.stdin, sys.stdout, sys.stderr = self._streams
        sys.setrecursionlimit(self._recursion_limit)

    def _work_or_end(self) -> None:
        """Work in one of several threads. A child that lost one would look alive, and its job would never end."""
        try:
            self._work()
        except BaseException:  # noqa: BLE001 - whatever ended it, the child ends too
            traceback.print_exc()
            os._exit(1)

    def _work(self) -> None:
        """Run one job after the other. The next one is announced with the result of the last: one message a job."""
        result: Message = {}
        while (item := self._next(result)) is not None:
            result = self._run_job(item)
        connections.close_all()

    def _next(self, result: Message) -> Claim | None:
        """The next job, announced before it begins; None when this child should end."""
        with self._arrived:
            self._is_stopping = self._is_stopping or self._is_worn_out()
            item = self._take()
            if item is None and result:
                self._send(result)
                result = {}
            while item is None and not self._is_stopping:
                self._arrived.wait()
                item = self._take()
            if item is None:
                self._send({"retiring": True})
                self._arrived.notify_all()
                return None
            self._send({**result, "began": item.execution_id})
            return item

    def _take(self) -> Claim | None:
        """The first job that waits here and that nobody took back; None also when this child should end."""
        while self._inbox and not self._is_stopping:
            given_in, item = self._inbox.popleft()
            if self._start_tokens.covers(given_in):
                return item
        return None

    def _run_job(self, item: Claim) -> Message:
        job_link = ChildJobLink(
            is_stopped=lambda: item.execution_id in self._stopped,
            tell=lambda progress: self.report(item.execution_id, progress),
        )
        if threading.current_thread() is threading.main_thread():
            self._set_signals()
            self._set_python()
        self._running[item.execution_id] = threading.get_ident()
        renew()
        try:
            outcome = execute(item, job_link=job_link, run_async=self._loop.run)
            self._leave(item.execution_id)
        except Interrupted as late:
            outcome = outcomes.raised(late)
            self._leave(item.execution_id)
        return self._result(item, outcome, job_link)

    def _leave(self, execution_id: int) -> None:
        """From here on nothing interrupts the job; an interruption on its way arrives in here."""
        with self._interrupting:
            self._running.pop(execution_id, None)

    def _result(self, item: Claim, outcome: Outcome, job_link: ChildJobLink) -> Message:
        # An interruption that comes too late for its job must not hit what is done here.
        self._stopped.discard(item.execution_id)
        self._done += 1
        self._littered += _has_dead_children()
        ended = renew_after(outcome)
        finished: Message = {"finished": item.execution_id, "outcome": pack_outcome(ended)}
        unsent = job_link.close()
        return {**finished, "progress": unsent} if unsent is not None else finished

    def _is_worn_out(self) -> bool:
        limit = self._habits.max_memory
        # An interruption may have hit anything: a half-made connection, a lock, an event loop that is still blocked.
        if self._was_interrupted or self._done >= self._habits.max_jobs or self._littered >= MAX_ORPHANS:
            return True
        return limit is not None and self._done > 0 and memory_in_use() > limit

    def _listen(self) -> None:
        decoder = Decoder()
        try:
            while data := self._end.recv(CHUNK):
                for message in decoder.feed(data):
                    self._hear(message)
        finally:
            # The supervisor is gone, or what it says makes no sense: nothing of ours counts any more.
            os.killpg(0, signal.SIGKILL)

    def _hear(self, message: Message) -> None:
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
        """Break a job off: by a signal in the main thread, which also ends sleeps and reads; else between two steps."""
        with self._interrupting:
            thread = self._running.get(execution_id)
            if thread is None:
                return
            self._was_interrupted = True
            if thread == threading.main_thread().ident:
                self._interrupted = execution_id
                signal.pthread_kill(thread, signal.SIGTERM)
            elif not self._loop.cancel(thread):
                # A thread that waits for the event loop would not notice this before its wait is over.
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Interrupted))

    def _on_sigterm(self, _number: int, _frame: FrameType | None) -> None:
        """Break off the job that runs here: the one that is meant, or any if the signal came from elsewhere."""
        if self._is_sending_here:
            # Half a message would garble the wire; it comes again when the message is out.
            self._is_postponed = True
            return
        meant, self._interrupted = self._interrupted, None
        main = threading.main_thread().ident
        here = [execution_id for execution_id, thread in self._running.items() if thread == main]
        if here and (meant is None or meant in here):
            self._was_interrupted = True
            raise Interrupted("The job was interrupted." if meant else "The process received SIGTERM.")

    def _send(self, message: Message) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        data = encode(message)
        with self._sending:
            try:
                self._is_sending_here = is_main
                self._end.sendall(data)
            finally:
                # Also when an alarm of the job's own strikes in here.
                self._is_sending_here = False
        if is_main and self._is_postponed:
            self._is_postponed = False
            self._on_sigterm(signal.SIGTERM, None)

    def report(self, execution_id: int, progress: Any) -> None:
        """Pass a job's progress on."""
        self._send({"progress_of": execution_id, "progress": progress})


def _has_dead_children() -> bool:
    """Whether there is a process that ended and that nobody has waited for. It is left to whoever may still do so."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def memory_in_use() -> int:
    """The memory that this process holds at present, in bytes; elsewhere than on Linux, the most it ever held."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KILOBYTE


def run_child(end: socket.socket, limits: ChildLimits) -> None:
    """The life of a child, from its first message to its last."""
    for connection in connections.all(initialized_only=True):
        # A connection that was open when the process was copied belongs to somebody else.
        connection.connection = None
    _, (start_tokens,), _, _ = socket.recv_fds(end, 1, 1)
    ChildProcess(end, StartTokenReader(start_tokens), limits).run()
