"""The child processes of a worker: starts, reads, retires, kills and removes them.

It knows nothing of their jobs; messages and exits of children are passed to the owner of the pool.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from chainsched.runtime.workers.child_state import ChildState
from chainsched.runtime.workers.fork_server import ForkServer
from chainsched.runtime.workers.protocol import Channel, GarbledMessage, Message
from chainsched.runtime.workers.reports import LOOK_SECONDS, Report, Reports
from chainsched.runtime.workers.start_tokens import StartTokens

logger = logging.getLogger(__name__)

# After a child that exited before its first job, or that could not be forked: the next one would probably fail too, so
# it is forked after this pause.
FAILED_START_PAUSE = 1.0
# What reading a message that is none raises.
_GARBLED = (GarbledMessage, KeyError, TypeError, ValueError)


class PoolOwner(Protocol):
    """Receives the messages and exits of the children."""

    def on_message(self, child: ChildState, message: Message) -> None:
        """A message of a child; raises GarbledMessage, KeyError or TypeError if it is malformed."""
        ...

    def on_reports(self, child: ChildState, reports: Sequence[Report]) -> None:
        """Reports of a child, in their order; raises as above."""
        ...

    def on_exit(self, child: ChildState, status: int) -> None:
        """A child exited, with this exit code, or less than zero for the signal that killed it."""
        ...

    def on_fork_server_exit(self, pid: int) -> None:
        """The fork server exited; no more children can be started."""
        ...


class ChildPool:
    """Children, each with its socket in the selector of the owner."""

    def __init__(self, fork_server: ForkServer, selector: selectors.BaseSelector, owner: PoolOwner) -> None:
        self._fork_server = fork_server
        self._selector = selector
        self._owner = owner
        self._children: list[ChildState] = []
        self._starting: deque[ChildState] = deque()
        self._next_fork_at = 0.0

    def __iter__(self) -> Iterator[ChildState]:
        return iter(list(self._children))

    def __len__(self) -> int:
        return len(self._children)

    def open(self) -> None:
        """Read the fork server's reports of starts and exits from now on."""
        self._selector.register(self._fork_server.channel.socket, selectors.EVENT_READ, self._read_fork_server)

    def close(self) -> None:
        """End the fork server and all children that are left."""
        self._fork_server.close()

    def fill(self, number: int) -> None:
        """Fork children until so many take jobs; not within the pause after a failed start."""
        if time.monotonic() < self._next_fork_at:
            return
        missing = number - len([child for child in self._children if not child.is_retiring])
        try:
            for _ in range(missing):
                self._fork()
        except OSError as error:
            logger.error("No worker child could be forked (%s); retrying in %.0f s.", error, FAILED_START_PAUSE)
            self._pause_forks()

    def send(self, child: ChildState, message: Message) -> None:
        """Send a message to a child, now or as soon as its socket has room."""
        child.channel.send(message)
        self._update_events(child)

    def look(self, now: float) -> None:
        """Read the reports for which it is time. A child whose job takes longer wakes this thread with its next."""
        for child in self._children:
            if child.look_at is not None and now >= child.look_at:
                child.look_at = None
                self._watch(child, is_wanted=not self._read_reports(child))

    def seconds_to_look(self, now: float) -> float:
        """The seconds until it is time to read reports."""
        return min((child.look_at - now for child in self._children if child.look_at is not None), default=math.inf)

    def expect_reports(self, child: ChildState) -> None:
        """Look for reports soon: the child got jobs, or has reported some of them."""
        if child.look_at is None and not child.is_watched:
            child.look_at = time.monotonic() + LOOK_SECONDS

    def retire(self, child: ChildState) -> None:
        """Let a child exit after its running jobs."""
        if not child.is_retiring:
            child.is_retiring = True
            self.send(child, {"end": True})

    def kill(self, child: ChildState) -> None:
        """Kill a child; one that is still being forked as soon as its pid is known."""
        child.is_retiring = child.is_killed = True
        if child.pid is not None:
            # A child that was forked a moment ago may not have its own process group yet.
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(child.pid, signal.SIGKILL)

    def _fork(self) -> None:
        with contextlib.ExitStack() as undo:
            start_tokens = StartTokens()
            undo.callback(start_tokens.close)
            reports = Reports()
            undo.callback(reports.close)
            ours, theirs = socket.socketpair()
            undo.enter_context(ours)
            with theirs:
                # The first message that the child reads.
                socket.send_fds(ours, [b"p"], [start_tokens.descriptor, reports.write_end])
                self._fork_server.fork(theirs)
            undo.pop_all()
        child = ChildState(Channel(ours), start_tokens, reports)
        self._children.append(child)
        self._starting.append(child)
        self._selector.register(ours, selectors.EVENT_READ, lambda: self._read_if_registered(child))

    def _read_fork_server(self) -> None:
        messages, is_open = self._fork_server.channel.receive()
        for message in messages:
            if "started" in message:
                self._note_start(self._starting.popleft(), pid=message["started"])
            else:
                self._note_exit(message["exited"], message["status"])
        if not is_open:
            self._selector.unregister(self._fork_server.channel.socket)
            self._remove_all()
            self._owner.on_fork_server_exit(self._fork_server.pid)

    def _remove_all(self) -> None:
        """Remove all children after the fork server exited: their exits are not reported any more.

        The kernel has killed them with the fork server; where it does not do that, they are killed here.
        """
        for child in list(self._children):
            self._read_rest(child)
            self.kill(child)
            self._reap(child, -signal.SIGKILL)

    def _note_start(self, child: ChildState, *, pid: int) -> None:
        child.pid, child.started_at = pid, time.monotonic()
        if child.is_killed:
            self.kill(child)

    def _note_exit(self, pid: int, status: int) -> None:
        child = next((child for child in self._children if child.pid == pid), None)
        if child is not None:
            self._read_rest(child)
            self._reap(child, status)

    def _read_rest(self, child: ChildState) -> None:
        """Read for the last time: messages that it sent before it exited are still in the socket."""
        if not child.is_unregistered:
            self._read(child)
            self._stop_reading(child)

    def _reap(self, child: ChildState, status: int) -> None:
        if not child.sent_garbled:
            self._read_reports(child)
        self._children.remove(child)
        child.channel.close()
        child.reports.close()
        if not child.has_worked and (child.has_disconnected or not child.is_retiring):
            logger.error(
                "Worker child (pid %s) exited before its first job (status %d); starting another in %.0f s.",
                child.pid,
                status,
                FAILED_START_PAUSE,
            )
            self._pause_forks()
        self._owner.on_exit(child, status)
        child.start_tokens.close()

    def _pause_forks(self) -> None:
        self._next_fork_at = time.monotonic() + FAILED_START_PAUSE

    def _read_if_registered(self, child: ChildState) -> None:
        """Read what the selector has found. What it found before in the same turn may have been the child's exit."""
        if not child.is_unregistered:
            self._read(child)

    def _read(self, child: ChildState) -> None:
        messages, is_open = child.channel.receive()
        # After the messages came and before they are judged: what was reported before them is known then.
        if self._read_reports(child):
            self._watch(child, is_wanted=False)
        malformed_reason = child.channel.malformed_reason
        try:
            for message in messages:
                self._owner.on_message(child, message)
        except _GARBLED as error:
            malformed_reason = f"{type(error).__name__}: {error}"
        if malformed_reason:
            self._note_garbled(child, malformed_reason)
        child.channel.flush()
        self._update_events(child)
        if (malformed_reason or not is_open) and not child.is_unregistered:
            self._close_channel(child)

    def _read_reports(self, child: ChildState) -> bool:
        """Pass the reports of a child on; whether there were any."""
        reports, malformed_reason = child.reports.read()
        try:
            if reports:
                self._owner.on_reports(child, reports)
        except _GARBLED as error:
            malformed_reason = f"{type(error).__name__}: {error}"
        if malformed_reason:
            self._note_garbled(child, malformed_reason)
            if not child.is_unregistered:
                self._close_channel(child)
        return bool(reports) and not malformed_reason

    def _note_reports(self, child: ChildState) -> None:
        """The pipe of a child that was watched has reports; from now on they are looked for."""
        if not child.is_unregistered and self._read_reports(child):
            self._watch(child, is_wanted=False)

    def _watch(self, child: ChildState, *, is_wanted: bool) -> None:
        """Be woken by the reports of a child, or look for them again soon if it has jobs."""
        if is_wanted and child.jobs and not child.is_unregistered:
            child.is_watched = True
            self._selector.register(child.reports.descriptor, selectors.EVENT_READ, lambda: self._note_reports(child))
            return
        if child.is_watched:
            child.is_watched = False
            self._selector.unregister(child.reports.descriptor)
        child.look_at = None
        if child.jobs and not child.is_unregistered:
            self.expect_reports(child)

    def _note_garbled(self, child: ChildState, reason: str) -> None:
        logger.error("Worker child (pid %s) sent a malformed message (%s); replacing it.", child.pid, reason)
        child.sent_garbled = True

    def _close_channel(self, child: ChildState) -> None:
        """Kill a child that closed its socket: it may still run. The fork server reports its exit."""
        child.has_disconnected = not child.is_retiring
        if not child.has_worked:
            # The next one would probably exit as well, and would be forked before the exit of this one is reported.
            self._pause_forks()
        self._stop_reading(child)
        self.kill(child)

    def _update_events(self, child: ChildState) -> None:
        """Wait for room to write only while data is unsent."""
        if child.is_unregistered:
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if child.channel.has_unsent else 0)
        if self._selector.get_key(child.channel.socket).events != wanted:
            self._selector.modify(child.channel.socket, wanted, lambda: self._read_if_registered(child))

    def _stop_reading(self, child: ChildState) -> None:
        """Stop reading; a socket that a descendant of the child keeps open would never reach its end."""
        if not child.is_unregistered:
            child.is_unregistered = True
            self._selector.unregister(child.channel.socket)
            self._watch(child, is_wanted=False)
