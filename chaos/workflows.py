"""The jobs of a chaos run: short ones, and those that fail, run too long, activate others, or kill their process."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from chainsched import RunContext, workflow
from chaos.witness import witnessed


@dataclass(frozen=True)
class Nap:
    """How long a job takes."""

    seconds: float = 0.02


@dataclass(frozen=True)
class Stumble:
    """How often a job fails before it succeeds."""

    times: int
    seconds: float = 0.02


@dataclass(frozen=True)
class Overstay:
    """How many attempts run far beyond their timeout."""

    times: int
    seconds: float = 3600


@dataclass(frozen=True)
class Wake:
    """The dormant children that a job activates, and how long it works before."""

    children: list[str] = field(default_factory=list)
    seconds: float = 0.02


@dataclass(frozen=True)
class Poison:
    """How a job ends its process."""

    way: str


class Done(TypedDict):
    """The return value of a job: the process it ran in, and the children it activated."""

    pid: int
    woken: list[str]


def done(woken: Sequence[str] = ()) -> Done:
    """The return value of a job of this process."""
    return {"pid": os.getpid(), "woken": list(woken)}


@workflow
def nap(job: Nap, run: RunContext) -> Done:
    """Sleep for a moment."""
    with witnessed(run):
        time.sleep(job.seconds)
    return done()


@workflow
def stumble(job: Stumble, run: RunContext) -> Done:
    """Fail so many times, then succeed."""
    with witnessed(run):
        time.sleep(job.seconds)
        if run.attempt <= job.times:
            raise RuntimeError(f"attempt {run.attempt} of {job.times} that fail")
    return done()


@workflow
def overstay(job: Overstay, run: RunContext) -> Done:
    """Run too long so many times, then end at once."""
    with witnessed(run):
        if run.attempt <= job.times:
            time.sleep(job.seconds)
    return done()


@workflow
def wake(job: Wake, run: RunContext) -> Done:
    """Activate dormant children."""
    with witnessed(run):
        time.sleep(job.seconds)
        woken = run.activate_many((child, None) for child in job.children)
    return done(woken)


@workflow
def perish(job: Poison, run: RunContext) -> None:
    """End the process, or raise MemoryError."""
    with witnessed(run):
        POISONS[job.way]()


def _exit() -> None:
    os._exit(0)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _exhaust() -> None:
    raise MemoryError("no memory left")


def _crash() -> None:
    ctypes.string_at(0)


POISONS: dict[str, Callable[[], None]] = {"exit": _exit, "kill": _kill, "memory": _exhaust, "crash": _crash}
