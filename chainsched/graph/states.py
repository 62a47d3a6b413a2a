"""The state of a manifest in a graph, with its colour, mark and word; the same rule for the command and the pages."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from django.db.models import Case, CharField, Exists, OuterRef, Value, When

from chainsched.domain.obstacles import STATES, Obstacle
from chainsched.domain.states import ExecutionState
from chainsched.models import DeadLetter, Metadata, WorkQueue
from chainsched.models.obstacles import has_met


class NodeState(enum.StrEnum):
    """The state of a manifest, which decides its colour."""

    RUNNING = "running"
    QUEUED = "queued"
    DEAD_LETTER = "dead_letter"
    FAILING = "failing"
    DISABLED = "disabled"
    DONE = "done"
    SUCCEEDED = "succeeded"
    IDLE = "idle"

    @property
    def words(self) -> str:
        return self.value.replace("_", " ")

    @property
    def mark(self) -> str:
        """A character that shows the state without colour."""
        return MARKS[self]

    @property
    def css_class(self) -> str:
        return f"chainsched-node-{self.value.replace('_', '-')}"


FILLS = {
    NodeState.RUNNING: "#9ec5fe",
    NodeState.QUEUED: "#cfe2ff",
    NodeState.DEAD_LETTER: "#f1aeb5",
    NodeState.FAILING: "#ffe69c",
    NodeState.DISABLED: "#dee2e6",
    NodeState.DONE: "#d1e7dd",
    NodeState.SUCCEEDED: "#a3cfbb",
    NodeState.IDLE: "#ffffff",
}

MARKS = {
    NodeState.RUNNING: "▶",
    NodeState.QUEUED: "…",
    NodeState.DEAD_LETTER: "✖",
    NodeState.FAILING: "!",
    NodeState.DISABLED: "‖",
    NodeState.DONE: "■",
    NodeState.SUCCEEDED: "✓",
    NodeState.IDLE: "○",
}

# From the worst to the best: a node for many manifests has the first state that any of them has.
BY_SEVERITY = (
    NodeState.DEAD_LETTER,
    NodeState.FAILING,
    NodeState.DISABLED,
    NodeState.QUEUED,
    NodeState.RUNNING,
    NodeState.IDLE,
    NodeState.SUCCEEDED,
    NodeState.DONE,
)
# The state that an obstacle is drawn as. Retired manifests are in no graph.
BY_OBSTACLE = {
    Obstacle.RETIRED: NodeState.DISABLED,
    Obstacle.DONE: NodeState.DONE,
    Obstacle.DISABLED: NodeState.DISABLED,
    Obstacle.GROUP_DISABLED: NodeState.DISABLED,
}


def worst(states: Mapping[NodeState, int]) -> NodeState:
    """The state of a node for many manifests."""
    return next((state for state in BY_SEVERITY if states.get(state)), NodeState.IDLE)


def describe_counts(states: Mapping[NodeState, int]) -> str:
    """The number of manifests in each state as text, the worst first."""
    return ", ".join(f"{states[state]:,} {state.words}" for state in BY_SEVERITY if states.get(state))


def standing() -> Case:
    """The state of a manifest as an expression to annotate its row with."""
    executions = Metadata.objects.active().filter(manifest=OuterRef("pk")).order_by()
    running = executions.filter(state=ExecutionState.IN_PROGRESS.value)
    queued = WorkQueue.objects.queued().filter(manifest=OuterRef("pk")).order_by()
    letters = DeadLetter.objects.awaiting().filter(manifest=OuterRef("pk")).order_by()
    return Case(
        When(Exists(running), then=Value(NodeState.RUNNING.value)),
        When(Exists(executions) | Exists(queued), then=Value(NodeState.QUEUED.value)),
        When(Exists(letters), then=Value(NodeState.DEAD_LETTER.value)),
        *(When(has_met([obstacle]), then=Value(BY_OBSTACLE[obstacle].value)) for obstacle in STATES),
        When(state__consecutive_failures__gt=0, then=Value(NodeState.FAILING.value)),
        When(state__last_successful_run__isnull=True, then=Value(NodeState.IDLE.value)),
        default=Value(NodeState.SUCCEEDED.value),
        output_field=CharField(),
    )
