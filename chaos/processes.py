"""The process table, read from /proc: the living processes and their parents."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

DEAD = "ZXx"


ChildrenByPid = Mapping[int, Sequence[int]]


def family(pid: int, *, children: ChildrenByPid | None = None) -> list[int]:
    """The living descendants of a process, parents before their children."""
    children = read_children() if children is None else children
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), ())
        found += below
        waiting += below
    return found


def workers_below(pid: int) -> list[int]:
    """The living children of a supervisor's fork server, which run the jobs."""
    children = read_children()
    return [child for fork_server in children.get(pid, ()) for child in children.get(fork_server, ())]


def carrying(variable: str, value: str) -> list[int]:
    """The living processes that were started with this in their environment, also if their parents have ended."""
    wanted = f"{variable}={value}".encode()
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _carries(entry, wanted)]


def command_of(pid: int) -> str:
    """The command line of a process; empty if it is gone."""
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def send(number: signal.Signals, pids: Iterable[int]) -> None:
    """Signal these processes; one that is gone is no error."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def read_children() -> ChildrenByPid:
    """The living children of every process that has some."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := _parent(entry)) is not None:
            children[parent].append(int(entry.name))
    return children


def _carries(entry: Path, wanted: bytes) -> bool:
    try:
        # The environment of a zombie is empty.
        return wanted in (entry / "environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False


def _parent(entry: Path) -> int | None:
    """The parent of a living process."""
    try:
        # The name in parentheses may hold anything, also spaces and parentheses.
        state, parent, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in DEAD else int(parent)
