"""Code that run_scheduler and run_worker share."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn, TextIO, TypeVar

from django.core.management.base import CommandError, OutputWrapper
from django.db import connections

from chainsched.conf import get_config
from chainsched.exceptions import ChainschedError
from chainsched.flow.schedule.queues import unused_among
from chainsched.flow.transactions import TRANSIENT
from chainsched.management.options import positive_number, queue_names
from chainsched.runtime.process.supervisor import Supervisor
from chainsched.runtime.support.db_outage import outage
from chainsched.runtime.workers.child_main import ChildLimits, run_child
from chainsched.runtime.workers.fork_server import ForkServer

R = TypeVar("R")

FIRST_PAUSE = 0.5
MAX_PAUSE = 10.0
START = "start"


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Where jobs run: in so many child processes with so many threads each, or in threads of the command itself.

    ``queues`` are those that they are taken from, None for all.
    """

    processes: int
    threads: int
    is_in_process: bool
    queues: Sequence[str] | None = None

    @classmethod
    def of(cls, options: dict[str, Any]) -> WorkerOptions:
        return cls(options["processes"], options["threads"], options["in_process"], options["queues"])

    def fork_server(self) -> ForkServer | None:
        """The fork server for the children. Call it before threads or connections exist, which a fork would copy."""
        if self.is_in_process or not self.processes:
            return None
        config = prepare(get_config)
        limits = ChildLimits(self.threads, config.max_jobs_per_child, config.max_child_memory)
        return ForkServer(functools.partial(run_child, limits=limits))

    @property
    def in_words(self) -> str:
        if not self.processes:
            return "no jobs"
        at_once = self.processes * self.threads
        where = "this process" if self.is_in_process else f"{self.processes} processes"
        taken = "" if self.queues is None else f", from queues {', '.join(self.queues)}"
        return f"{at_once} jobs at once in {where}{taken}"

    def warn_of_unused(self, *, out: OutputWrapper) -> None:
        """Print which of the queues that jobs are taken from no manifest, group or workflow uses."""
        if self.queues is None:
            return
        unused, used = prepare(lambda: unused_among(self.queues or ()))
        for queue in unused:
            write_line(f"Nothing uses queue {queue!r}; in use are {', '.join(used)}.", out=out)


def add_workers(parser: ArgumentParser, *, minimum: Callable[[str], int]) -> None:
    """Add the options about child processes and threads."""
    parser.add_argument(
        "--processes",
        type=minimum,
        default=_cores(),
        metavar="N",
        help="How many child processes run jobs. By default one per core that this process may use.",
    )
    parser.add_argument(
        "--threads",
        type=positive_number,
        default=1,
        metavar="M",
        help="How many jobs each child process runs at once, in threads. By default 1.",
    )
    parser.add_argument(
        "--queues",
        type=queue_names,
        metavar="NAME,NAME",
        help="The queues to take jobs from, with commas between them. By default all.",
    )
    parser.add_argument(
        "--in-process",
        action="store_true",
        help="Run jobs in threads of this process, for development: timeouts are not enforced.",
    )


def _cores() -> int:
    """How many cores this process may use, which may be fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def prepare(step: Callable[[], R]) -> R:
    """Run a step that must succeed before the loops start; a ChainschedError ends the command with its message.

    An unavailable database ends nothing: the command waits for it, until a signal ends the wait.
    """
    pause = FIRST_PAUSE
    with _ended_by_signals():
        while True:
            try:
                done = step()
            except ChainschedError as error:
                raise CommandError(str(error)) from error
            except TRANSIENT as error:
                outage.begin(error, at=START)
                # Django does not drop a connection that was lost outside a transaction.
                connections.close_all()
                time.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - spreads load
                pause = min(2 * pause, MAX_PAUSE)
            else:
                outage.end(at=START)
                return done


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGINT end the command at once with exit code 0: no job has begun.

    In the first process of a container they would have no effect otherwise.
    """
    former = {number: signal.signal(number, _exit) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _exit(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(0)


def run_until_stopped(
    supervisor: Supervisor, *, name: str, does: str, seconds: float | None, out: OutputWrapper
) -> None:
    """Run until a signal or the time ends it; the exit code is 0 after an orderly end.

    Lines are flushed at once, so that they are in a service's log while the service runs.
    """
    supervisor.listen_to_signals()
    write_line(f"{name} started: {does}. Ctrl-C stops it.", out=out)
    code = supervisor.run(seconds=seconds)
    write_line(f"{name} stopped.", out=out)
    if supervisor.has_threads_left:
        # Python would wait for threads that such jobs started, while another worker may be running the jobs by now.
        os._exit(code)
    if code:
        sys.exit(code)


def write_line(text: str, *, out: OutputWrapper) -> None:
    """Write a line if the output is open: a closed output neither stops the command nor fails it at its end."""
    if sys.stdout is not None:
        with contextlib.suppress(OSError):
            out.write(text)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            _flush(stream)


def _flush(stream: TextIO) -> None:
    """Flush or, on failure, redirect to the null device: Python flushes again at exit and would change its code."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
