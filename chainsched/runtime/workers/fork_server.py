"""The process that forks the children: it starts before there are threads or connections, and never has any.

A fork of the threaded supervisor could copy a lock that no thread will ever release, or a connection that two
processes would use. The fork server is the parent of all children, reports their exits, kills the processes that they
leave behind, and ends with its supervisor.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import time
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from django.db import connections

from chainsched.runtime.support.garbage import leave_out_what_exists
from chainsched.runtime.workers.protocol import Channel, Message, encode

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# How readily the Linux kernel ends this process when memory runs out, from -1000 to 1000.
OOM_SCORE = Path("/proc/self/oom_score_adj")
MAX_OOM_SCORE = 1000
CHILD_OOM_SCORE = 500
# Between tries to fork. Processes that fill the host, such as those of a killed job, are gone after a few of these.
FAILED_FORK_PAUSE = 0.5
CLOSING_SECONDS = 5.0
CLOSING_TICK = 0.01

ChildFunction = Callable[[socket.socket], None]


class ForkServer:
    """The supervisor's side: requests children, and has the channel on which starts and exits are reported."""

    def __init__(self, run_child: ChildFunction) -> None:
        """Fork the server; each child calls ``run_child`` with its socket. Create it before threads and connections."""
        connections.close_all()
        # Before the fork: children share the pages of what no collection writes to.
        leave_out_what_exists()
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            _exit_with(lambda: _ForkServerProcess(theirs, run_child).run())
        theirs.close()
        self.channel = Channel(ours)

    def fork(self, end: socket.socket) -> None:
        """Request a child that communicates over this socket, which the caller closes.

        Starts are reported in the order of the requests.
        """
        # One byte and one descriptor always fit: requests are few, and the fork server reads them at once.
        socket.send_fds(self.channel.socket, [b"b"], [end.fileno()])

    def close(self) -> None:
        """Let the fork server end with all children that are left; kill it if it does not, as when it is frozen."""
        self.channel.close()
        deadline = time.monotonic() + CLOSING_SECONDS
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(self.pid, os.WNOHANG) == (0, 0):
                if time.monotonic() >= deadline:
                    _kill(self.pid)
                time.sleep(CLOSING_TICK)


class _ForkServerProcess:
    """The fork server's side: one thread, no connections, no locks."""

    def __init__(self, supervisor: socket.socket, run_child: ChildFunction) -> None:
        self._supervisor = supervisor
        self._run_child = run_child
        self._children: set[int] = set()
        self._requested: deque[socket.socket] = deque()
        self._woken, self._waker = socket.socketpair()

    def run(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        # A signal to the supervisor's process group must not end this process: it has to clean up after the children.
        os.setsid()
        _become_subreaper()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        while self._receive_requests():
            self._reap()
            self._fork_requested()
        self._end_all()

    def _receive_requests(self) -> bool:
        """Wait for a request or a SIGCHLD; False once the supervisor is gone."""
        timeout = FAILED_FORK_PAUSE if self._requested else None
        ready, _, _ = select.select([self._supervisor, self._woken], [], [], timeout)
        if self._woken in ready:
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)
        if self._supervisor not in ready:
            return True
        request, descriptors, _, _ = socket.recv_fds(self._supervisor, 1, 1)
        self._requested += [socket.socket(fileno=descriptor) for descriptor in descriptors]
        return bool(request)

    def _fork_requested(self) -> None:
        """Fork in the order of the requests. Where no process can be forked now, it is tried again after a pause."""
        with contextlib.suppress(OSError):
            while self._requested:
                self._fork(self._requested[0])
                self._requested.popleft()

    def _fork(self, end: socket.socket) -> None:
        fork_server = os.getpid()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for other in {self._supervisor, self._woken, self._waker, *self._requested} - {end}:
                other.close()
            _exit_with(lambda: _become_child(end, self._run_child, fork_server=fork_server))
        end.close()
        self._children.add(pid)
        self._report({"started": pid})

    def _reap(self) -> None:
        """Report exited children, and kill the processes that they left behind, which are now children of this one."""
        for pid, status in _collect_exited():
            if pid in self._children:
                self._children.remove(pid)
                _kill_group(pid)
                self._report({"exited": pid, "status": os.waitstatus_to_exitcode(status)})
        for orphan in _own_children() - self._children:
            _kill(orphan)

    def _report(self, message: Message) -> None:
        with contextlib.suppress(OSError):
            self._supervisor.sendall(encode(message))

    def _end_all(self) -> None:
        for pid in self._children:
            _kill_group(pid)
        while self._children:
            pid, _ = os.waitpid(-1, 0)
            self._children.discard(pid)
        while orphans := {orphan for orphan in _own_children() if _kill(orphan)}:
            for orphan in orphans:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(orphan, 0)


def _become_child(end: socket.socket, run_child: ChildFunction, *, fork_server: int) -> None:
    """Set up a child: its own session, killed when the fork server exits, subreaper of its own descendants."""
    os.setsid()
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _become_subreaper()
    _prefer_for_oom_kill()
    if os.getppid() != fork_server:
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    run_child(end)


def _exit_with(run: Callable[[], None]) -> NoReturn:
    """Run and exit without the exit handlers of the copied program."""
    code = 1
    try:
        run()
        code = 0
    except BaseException:  # noqa: BLE001 - no caller would report it
        traceback.print_exc()
    finally:
        os._exit(code)


def _collect_exited() -> list[tuple[int, int]]:
    exited = []
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            exited.append(found)
    return exited


def _own_children() -> set[int]:
    """The children of this process: those that it forked, and orphans that the kernel gave to it."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children")
    return {int(pid) for pid in listed.read_text(encoding="ascii").split()} if listed.exists() else set()


def _kill(pid: int) -> bool:
    """Kill a process; False if it belongs to another user, as one that ``sudo`` starts."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except PermissionError:
        return False
    return True


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _become_subreaper() -> None:
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def _prefer_for_oom_kill() -> None:
    """Let the kernel, when memory runs out, kill the child that used it and not the supervisor, which reports it."""
    with contextlib.suppress(OSError):
        score = int(OOM_SCORE.read_text(encoding="ascii"))
        OOM_SCORE.write_text(str(min(score + CHILD_OOM_SCORE, MAX_OOM_SCORE)), encoding="ascii")


def _prctl(option: int, argument: int) -> None:
    """Call prctl on Linux; elsewhere children exit when their socket closes."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(option, argument, 0, 0, 0)
