"""The states that rows pass through, and which step may follow which."""

from __future__ import annotations

import enum
from collections.abc import Mapping


class ExecutionState(enum.StrEnum):
    """The states of an execution."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL_STATES


class QueueStatus(enum.StrEnum):
    """The states of a row of the work queue."""

    QUEUED = "queued"
    DISPATCHED = "dispatched"
    CANCELLED = "cancelled"


class DeadLetterStatus(enum.StrEnum):
    """Whether a dead letter awaits a decision, and the decision if not."""

    AWAITING_INTERVENTION = "awaiting_intervention"
    RETRIED = "retried"
    ACKNOWLEDGED = "acknowledged"


class BulkDecisionVerb(enum.StrEnum):
    """The actions of a bulk decision."""

    RETRY = "retry"
    ACKNOWLEDGE = "acknowledge"


class BulkDecisionStatus(enum.StrEnum):
    """The states of a bulk decision."""

    WAITING = "waiting"
    UNDER_WAY = "under_way"
    DONE = "done"
    CANCELLED = "cancelled"


class BulkDecisionOutcome(enum.StrEnum):
    """The outcome for one letter of a bulk decision."""

    WAITING = "waiting"
    DONE = "done"
    SKIPPED = "skipped"


class ScheduleType(enum.StrEnum):
    """How the runs of a manifest come about."""

    ON_DEMAND = "on_demand"
    CRON = "cron"
    INTERVAL = "interval"
    ONCE = "once"
    DEPENDENT = "dependent"
    DORMANT_DEPENDENT = "dormant_dependent"

    @property
    def is_timed(self) -> bool:
        return self in (ScheduleType.CRON, ScheduleType.INTERVAL, ScheduleType.ONCE)

    @property
    def has_parent(self) -> bool:
        return self in (ScheduleType.DEPENDENT, ScheduleType.DORMANT_DEPENDENT)


class RunCondition(enum.IntEnum):
    """Which outcome of its parent a dependent runs for."""

    NONE = 0
    SUCCESS = 1
    FAILURE = 2
    COMPLETION = 3


class Source(enum.StrEnum):
    """The kinds of causes of a row of the work queue."""

    SCHEDULE = "schedule"
    DEPENDENCY = "dependency"
    TRIGGER = "trigger"
    RETRY = "retry"
    DEAD_LETTER = "dead_letter"
    ACTIVATION = "activation"
    TASK = "task"


class MisfirePolicy(enum.StrEnum):
    """How an occurrence that is found late is treated."""

    RUN_ONCE = "run_once"
    SKIP = "skip"


ACTIVE_STATES = (ExecutionState.PENDING, ExecutionState.IN_PROGRESS)
OPEN_BULK_DECISIONS = (BulkDecisionStatus.WAITING, BulkDecisionStatus.UNDER_WAY)
TERMINAL_STATES = (ExecutionState.COMPLETED, ExecutionState.FAILED, ExecutionState.CANCELLED)

# An operator asked for these, so they run although the manifest is disabled.
SOURCES_PAST_DISABLED = (Source.TRIGGER, Source.DEAD_LETTER)

EXECUTION_TRANSITIONS: Mapping[ExecutionState, frozenset[ExecutionState]] = {
    ExecutionState.PENDING: frozenset({ExecutionState.IN_PROGRESS, ExecutionState.CANCELLED}),
    # No stage goes back to pending: an execution that comes back before it began is removed, and its queue row waits.
    ExecutionState.IN_PROGRESS: frozenset(TERMINAL_STATES),
    ExecutionState.COMPLETED: frozenset(),
    ExecutionState.FAILED: frozenset(),
    ExecutionState.CANCELLED: frozenset(),
}

QUEUE_TRANSITIONS: Mapping[QueueStatus, frozenset[QueueStatus]] = {
    QueueStatus.QUEUED: frozenset({QueueStatus.DISPATCHED, QueueStatus.CANCELLED}),
    # Back to queued: its execution has not begun, and was returned by its worker or can be run by no process.
    QueueStatus.DISPATCHED: frozenset({QueueStatus.QUEUED}),
    QueueStatus.CANCELLED: frozenset(),
}

DEAD_LETTER_TRANSITIONS: Mapping[DeadLetterStatus, frozenset[DeadLetterStatus]] = {
    DeadLetterStatus.AWAITING_INTERVENTION: frozenset({DeadLetterStatus.RETRIED, DeadLetterStatus.ACKNOWLEDGED}),
    DeadLetterStatus.RETRIED: frozenset(),
    DeadLetterStatus.ACKNOWLEDGED: frozenset(),
}


def may_become(current: ExecutionState, *, target: ExecutionState) -> bool:
    """Whether an execution in ``current`` may be moved to ``target``."""
    return target in EXECUTION_TRANSITIONS[current]
