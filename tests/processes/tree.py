"""The processes below one that a test started, as the kernel knows them."""

import contextlib
import os
import signal
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """All processes below this one, parents first."""
    found = []
    with contextlib.suppress(OSError):
        for task in (Path("/proc") / str(pid) / "task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


def is_running(pid: int) -> bool:
    """Whether it still does something; a zombie does not."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def switches(pid: int) -> int:
    """How often its threads have gone to sleep by themselves."""
    found = 0
    for task in (Path("/proc") / str(pid) / "task").iterdir():
        lines = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
        found += int(lines["voluntary_ctxt_switches"])
    return found


def send_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
