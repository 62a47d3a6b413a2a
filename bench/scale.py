"""chainsched with a hundred thousand manifests that are due at once, and with as many rows in the queue.

The same rows serve both: a scheduler without workers queues them, then another one with two children runs them. While
the queue is long and while it is short so many jobs are timed, a tenth of all, by their marks.
"""

import time
from dataclasses import dataclass

from bench.contestants import DUE_AT_ONCE
from bench.installed import Failed, Installed, Work
from bench.throughput import Amounts

IN_PROGRESS = "SELECT EXISTS (SELECT FROM chainsched_metadata WHERE state IN ('pending', 'in_progress'))"
IN_QUEUE = "SELECT count(*) FROM chainsched_workqueue WHERE status = 'queued'"
# From which share of the jobs to which one the queue counts as long, and as short.
LONG, SHORT = (0.05, 0.15), (0.88, 0.98)


@dataclass(frozen=True, slots=True)
class Speed:
    """A second, and microseconds of CPU for each with PostgreSQL's."""

    rate: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Scaled:
    """How fast due manifests come into the queue, and how fast jobs run while it is long and while it is short."""

    into_queue: Speed
    long: Speed
    short: Speed


def measure(due: Installed, queued: Installed, amounts: Amounts) -> Scaled:
    """One round; both contestants have the same database."""
    count = amounts.count_of(DUE_AT_ONCE)
    begins_at = due.ask("fill", count)["begins_at"]
    due.database.tidy()
    with due.working() as work:
        into_queue = _queue(work, count, begins_at=begins_at)
    queued.database.tidy()
    queued.marks.clear()
    with queued.working() as work:
        long, short = (_run(work, count, part) for part in (LONG, SHORT))
        work.wait_for_jobs(count)
        work.wait(lambda: not queued.database.ask(IN_PROGRESS), until="all jobs were recorded")
    return Scaled(into_queue, long, short)


def _queue(work: Work, count: int, *, begins_at: float) -> Speed:
    if time.monotonic() > begins_at:
        raise Failed("manifests were due before the scheduler had started.")
    work.wait(lambda: time.monotonic() >= begins_at, until="the manifests were due")
    used = work.cpu()
    work.wait(lambda: work.installed.database.ask(IN_QUEUE) >= count, until="all were queued", every=0.1)
    used = work.cpu() - used
    return Speed(count / (time.monotonic() - begins_at), (used.own + used.server) / count * 1e6)


def _run(work: Work, count: int, part: tuple[float, float]) -> Speed:
    first, last = (int(count * share) for share in part)
    marks = work.installed.marks
    work.wait_for_jobs(first + 1)
    used, ran = work.cpu(), marks.count
    work.wait_for_jobs(last + 1)
    used, ran = work.cpu() - used, max(1, marks.count - ran)
    times = marks.times
    return Speed((last - first) / (times[last] - times[first]), (used.own + used.server) / ran * 1e6)
