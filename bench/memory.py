"""The memory of a scheduler and its children while they run fifty thousand jobs: it should stay flat.

python -m tests.postgres -- python -m bench.memory [COUNT]
"""

import sys
import tempfile
import time
from pathlib import Path

from django.test.utils import setup_databases, teardown_databases

from bench.processes import running
from bench.throughput import SCHEDULER, Chainsched

MEGABYTE = 1024 * 1024
PAGE_SIZE = 4096
SAMPLES = 20


def main(count: int) -> None:
    """Run the jobs and print what the processes hold as they go on."""
    databases = setup_databases(verbosity=0, interactive=False)
    try:
        contestant = Chainsched()
        contestant.prepare(count)
        with tempfile.TemporaryFile() as log, running(SCHEDULER, log=log) as scheduler:
            _watch(contestant, scheduler.pid, count)
    finally:
        teardown_databases(databases, verbosity=0)


def _watch(contestant: Chainsched, pid: int, count: int) -> None:
    print(f"{'jobs':>8} {'supervisor':>12} {'children':>24}  (MB)")
    for number in range(1, SAMPLES + 1):
        while contestant.finished() < count * number // SAMPLES:
            time.sleep(0.05)
        children = " ".join(f"{_memory_of(child):7.1f}" for child in _jobs_below(pid))
        print(f"{contestant.finished():>8,} {_memory_of(pid):>12.1f} {children:>24}")


def _jobs_below(pid: int) -> list[int]:
    """The children of the nursery, which is the supervisor's one child."""
    return [child for nursery in _children_of(pid) for child in _children_of(nursery)]


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
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50_000)
