"""What other threads ask of one that waits at a selector."""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections import deque
from collections.abc import Callable
from typing import Any


class Mailbox:
    """Any thread gives an order, which wakes the one thread that carries all of them out, in their order."""

    def __init__(self) -> None:
        self._given: deque[Callable[[], Any]] = deque()
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)

    def __bool__(self) -> bool:
        return bool(self._given)

    def open(self, selector: selectors.BaseSelector) -> None:
        """Let orders end a wait at this selector."""
        selector.register(self._woken, selectors.EVENT_READ, self._forget_wakes)

    def give(self, order: Callable[[], Any]) -> None:
        # First the order, then the wake: whoever wakes finds it. A waker that is full has woken already.
        self._given.append(order)
        with contextlib.suppress(OSError):
            self._waker.send(b"w")

    def carry_out(self) -> None:
        while self._given:
            self._given.popleft()()

    def close(self) -> None:
        self._woken.close()
        self._waker.close()

    def _forget_wakes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass
