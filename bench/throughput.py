"""How many jobs a second a contestant runs, the CPU that each costs, and how fast an idle one starts them.

The jobs are in the queue before the workers start. The clock runs from the moment at which a tenth of them has run, so
that nobody's start is measured, until the last one is recorded; jobs that are due at one moment count from that moment,
all of them. CPU is that of all processes of the contestant and of the whole server, over the same time.
"""

import time
from dataclasses import dataclass, field

from bench.contestants import Contestant
from bench.installed import Failed, Installed, Work

WARM = 10
# How long the workers have to become idle, and to end what they do now and then, before latency is measured.
SETTLE = 1.0


@dataclass(frozen=True, slots=True)
class Amounts:
    """How much is measured in a round; without ``latencies`` only jobs a second."""

    count: int
    singles: int
    starts: int
    chains: int
    has_latencies: bool = True

    def count_of(self, contestant: Contestant) -> int:
        """How many jobs a run of the contestant has."""
        return max(1, int(self.count * contestant.share))


@dataclass(slots=True)
class Run:
    """The figures of a contestant in one round: a second, microseconds of CPU a job, and seconds."""

    rate: float
    own_cpu: float
    server_cpu: float
    bulk: float
    one_by_one: float | None = None
    starts: list[float] = field(default_factory=list)
    hops: list[float] = field(default_factory=list)

    @property
    def cpu(self) -> float:
        return self.own_cpu + self.server_cpu


def measure(installed: Installed, amounts: Amounts) -> Run:
    """One round of a contestant: many jobs, then single ones on the idle workers, then enqueueing without workers."""
    contestant = installed.contestant
    count = amounts.count_of(contestant)
    filled = installed.ask("fill", count)
    before = installed.recorded()
    installed.database.tidy()
    installed.marks.clear()
    with installed.working() as work:
        run = run_filled(work, count, begins_at=filled.get("begins_at"), before=before)
        run.bulk = count / filled["seconds"]
        if contestant.has_latency and amounts.has_latencies:
            time.sleep(SETTLE)
            run.starts = installed.ask("starts", amounts.starts)["seconds"]
            run.hops = installed.ask("hops", amounts.chains)["seconds"] if contestant.has_chains else []
    if contestant.has_latency and amounts.has_latencies:
        run.one_by_one = amounts.singles / installed.ask("one-by-one", amounts.singles)["seconds"]
    return run


def run_filled(work: Work, count: int, *, begins_at: float | None, before: int) -> Run:
    """Measure until the jobs that were enqueued are recorded, besides so many that were before."""
    installed = work.installed
    ran = _begin(work, count, begins_at=begins_at)
    used, started = work.cpu(), time.monotonic()
    work.wait_for_jobs(count)
    work.wait(lambda: installed.is_recorded(before + count), until="all jobs were recorded")
    seconds, used = time.monotonic() - started, work.cpu() - used
    _check(installed, count, before=before)
    jobs = max(1, count - ran)  # a tiny run can be over at the first look
    own, its = (cpu / jobs * 1e6 for cpu in (used.own, used.server))
    return Run(rate=jobs / seconds, own_cpu=own, server_cpu=its, bulk=0)


def _begin(work: Work, count: int, *, begins_at: float | None) -> int:
    """Wait for the moment at which the clock starts; returns how many jobs have run before it."""
    if begins_at is None:
        work.wait_for_jobs(count // WARM)
        return work.installed.marks.count
    if time.monotonic() > begins_at:
        raise Failed("jobs were due before the workers had started.")
    work.wait(lambda: time.monotonic() >= begins_at, until="the jobs were due")
    return 0


def _check(installed: Installed, count: int, *, before: int) -> None:
    """A figure counts only if each job ran once and is recorded."""
    if installed.marks.count != count:
        raise Failed(f"{installed.marks.count} runs of {count} jobs.")
    if installed.contestant.recorded is not None and installed.recorded() != before + count:
        raise Failed(f"{installed.recorded() - before} of {count} jobs are recorded.")
