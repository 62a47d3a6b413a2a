"""The jobs' own report, outside the database: a line when they begin and a line when they end.

A line is written by one call to a file opened for appending, so lines of many processes never mix, and written lines
outlive a process that is killed at the next instruction. The clock is CLOCK_MONOTONIC, one for all processes of a
host.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chainsched import RunContext

FILE = "CHAOS_WITNESS"
MEMBER = "CHAOS_MEMBER"

BEGIN = "begin"
END = "end"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of user code by the witness file; without an end if it was cut off."""

    execution: int
    manifest: str
    attempt: int
    pid: int
    member: str
    began: float
    ended: float | None = None
    is_whole: bool = False

    def until(self, seen: Mapping[int, float]) -> float:
        """Up to when it certainly ran: its end or, if it was cut off, the last time its process was seen alive."""
        return self.ended if self.ended is not None else max(self.began, seen.get(self.pid, self.began))


@contextmanager
def witnessed(run: RunContext) -> Iterator[None]:
    """Write that the run begins, and at its end that it ended and whether it raised nothing."""
    _write(BEGIN, run)
    is_whole = False
    try:
        yield
        is_whole = True
    finally:
        _write(END, run, is_whole=is_whole)


def _write(event: str, run: RunContext, *, is_whole: bool = False) -> None:
    line = {
        "event": event,
        "execution": run.execution_id,
        "manifest": run.external_id,
        "attempt": run.attempt,
        "pid": os.getpid(),
        "member": os.environ.get(MEMBER, ""),
        "at": time.monotonic(),
        "is_whole": is_whole,
    }
    file = os.open(os.environ[FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, (json.dumps(line) + "\n").encode())
    finally:
        os.close(file)


def read(path: Path) -> list[Run]:
    """All runs of a witness file, in the order in which they began."""
    return gather(path.read_text().splitlines()) if path.exists() else []


def gather(lines: Iterable[str]) -> list[Run]:
    """Put beginnings and ends together. A run that began twice under one execution is two runs."""
    runs: list[Run] = []
    open_runs: dict[tuple[int, int], int] = {}
    for text in lines:
        line = json.loads(text)
        key = (line["execution"], line["pid"])
        if line.pop("event") == BEGIN:
            open_runs[key] = len(runs)
            runs.append(_begun(line))
        elif (place := open_runs.pop(key, None)) is not None:
            runs[place] = replace(runs[place], ended=line["at"], is_whole=line["is_whole"])
    return sorted(runs, key=lambda run: run.began)


def _begun(line: dict[str, Any]) -> Run:
    known = {name: value for name, value in line.items() if name not in ("at", "is_whole")}
    return Run(began=line["at"], **known)
