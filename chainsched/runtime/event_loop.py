"""The event loop in which the async jobs of a child run, whatever they do to it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

from chainsched.runtime.sessions import with_fresh_sessions


class EventLoop:
    """One event loop for all async jobs of a child, in a thread that is started for the first of them."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()
        self._futures: dict[int, Future[Any]] = {}

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Wait for a coroutine; when the wait is broken off, so is the coroutine."""
        future = asyncio.run_coroutine_threadsafe(_contain(with_fresh_sessions(coroutine)), self._started())
        self._futures[threading.get_ident()] = future
        try:
            returned, left = future.result()
        except BaseException:
            future.cancel()
            raise
        finally:
            self._futures.pop(threading.get_ident(), None)
        if left is not None:
            raise left
        return returned

    def cancel(self, thread: int) -> bool:
        """Break off the coroutine that a thread waits for; False if it waits for none."""
        future = self._futures.get(thread)
        return future is not None and future.cancel()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_turn, args=[self._loop], name="chainsched-async", daemon=True).start()
            return self._loop


def _turn(loop: asyncio.AbstractEventLoop) -> None:
    """Turn an event loop for ever. A task that a job left behind may still raise what ends it."""
    while True:
        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()


async def _contain(coroutine: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    """What a job returned; or what it raised to leave, which in a task would end the event loop."""
    try:
        return await coroutine, None
    except (SystemExit, KeyboardInterrupt) as left:
        return None, left
