"""Calls that other threads pass to a thread that waits at a selector."""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections import deque
from collections.abc import Callable
from typing import Any


class Mailbox:
    """Any thread posts a call, which wakes the one thread that makes all of them, in the order of posting."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], Any]] = deque()
        # Whether a wake-up is under way that the thread has not noticed.
        self._is_waking = False
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)

    def __bool__(self) -> bool:
        return bool(self._calls)

    def open(self, selector: selectors.BaseSelector) -> None:
        """Let posted calls end a wait at this selector."""
        selector.register(self._woken, selectors.EVENT_READ, self._forget_wakes)

    def post(self, call: Callable[[], Any]) -> None:
        # First the call, then the wake-up: the thread that wakes finds it. A full waker has woken it already.
        self._calls.append(call)
        if self._is_waking:
            return
        self._is_waking = True
        with contextlib.suppress(OSError):
            self._waker.send(b"w")

    def run_all(self) -> None:
        while self._calls:
            self._calls.popleft()()

    def close(self) -> None:
        self._woken.close()
        self._waker.close()

    def _forget_wakes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass
        # After that, or a wake-up for which it was set again would be read with the others, and none sent any more.
        # Before the calls are made: one that is posted later wakes again.
        self._is_waking = False
