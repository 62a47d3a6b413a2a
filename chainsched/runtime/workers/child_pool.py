"""The child processes of a worker: how they are born, heard, retired, killed and buried.

Of what they run it knows nothing; whoever has them is told what they say and how they ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from chainsched.runtime.workers.child_state import ChildState
from chainsched.runtime.workers.fork_server import ForkServer
from chainsched.runtime.workers.protocol import Channel, GarbledMessage, Message
from chainsched.runtime.workers.start_tokens import StartTokens

logger = logging.getLogger(__name__)

# A child that ends before it has run anything would end again, and one that could not be born could not be now; the
# next one waits this long.
FAILED_START_PAUSE = 1.0


class PoolOwner(Protocol):
    """Who has the children."""

    def on_message(self, child: ChildState, message: Message) -> None:
        """A child said something; raises Garbled, KeyError or TypeError if it makes no sense."""
        ...

    def on_end(self, child: ChildState, status: int) -> None:
        """A child is gone, with this exit code, or less than zero for the signal that killed it."""
        ...

    def on_fork_server_exit(self) -> None:
        """No more children can be born."""
        ...


class ChildPool:
    """Children, each with its socket in the selector of whoever has them."""

    def __init__(self, fork_server: ForkServer, selector: selectors.BaseSelector, keeper: PoolOwner) -> None:
        self._fork_server = fork_server
        self._selector = selector
        self._keeper = keeper
        self._children: list[ChildState] = []
        self._unborn: deque[ChildState] = deque()
        self._born_again_at = 0.0

    def __iter__(self) -> Iterator[ChildState]:
        return iter(list(self._children))

    def __len__(self) -> int:
        return len(self._children)

    def open(self) -> None:
        """Hear of births and deaths from now on."""
        self._selector.register(self._fork_server.channel.socket, selectors.EVENT_READ, self._read_fork_server)

    def close(self) -> None:
        """End the nursery with whoever is left."""
        self._fork_server.close()

    def fill(self, number: int) -> None:
        """Bear children until there are so many that take work; not right after one that was good for nothing."""
        if time.monotonic() < self._born_again_at:
            return
        missing = number - len([child for child in self._children if not child.is_retiring])
        try:
            for _ in range(missing):
                self._fork()
        except OSError as error:
            logger.error("There is no room for another child (%s); the next try comes after a pause.", error)
            self._pause_forks()

    def tell(self, child: ChildState, message: Message) -> None:
        """Say something to a child, now or as soon as it listens."""
        child.channel.send(message)
        self._watch(child)

    def retire(self, child: ChildState) -> None:
        """Let a child end when it is done with what it runs."""
        if not child.is_retiring:
            child.is_retiring = True
            self.tell(child, {"end": True})

    def kill(self, child: ChildState) -> None:
        """End a child by force; one that is being born right now as soon as its pid is known."""
        child.is_retiring = child.is_condemned = True
        if child.pid is not None:
            # A child that was born this moment may not have a group of its own yet.
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(child.pid, signal.SIGKILL)

    def _fork(self) -> None:
        with contextlib.ExitStack() as undo:
            start_tokens = StartTokens()
            undo.callback(start_tokens.close)
            ours, theirs = socket.socketpair()
            undo.enter_context(ours)
            with theirs:
                # The first thing that it hears.
                socket.send_fds(ours, [b"p"], [start_tokens.descriptor])
                self._fork_server.fork(theirs)
            undo.pop_all()
        child = ChildState(Channel(ours), start_tokens)
        self._children.append(child)
        self._unborn.append(child)
        self._selector.register(ours, selectors.EVENT_READ, lambda: self._hear(child))

    def _read_fork_server(self) -> None:
        messages, is_there = self._fork_server.channel.receive()
        for message in messages:
            if "born" in message:
                self._welcome(self._unborn.popleft(), pid=message["born"])
            else:
                self._note_death(message["died"], message["status"])
        if not is_there:
            self._selector.unregister(self._fork_server.channel.socket)
            self._lose_all()
            self._keeper.on_fork_server_exit()

    def _lose_all(self) -> None:
        """The nursery is gone, and the kernel has ended its children with it, or we do; nobody reports their deaths."""
        for child in list(self._children):
            self._read_rest(child)
            self.kill(child)
            self._reap(child, -signal.SIGKILL)

    def _welcome(self, child: ChildState, *, pid: int) -> None:
        child.pid, child.born_at = pid, time.monotonic()
        if child.is_condemned:
            self.kill(child)

    def _note_death(self, pid: int, status: int) -> None:
        child = next((child for child in self._children if child.pid == pid), None)
        if child is not None:
            self._read_rest(child)
            self._reap(child, status)

    def _read_rest(self, child: ChildState) -> None:
        """Listen for the last time: what it said before it died is still in the socket."""
        if not child.is_silent:
            self._hear(child)
            self._stop_reading(child)

    def _reap(self, child: ChildState, status: int) -> None:
        self._children.remove(child)
        child.channel.close()
        child.start_tokens.close()
        if not child.has_worked and (child.has_hung_up or not child.is_retiring):
            logger.error("A child ended before it ran anything (status %d); the next one comes after a pause.", status)
            self._pause_forks()
        self._keeper.on_end(child, status)

    def _pause_forks(self) -> None:
        self._born_again_at = time.monotonic() + FAILED_START_PAUSE

    def _hear(self, child: ChildState) -> None:
        messages, is_there = child.channel.receive()
        nonsense = child.channel.nonsense
        try:
            for message in messages:
                self._keeper.on_message(child, message)
        except (GarbledMessage, KeyError, TypeError) as error:
            nonsense = f"{type(error).__name__}: {error}"
        if nonsense:
            logger.error("A child said something that makes no sense (%s); it is replaced.", nonsense)
            child.makes_no_sense = True
        child.channel.flush()
        self._watch(child)
        if (nonsense or not is_there) and not child.is_silent:
            self._close_channel(child)

    def _close_channel(self, child: ChildState) -> None:
        """It may have closed its socket and live on, unheard. Its death is reported by the nursery."""
        child.has_hung_up = not child.is_retiring
        if not child.has_worked:
            # What ends at birth does so again, and before its death is reported there would be another one.
            self._pause_forks()
        self._stop_reading(child)
        self.kill(child)

    def _watch(self, child: ChildState) -> None:
        """Wait for room to write only while something is unsent."""
        if child.is_silent:
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if child.channel.has_unsent else 0)
        if self._selector.get_key(child.channel.socket).events != wanted:
            self._selector.modify(child.channel.socket, wanted, lambda: self._hear(child))

    def _stop_reading(self, child: ChildState) -> None:
        """Listen no more; a socket that a descendant of the child keeps open would never end by itself."""
        if not child.is_silent:
            child.is_silent = True
            self._selector.unregister(child.channel.socket)
