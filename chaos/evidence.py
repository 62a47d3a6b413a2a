"""The evidence that the checker uses, as plain values: it needs no database and no processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from chaos.fleet import Exit, Freeze
from chaos.receivers import Heard
from chaos.witness import Run
from chaos.workload import Expected

COMPLETED = "completed"
ACTIVE = ("pending", "in_progress")
AWAITING = "awaiting_intervention"
LOST = "lost"
KILLED = "killed"
ACTIVATION = "activation"


@dataclass(frozen=True, slots=True)
class Execution:
    """A row of Metadata; ``pid`` is that of the last process that claimed it, ``output`` its job's return value.

    ``run`` is the run of the graph that it is named after, ``taken_over`` those that it stands for besides.
    """

    id: int
    manifest: str
    group: str
    state: str
    attempt: int
    source: str
    parent: int | None
    pid: int | None
    scheduled_for: datetime
    created_at: datetime
    ended_at: datetime | None
    failure_type: str = ""
    output: Mapping[str, Any] | None = None
    run: int | None = None
    taken_over: Sequence[int] = ()

    @property
    def runs(self) -> set[int]:
        """All runs of the graph that it stands for."""
        return {*self.taken_over, *([] if self.run is None else [self.run])}

    @property
    def is_completed(self) -> bool:
        return self.state == COMPLETED

    @property
    def worker(self) -> int | None:
        """The process that its job ran in, as the job reported it."""
        return (self.output or {}).get("pid")

    @property
    def woken(self) -> Sequence[str]:
        """The dormant children that its job activated, as the job reported them."""
        woken: Sequence[str] = (self.output or {}).get("woken", ())
        return woken

    def __str__(self) -> str:
        return f"{self.manifest} #{self.id} ({self.state}, attempt {self.attempt})"


@dataclass(frozen=True, slots=True)
class Queued:
    """A row of WorkQueue."""

    id: int
    manifest: str
    status: str
    source: str
    parent: int | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Letter:
    """A row of DeadLetter."""

    manifest: str
    execution: int
    status: str
    dead_lettered_at: datetime


@dataclass(frozen=True, slots=True)
class Passage:
    """A row of GraphRun: one passage through the graph."""

    id: int
    head: str
    closed_at: datetime | None
    cancelled_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A row of JoinState: how a join waits in one run of the graph; the end of the run has no join."""

    run: int
    join: str
    open: int
    outcome: str
    firings: int
    decided_at: datetime | None = None

    def __str__(self) -> str:
        return f"{self.join or 'the end'} in run {self.run} ({self.outcome}, {self.open} open)"


@dataclass(frozen=True, slots=True)
class Evidence:
    """The rows, runs and events of a chaos run.

    ``runs`` are those of the witness; those of the graph are ``passages``, and ``waiting`` how joins wait in them.
    ``notes`` are notes to dependents and joins that were left at the end.

    ``pids`` are those of the processes that the harness started, by name; ``seen`` says when a process was last
    seen alive; ``changed`` are terminal rows that differ at the end from when they were first read; ``repaired`` are
    the repairs of the reconciler; ``returned_at`` are the moments when the database was back; ``left_over`` are
    processes that still ran when all had been stopped, ``idle_processes`` those that lived and did nothing before
    that. ``held_up`` says which work stood still beside a fault that did not concern it, and ``looked`` how often that
    was looked at; ``heard`` are the signals that receivers were called for. ``requested`` and ``happened`` count faults
    by their kind.
    """

    expected: Mapping[str, Expected]
    limits: Mapping[str, int | None]
    max_active: int
    executions: Sequence[Execution] = ()
    queue: Sequence[Queued] = ()
    letters: Sequence[Letter] = ()
    passages: Sequence[Passage] = ()
    waiting: Sequence[Waiting] = ()
    notes: Sequence[str] = ()
    runs: Sequence[Run] = ()
    pids: Mapping[str, int] = field(default_factory=dict)
    seen: Mapping[int, float] = field(default_factory=dict)
    freezes: Sequence[Freeze] = ()
    exits: Sequence[Exit] = ()
    changed: Sequence[str] = ()
    findings: Sequence[str] = ()
    repaired: Sequence[str] = ()
    returned_at: Sequence[float] = ()
    left_over: Sequence[str] = ()
    idle_processes: Sequence[str] = ()
    held_up: Sequence[str] = ()
    looked: int = 0
    heard: Sequence[Heard] = ()
    requested: Mapping[str, int] = field(default_factory=dict)
    happened: Mapping[str, int] = field(default_factory=dict)
    is_quiet: bool = True
