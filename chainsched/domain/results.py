"""The engine's answers to the requests of operators and callers."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any


class Answer(enum.StrEnum):
    """The answer to a trigger request; the value is the stable code."""

    QUEUED = "queued"
    ALREADY_QUEUED = "already_queued"
    WILL_RUN_AGAIN = "will_run_again"
    DELAYED = "delayed"
    WAITS_FOR_GROUP = "waits_for_group"
    AWAITS_DEAD_LETTER = "awaits_dead_letter"
    BUSY = "busy"

    @property
    def in_words(self) -> str:
        return IN_WORDS[self]


IN_WORDS = {
    Answer.QUEUED: "queued",
    Answer.ALREADY_QUEUED: "already queued; it was brought forward",
    Answer.WILL_RUN_AGAIN: "will run again after this run",
    Answer.DELAYED: "will run at the time asked for",
    Answer.WAITS_FOR_GROUP: "will run when its group is enabled",
    Answer.BUSY: "not activated: it is queued or running already",
    Answer.AWAITS_DEAD_LETTER: "not run: a dead letter awaits a decision; retry or acknowledge it",
}


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Counts of stopped work: rows that will never run, executions that had not begun, and runs asked to stop."""

    queued: int = 0
    pending: int = 0
    running: int = 0

    @property
    def total(self) -> int:
        return self.queued + self.pending + self.running

    def __add__(self, other: Cancelled) -> Cancelled:
        return Cancelled(self.queued + other.queued, self.pending + other.pending, self.running + other.running)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a manifest is or is not running now: a stable code, the reason in words, and its next runs."""

    external_id: str
    code: str
    reason: str
    next_run_at: datetime | None
    next_runs: tuple[datetime, ...] = ()

    @property
    def in_words(self) -> str:
        lines = [f"{self.external_id}: {self.reason} [{self.code}]"]
        if self.next_run_at:
            lines.append(f"The manager evaluates it at {self.next_run_at.isoformat()}.")
        if self.next_runs:
            lines.append("Its schedule: " + ", ".join(moment.isoformat() for moment in self.next_runs[:3]) + ", …")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Cause:
    """One link of the chain that led to an execution: which execution it is, and why it ran."""

    execution_id: int
    external_id: str
    workflow: str
    state: str
    source: str
    attempt: int
    correlation_id: str
    reason: str

    @property
    def name(self) -> str:
        return f"{self.external_id or self.workflow} #{self.execution_id}"


@dataclass(frozen=True, slots=True)
class Ancestry:
    """The causes of an execution: the execution itself first, then each cause in turn, up to the root."""

    chain: tuple[Cause, ...]
    root_correlation_id: str
    is_tree_cancelled: bool = False

    @property
    def root(self) -> Cause:
        return self.chain[-1]

    @property
    def in_words(self) -> str:
        lines = [f"{cause.name} ({cause.state}) ran because {cause.reason}." for cause in self.chain]
        lines.append(f"Root correlation id: {self.root_correlation_id}")
        if self.is_tree_cancelled:
            lines.append("Its tree was cancelled: it gets no further executions.")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Health:
    """Whether all loops turn and all processes live: the problems, further notes, and the live processes."""

    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    loops: Mapping[str, datetime] = field(default_factory=dict)
    processes: tuple[Mapping[str, Any], ...] = ()

    @property
    def is_healthy(self) -> bool:
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "is_healthy": self.is_healthy}


@dataclass(frozen=True, slots=True)
class Finding:
    """A violated invariant, found in the rows: the check, the row that violates it, and the evidence."""

    check: str
    subject: str
    evidence: str
    is_repaired: bool = False

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Resolved:
    """The result of a decision about dead letters: those it took effect on, and why not on others."""

    done: tuple[int, ...] = ()
    skipped: Mapping[int, str] = field(default_factory=dict)

    def __add__(self, other: Resolved) -> Resolved:
        return Resolved(self.done + other.done, {**self.skipped, **other.skipped})
