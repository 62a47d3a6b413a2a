"""Start commands as real processes, and measure how much CPU they and PostgreSQL have used."""

import os
import signal
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, NoReturn

from tests.postgres import on_signals

ROOT = Path(__file__).parents[1]
TICKS = os.sysconf("SC_CLK_TCK")
PATIENCE = 30


def end_in_order() -> None:
    """Let what asks for an end unwind the stack, so that no process is left running."""
    on_signals(_exit)


def _exit(number: int, _frame: FrameType | None) -> NoReturn:
    on_signals(signal.SIG_IGN)
    raise SystemExit(128 + number)


@contextmanager
def running(
    commands: Sequence[Sequence[str]], *, environment: Mapping[str, str], log: IO[bytes]
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """These commands, each in a session of its own, until the block ends."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            processes.append(_start(command, environment=environment, log=log))  # noqa: PERF401 - stops those it has
        yield processes
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            _end(process)


def _start(command: Sequence[str], *, environment: Mapping[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - our own commands
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for its end, and kill what is left of its session."""
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def cpu_of(pids: Sequence[int]) -> float:
    """The CPU seconds that these processes, all below them, and those of them that ended have used."""
    family = _with_descendants(pids)
    return sum(sum(map(int, _stat(pid)[11:15])) for pid in family) / TICKS


def _with_descendants(pids: Sequence[int]) -> set[int]:
    children = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))):
            children[int(stat[1])].append(int(entry.name))
    found, waiting = set(), list(pids)
    while waiting:
        pid = waiting.pop()
        found.add(pid)
        waiting += children[pid]
    return found


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
