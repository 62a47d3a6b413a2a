"""The states that rows pass through, and which step may follow which."""

from __future__ import annotations

import enum
from collections.abc import Mapping


class ExecutionState(enum.StrEnum):
    """Where an execution stands."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL_STATES


class QueueStatus(enum.StrEnum):
    """Where a row of the work queue stands."""

    QUEUED = "queued"
    DISPATCHED = "dispatched"
    CANCELLED = "cancelled"


class DeadLetterStatus(enum.StrEnum):
    """Whether somebody has decided about a dead letter."""

    AWAITING_INTERVENTION = "awaiting_intervention"
    RETRIED = "retried"
    ACKNOWLEDGED = "acknowledged"


class BulkDecisionVerb(enum.StrEnum):
    """What somebody asked to be done to many dead letters."""

    RETRY = "retry"
    ACKNOWLEDGE = "acknowledge"


class BulkDecisionStatus(enum.StrEnum):
    """Where a bulk decision stands."""

    WAITING = "waiting"
    UNDER_WAY = "under_way"
    DONE = "done"
    CANCELLED = "cancelled"


class BulkDecisionOutcome(enum.StrEnum):
    """What became of one letter of a bulk decision."""

    WAITING = "waiting"
    DONE = "done"
    SKIPPED = "skipped"


class ScheduleType(enum.StrEnum):
    """What makes a manifest run."""

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
    """What asked for a row of the work queue."""

    SCHEDULE = "schedule"
    DEPENDENCY = "dependency"
    TRIGGER = "trigger"
    RETRY = "retry"
    DEAD_LETTER = "dead_letter"
    ACTIVATION = "activation"
    TASK = "task"


class MisfirePolicy(enum.StrEnum):
    """What happens to an occurrence that is found late."""

    RUN_ONCE = "run_once"
    SKIP = "skip"


ACTIVE_STATES = (ExecutionState.PENDING, ExecutionState.IN_PROGRESS)
OPEN_BULK_DECISIONS = (BulkDecisionStatus.WAITING, BulkDecisionStatus.UNDER_WAY)
TERMINAL_STATES = (ExecutionState.COMPLETED, ExecutionState.FAILED, ExecutionState.CANCELLED)

# An operator asked for these in person, so they run although the manifest is disabled.
SOURCES_PAST_DISABLED = (Source.TRIGGER, Source.DEAD_LETTER)

EXECUTION_TRANSITIONS: Mapping[ExecutionState, frozenset[ExecutionState]] = {
    ExecutionState.PENDING: frozenset({ExecutionState.IN_PROGRESS, ExecutionState.CANCELLED}),
    # Back to pending: a claim whose run never began.
    ExecutionState.IN_PROGRESS: frozenset({ExecutionState.PENDING, *TERMINAL_STATES}),
    ExecutionState.COMPLETED: frozenset(),
    ExecutionState.FAILED: frozenset(),
    ExecutionState.CANCELLED: frozenset(),
}

QUEUE_TRANSITIONS: Mapping[QueueStatus, frozenset[QueueStatus]] = {
    QueueStatus.QUEUED: frozenset({QueueStatus.DISPATCHED, QueueStatus.CANCELLED}),
    # Back to queued: an execution that nobody began and nobody can run any more.
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
