"""The jobs of a chaos run: short ones, and those that stumble, overstay, wake others, or kill their process."""

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
    """How many attempts stay beyond their time, by far."""

    times: int
    seconds: float = 3600


@dataclass(frozen=True)
class Wake:
    """Which dormant children a job wakes, and how long it works before."""

    children: list[str] = field(default_factory=list)
    seconds: float = 0.02


@dataclass(frozen=True)
class Poison:
    """In which way a job ends its process."""

    way: str


class Done(TypedDict):
    """What a job returns: in which process it ran, and whom it woke."""

    pid: int
    woken: list[str]


def done(woken: Sequence[str] = ()) -> Done:
    """What a job returns that ends here."""
    return {"pid": os.getpid(), "woken": list(woken)}


@workflow
def nap(job: Nap, run: RunContext) -> Done:
    """Take a moment."""
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
    """Stay too long so many times, then be quick."""
    with witnessed(run):
        if run.attempt <= job.times:
            time.sleep(job.seconds)
    return done()


@workflow
def wake(job: Wake, run: RunContext) -> Done:
    """Wake dormant children."""
    with witnessed(run):
        time.sleep(job.seconds)
        woken = run.activate_many((child, None) for child in job.children)
    return done(woken)


@workflow
def perish(job: Poison, run: RunContext) -> None:
    """End the process, or do what ends most."""
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
