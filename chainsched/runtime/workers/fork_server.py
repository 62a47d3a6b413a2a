"""The process that bears children: forked before there are threads or connections, it stays that way.

A fork of the threaded supervisor could copy a lock that nobody will ever open, or a connection that two would use.
The nursery is the parent of all children, reports their deaths, takes their orphans along, and ends with its
supervisor.
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

from chainsched.runtime.workers.protocol import Channel, Message, encode

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# How readily the Linux kernel ends this process when memory runs out, from -1000 to 1000.
OOM_SCORE = Path("/proc/self/oom_score_adj")
MAX_OOM_SCORE = 1000
CHILD_OOM_SCORE = 500
# What fills up the host, such as the children of a job that was killed, is gone after a few of these.
FAILED_FORK_PAUSE = 0.5
CLOSING_SECONDS = 5.0
CLOSING_TICK = 0.01

Life = Callable[[socket.socket], None]


class ForkServer:
    """The supervisor's side: ask for children, hear of births and deaths."""

    def __init__(self, live: Life) -> None:
        """Fork the nursery; ``live`` is what each child does with its socket. Call it before anything else starts."""
        connections.close_all()
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            _exit_with(lambda: _ForkServerProcess(theirs, live).run())
        theirs.close()
        self.channel = Channel(ours)

    def fork(self, end: socket.socket) -> None:
        """Ask for a child that speaks over this socket, which the caller closes.

        Births are reported in the order of asking.
        """
        # One byte and one descriptor always fit: births are few, and the nurse reads them at once.
        socket.send_fds(self.channel.socket, [b"b"], [end.fileno()])

    def close(self) -> None:
        """Let the nursery end, with every child that is left; by force if it does not, as when it stands still."""
        self.channel.close()
        deadline = time.monotonic() + CLOSING_SECONDS
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(self.pid, os.WNOHANG) == (0, 0):
                if time.monotonic() >= deadline:
                    _kill(self.pid)
                time.sleep(CLOSING_TICK)


class _ForkServerProcess:
    """The nursery's side: one thread, no connections, no locks."""

    def __init__(self, supervisor: socket.socket, live: Life) -> None:
        self._supervisor = supervisor
        self._live = live
        self._children: set[int] = set()
        self._asked: deque[socket.socket] = deque()
        self._woken, self._waker = socket.socketpair()

    def run(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        # Who kills the group of the supervisor lets us end what the children leave behind.
        os.setsid()
        _become_subreaper()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        while self._take_orders():
            self._reap()
            self._fork_requested()
        self._end_all()

    def _take_orders(self) -> bool:
        """Wait for an order or a death; False once the supervisor is gone."""
        ready, _, _ = select.select([self._supervisor, self._woken], [], [], FAILED_FORK_PAUSE if self._asked else None)
        if self._woken in ready:
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)
        if self._supervisor not in ready:
            return True
        order, descriptors, _, _ = socket.recv_fds(self._supervisor, 1, 1)
        self._asked += [socket.socket(fileno=descriptor) for descriptor in descriptors]
        return bool(order)

    def _fork_requested(self) -> None:
        """Bear in the order of asking. Where there is no room for another process now, there may be in a while."""
        with contextlib.suppress(OSError):
            while self._asked:
                self._fork(self._asked[0])
                self._asked.popleft()

    def _fork(self, end: socket.socket) -> None:
        fork_server = os.getpid()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for other in {self._supervisor, self._woken, self._waker, *self._asked} - {end}:
                other.close()
            _exit_with(lambda: _become_child(end, self._live, fork_server=fork_server))
        end.close()
        self._children.add(pid)
        self._tell({"born": pid})

    def _reap(self) -> None:
        """Report the dead; what a dead child left behind has become ours, and dies too."""
        for pid, status in _collect_dead():
            if pid in self._children:
                self._children.remove(pid)
                _kill_group(pid)
                self._tell({"died": pid, "status": os.waitstatus_to_exitcode(status)})
        for orphan in _own_children() - self._children:
            _kill(orphan)

    def _tell(self, message: Message) -> None:
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


def _become_child(end: socket.socket, live: Life, *, fork_server: int) -> None:
    """Become a process of its own: its own session, dead when the nursery dies, foster parent of its own orphans."""
    os.setsid()
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _become_subreaper()
    _prefer_for_oom_kill()
    if os.getppid() != fork_server:
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    live(end)


def _exit_with(run: Callable[[], None]) -> NoReturn:
    """Run and end without what the copied program would do at its exit."""
    code = 1
    try:
        run()
        code = 0
    except BaseException:  # noqa: BLE001 - nobody above would say it
        traceback.print_exc()
    finally:
        os._exit(code)


def _collect_dead() -> list[tuple[int, int]]:
    dead = []
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            dead.append(found)
    return dead


def _own_children() -> set[int]:
    """The processes whose parent we are, by birth or because theirs died."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children")
    return {int(pid) for pid in listed.read_text(encoding="ascii").split()} if listed.exists() else set()


def _kill(pid: int) -> bool:
    """End a process; False if it is another user's, as what ``sudo`` starts."""
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
    """Let the kernel, when memory runs out, end the child that used it up before its supervisor, who can say so."""
    with contextlib.suppress(OSError):
        readiness = int(OOM_SCORE.read_text(encoding="ascii"))
        OOM_SCORE.write_text(str(min(readiness + CHILD_OOM_SCORE, MAX_OOM_SCORE)), encoding="ascii")


def _prctl(option: int, argument: int) -> None:
    """Ask the Linux kernel; elsewhere children notice that their socket closes."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(option, argument, 0, 0, 0)
