"""The event loop of a child: jobs are over when they have come to their end."""

import asyncio
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from chainsched.runtime.workers.event_loop import EventLoop

PATIENCE = 20


class Stubborn:
    """A job that does not let itself be cancelled until it may end."""

    def __init__(self):
        self.began = threading.Event()
        self.was_cancelled = threading.Event()
        self.may_end = threading.Event()
        self.thread = 0

    def run_in(self, loop):
        self.thread = threading.get_ident()
        return loop.run(self._job())

    async def _job(self):
        self.began.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.was_cancelled.set()
            while not self.may_end.is_set():
                await asyncio.sleep(0.01)
            raise


def test_a_job_that_is_cancelled_is_over_when_it_has_ended_and_not_before():
    loop, job = EventLoop(), Stubborn()
    with ThreadPoolExecutor() as threads:
        running = threads.submit(job.run_in, loop)
        assert job.began.wait(PATIENCE)
        assert loop.cancel(job.thread)
        assert job.was_cancelled.wait(PATIENCE)
        assert not running.done()
        job.may_end.set()
        with pytest.raises(CancelledError):
            running.result(PATIENCE)


def test_who_waits_for_no_job_has_none_cancelled():
    assert not EventLoop().cancel(threading.get_ident())
