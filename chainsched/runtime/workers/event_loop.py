"""The event loop in which the async jobs of a child run, whatever they do to it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future, wait
from typing import Any

from chainsched.runtime.workers.connections import with_fresh_sessions


class EventLoop:
    """One event loop for all async jobs of a child, in a thread that is started for the first of them."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()
        self._jobs: dict[int, _Job] = {}

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Wait for a coroutine; when the wait is broken off, so is the coroutine, and its end is waited for."""
        job = self._jobs[threading.get_ident()] = _Job(self._started())
        try:
            job.begin(with_fresh_sessions(coroutine))
            returned, left = job.over.result()
        except BaseException:
            job.cancel()
            wait([job.over])
            raise
        finally:
            self._jobs.pop(threading.get_ident(), None)
        if left is not None:
            raise left
        return returned

    def cancel(self, thread: int) -> bool:
        """Break off the coroutine that a thread waits for; False if it waits for none."""
        job = self._jobs.get(thread)
        if job is not None:
            job.cancel()
        return job is not None

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_turn, args=[self._loop], name="chainsched-async", daemon=True).start()
            return self._loop


class _Job:
    """A coroutine in the event loop. It is over when it has come to its end, not when it is told to."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.over: Future[tuple[Any, BaseException | None]] = Future()
        self._loop = loop
        self._task: asyncio.Task[Any] | None = None

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._loop.call_soon_threadsafe(self._begin, coroutine)

    def cancel(self) -> None:
        self._loop.call_soon_threadsafe(self._cancel)

    def _begin(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._task = self._loop.create_task(_contain(coroutine))
        self._task.add_done_callback(self._note_end)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:
            # The wait was broken off before there was anything to wait for.
            self.over.set_exception(CancelledError())

    def _note_end(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self.over.set_exception(CancelledError())
        elif (error := task.exception()) is not None:
            self.over.set_exception(error)
        else:
            self.over.set_result(task.result())


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
