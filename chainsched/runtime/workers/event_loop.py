"""The event loop in which the async jobs of a child run; no job can end it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future, wait
from typing import Any

from chainsched.runtime.workers.connections import with_fresh_connections


class EventLoop:
    """One event loop for all async jobs of a child, in a thread that is started for the first of them."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()
        self._jobs: dict[int, _Job] = {}

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine and wait for it; an interrupted wait cancels the coroutine and waits for its end."""
        job = self._jobs[threading.get_ident()] = _Job(self._running_loop())
        try:
            job.begin(with_fresh_connections(coroutine))
            returned, exit_error = job.ended.result()
        except BaseException:
            job.cancel()
            wait([job.ended])
            raise
        finally:
            self._jobs.pop(threading.get_ident(), None)
        if exit_error is not None:
            raise exit_error
        return returned

    def cancel(self, thread: int) -> bool:
        """Cancel the coroutine that a thread waits for; False if it waits for none."""
        job = self._jobs.get(thread)
        if job is not None:
            job.cancel()
        return job is not None

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_run_forever, args=[self._loop], name="chainsched-async", daemon=True).start()
            return self._loop


class _Job:
    """A coroutine in the event loop. It has ended when it returned or raised, not when it was cancelled."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.ended: Future[tuple[Any, BaseException | None]] = Future()
        self._loop = loop
        self._task: asyncio.Task[Any] | None = None

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._loop.call_soon_threadsafe(self._begin, coroutine)

    def cancel(self) -> None:
        self._loop.call_soon_threadsafe(self._cancel)

    def _begin(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._task = self._loop.create_task(_catch_exit(coroutine))
        self._task.add_done_callback(self._note_end)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:
            # The wait was interrupted before the task existed.
            self.ended.set_exception(CancelledError())

    def _note_end(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self.ended.set_exception(CancelledError())
        elif (error := task.exception()) is not None:
            self.ended.set_exception(error)
        else:
            self.ended.set_result(task.result())


def _run_forever(loop: asyncio.AbstractEventLoop) -> None:
    """Run an event loop for ever. A task that a job left behind may still raise SystemExit, which stops it."""
    while True:
        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()


async def _catch_exit(coroutine: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    """The result of a job; or its SystemExit or KeyboardInterrupt, which in a task would end the event loop."""
    try:
        return await coroutine, None
    except (SystemExit, KeyboardInterrupt) as exit_error:
        return None, exit_error
