"""The memory of a scheduler and its children while they run fifty thousand jobs: it stays flat, or the exit code is 1.

python -m tests.postgres -- python -m bench.memory [COUNT]
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from bench.contestants import TRIGGER
from bench.installed import Installed, Work
from bench.processes import end_in_order
from bench.server import Server

MEGABYTE = 1024 * 1024
PAGE_SIZE = 4096
SAMPLES = 20
# By how much the last quarter may be above the second one: caches are full by then.
TOLERANCE = 1.05


def main(count: int) -> int:
    """Run the jobs, print the memory of the processes during the run, and return 1 if it did not stay flat."""
    end_in_order()
    server = Server()
    try:
        with tempfile.TemporaryDirectory() as folder:
            installed = Installed(TRIGGER, server=server, folder=Path(folder))
            installed.ask("fill", count)
            with installed.working() as work:
                samples = _watch(work, count)
    finally:
        server.remove()
    growth = [_growth(series) for series in zip(*samples, strict=True)]
    print(f"last quarter / second quarter: supervisor {growth[0]:.3f}, largest child {growth[1]:.3f}")
    return 0 if max(growth) <= TOLERANCE else 1


def _growth(series: Sequence[float]) -> float:
    quarter = len(series) // 4
    return median(series[-quarter:]) / median(series[quarter : 2 * quarter])


def _watch(work: Work, count: int) -> list[tuple[float, float]]:
    """Samples of the memory of the supervisor and of its largest child."""
    samples = []
    marks, (pid,) = work.installed.marks, work.pids
    print(f"{'jobs':>8} {'supervisor':>12} {'children':>24}  (MB)")
    for number in range(1, SAMPLES + 1):
        work.wait_for_jobs(count * number // SAMPLES)
        supervisor, children = _memory_of(pid), [_memory_of(child) for child in _jobs_below(pid)]
        samples.append((supervisor, max(children, default=0.0)))
        listed = " ".join(f"{held:7.1f}" for held in children)
        print(f"{marks.count:>8,} {supervisor:>12.1f} {listed:>24}")
    return samples


def _jobs_below(pid: int) -> list[int]:
    """The children of the fork server, which is the supervisor's one child."""
    return [child for fork_server in _children_of(pid) for child in _children_of(fork_server)]


def _children_of(pid: int) -> list[int]:
    listed = (Path("/proc") / str(pid) / "task").glob("*/children")
    return [int(child) for file in listed for child in file.read_text(encoding="ascii").split()]


def _memory_of(pid: int) -> float:
    try:
        statm = (Path("/proc") / str(pid) / "statm").read_text(encoding="ascii")
    except OSError:
        return 0.0
    return int(statm.split()[1]) * PAGE_SIZE / MEGABYTE


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 50_000))
