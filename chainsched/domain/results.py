"""The engine's answers to the requests of operators and callers."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from chainsched.domain.joins import JoinOutcome
from chainsched.domain.known import label
from chainsched.domain.states import ExecutionState

# Names in one sentence; reports as values hold more.
MAX_LISTED = 10


class Answer(enum.StrEnum):
    """The answer to a trigger request; the value is the stable code."""

    QUEUED = "queued"
    QUEUED_BY_ITSELF = "queued_by_itself"
    ALREADY_QUEUED = "already_queued"
    WILL_RUN_AGAIN = "will_run_again"
    DELAYED = "delayed"
    WAITS_FOR_GROUP = "waits_for_group"
    OTHER_REQUEST_WAITS = "other_request_waits"
    AWAITS_DEAD_LETTER = "awaits_dead_letter"
    BUSY = "busy"

    @property
    def in_words(self) -> str:
        return IN_WORDS[self]

    @property
    def is_refusal(self) -> bool:
        """Whether the request changes nothing and no run follows from it."""
        return self in REFUSALS


IN_WORDS = {
    Answer.QUEUED: "queued",
    Answer.QUEUED_BY_ITSELF: "queued in a run of its own: joins after it that wait for others as well do not run in it",
    Answer.ALREADY_QUEUED: "already queued; it was brought forward",
    Answer.WILL_RUN_AGAIN: "will run again after this run",
    Answer.DELAYED: "will run at the time asked for",
    Answer.WAITS_FOR_GROUP: "will run when its group is enabled",
    Answer.OTHER_REQUEST_WAITS: (
        "not run: another trigger request waits, with another input or for another time; trigger it after that run"
    ),
    Answer.BUSY: "not queued: it is queued or running already",
    Answer.AWAITS_DEAD_LETTER: "not run: a dead letter awaits a decision; retry or acknowledge it",
}
REFUSALS = (Answer.OTHER_REQUEST_WAITS, Answer.BUSY, Answer.AWAITS_DEAD_LETTER)


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
            lines.append("Its run was cancelled: nothing more follows from it.")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Missing:
    """A manifest that has not arrived at a join in a run, and why."""

    external_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class JoinReport:
    """How a join stands in one run: how many have to arrive, of how many, and how many did; who is missing and why."""

    external_id: str
    run_id: int
    # One of JoinOutcome, or a value that only a newer version knows.
    outcome: str
    needed: int
    expected: int
    arrived: int
    open: int
    deadline_at: datetime | None = None
    # A fan-in runs only in runs in which its parent's outcome matched.
    is_gate_missing: bool = False
    missing: tuple[Missing, ...] = ()
    missing_count: int = 0

    @property
    def in_words(self) -> str:
        text = f"run {self.run_id}: {self.arrived} of {self.expected} arrived, it needs {self.needed}"
        is_waiting, is_short = self.outcome == JoinOutcome.WAITING, self.outcome == JoinOutcome.SHORT
        text += f", {self.open} open" if is_waiting else f", {label(JoinOutcome, self.outcome)}"
        if (is_waiting or is_short) and self.missing:
            listed = ", ".join(f"{it.external_id} ({it.reason})" for it in self.missing[:MAX_LISTED])
            more = self.missing_count - len(self.missing[:MAX_LISTED])
            text += f"; missing: {listed}" + (f" and {more} more" if more > 0 else "")
        if self.is_gate_missing and is_short:
            text += "; its parent's outcome did not match"
        if self.deadline_at is not None and is_waiting:
            text += f"; decided at the latest at {self.deadline_at.isoformat()}"
        return text


@dataclass(frozen=True, slots=True)
class ParentRun:
    """An execution that another one ran after, with its output."""

    execution_id: int
    external_id: str
    state: ExecutionState
    output: Any


@dataclass(frozen=True, slots=True)
class OpenWork:
    """Something that is open in a run, and how it stands."""

    external_id: str
    standing: str


@dataclass(frozen=True, slots=True)
class RunReport:
    """How a run of the graph goes."""

    run_id: int
    head: str
    scheduled_for: datetime
    created_at: datetime
    closed_at: datetime | None
    cancelled_at: datetime | None
    cancel_reason: str
    # How many executions there are, by state and workflow.
    executions: Mapping[str, Mapping[str, int]]
    open_work: tuple[OpenWork, ...]
    joins: tuple[JoinReport, ...]

    @property
    def state(self) -> str:
        if self.cancelled_at is not None:
            return "cancelled"
        return "open" if self.closed_at is None else "closed"

    @property
    def in_words(self) -> str:
        lines = [f"Run {self.run_id} of {self.head}, due at {self.scheduled_for.isoformat()}: {self.state}"]
        if self.cancel_reason:
            lines.append(f"It was cancelled: {self.cancel_reason}")
        for state, workflows in self.executions.items():
            counted = ", ".join(f"{number} {workflow}" for workflow, number in sorted(workflows.items()))
            lines.append(f"  {state.replace('_', ' ')}: {sum(workflows.values())} ({counted})")
        lines += [f"  open: {work.external_id} ({work.standing})" for work in self.open_work[:MAX_LISTED]]
        if len(self.open_work) > MAX_LISTED:
            lines.append(f"  open: and {len(self.open_work) - MAX_LISTED} more")
        lines += [f"  join {join.external_id}: {join.in_words.partition(': ')[2]}" for join in self.joins]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "state": self.state}


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
