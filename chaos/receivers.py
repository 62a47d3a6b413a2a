"""Receivers of the project's signals: they write each signal to a file, and do not return while another file exists."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chainsched import signals

# The file that the receivers write to; without it none are connected.
FILE = "CHAOS_SIGNALS"
# Signals that a row has once: an execution that a process began and gave back is started twice.
ONCE = ("execution_dispatched", "execution_ended", "dead_letter_created")
HEARD = (*ONCE, "execution_started")
LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Heard:
    """A signal that a receiver was called for."""

    signal: str
    row: int
    pid: int


def connect() -> None:
    """Connect the receivers, in a process that was started for a run."""
    if FILE in os.environ:
        for name in HEARD:
            getattr(signals, name).connect(_receiver(name), weak=False)


def _receiver(name: str) -> Any:
    def receive(*, execution: Any = None, dead_letter: Any = None, **_: Any) -> None:
        path = Path(os.environ[FILE])
        _write(path, {"signal": name, "row": (execution or dead_letter).pk, "pid": os.getpid()})
        while blocker(path).exists():
            time.sleep(LOOK_SECONDS)

    return receive


def blocker(path: Path) -> Path:
    """The file that keeps receivers from returning."""
    return path.with_suffix(".blocked")


def _write(path: Path, line: dict[str, Any]) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, (json.dumps(line) + "\n").encode())
    finally:
        os.close(file)


def read(path: Path) -> Sequence[Heard]:
    """All signals that receivers were called for."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [Heard(**json.loads(line)) for line in lines]
