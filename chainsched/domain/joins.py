"""The rule of a join: whether it runs in a run, waits, or has too little to run with; and why a member is missing."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from chainsched.domain.obstacles import Obstacle
from chainsched.domain.states import ExecutionState


class JoinOutcome(enum.StrEnum):
    """How a join stands in one run; ``CLOSED`` is for the run's own end."""

    WAITING = "waiting"
    FIRED = "fired"
    SHORT = "short"
    CANCELLED = "cancelled"
    CLOSED = "closed"


class FanIn(enum.StrEnum):
    """Over which manifests a fan-in waits."""

    NONE = ""
    SIBLINGS = "siblings"
    TREE = "tree"


@dataclass(frozen=True, slots=True)
class Join:
    """The options of a join, as its manifest has them now."""

    at_least: int | None = None
    at_least_percent: int | None = None
    is_eager: bool = False
    runs_again_on_late: bool = False
    fan_in: FanIn = FanIn.NONE
    # Its manifest was removed: it can never run.
    is_gone: bool = False

    def need(self, edges: int) -> int:
        """How many of so many edges have to arrive; a fan-in without a number of its own runs in any case."""
        if self.at_least_percent is not None:
            return -(-edges * self.at_least_percent // 100)
        if self.at_least is not None:
            return min(self.at_least, edges)
        return 0 if self.fan_in else edges

    def judged_by(self, *, arrived: int, present_arrived: int, present: int, is_open: bool) -> tuple[int, int]:
        """The arrivals and the edges to judge by where the edges were changed that arrivals were counted over.

        A parent that is taken out of the list counts no longer, and an outcome counts by the condition that its edge
        has now; while something ``is_open``, no more than were counted, as the notes of others are under way. A member
        of a fan-in that arrived, and is gone since then, still counts: as an arrival, and as one of those that it is
        waited for.
        """
        if self.fan_in:
            return arrived, present + max(arrived - present_arrived, 0)
        return min(arrived, present_arrived) if is_open else present_arrived, present


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a join has come in one run, with all notes added up."""

    open: int
    arrived: int
    is_gated: bool
    judged: int
    firings: int
    outcome: JoinOutcome
    is_past_deadline: bool = False
    is_run_cancelled: bool = False

    @property
    def known(self) -> int:
        """How many arrivals there are to decide by, the gate included."""
        return self.arrived + self.is_gated


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome from now on; whether the join runs, and whether it gives its tokens back."""

    outcome: JoinOutcome
    fires: bool = False
    gives_back: bool = False
    is_new: bool = True


def may_decide(standing: Standing, join: Join) -> bool:
    """Whether there is something to decide, so that the number of edges has to be known."""
    if standing.outcome is not JoinOutcome.WAITING:
        return standing.known > standing.judged and (standing.open == 0 or (join.is_eager and not standing.firings))
    return bool(
        standing.open == 0 or standing.is_past_deadline or join.is_eager or standing.is_run_cancelled or join.is_gone
    )


def decide(standing: Standing, join: Join, *, edges: int) -> Decision | None:
    """Decide a join in a run; None if it goes on waiting or nothing changes. ``edges`` are those older than the run."""
    # With nothing that arrived there is nothing to run after, even if all its edges were removed.
    is_enough = standing.known > 0 and standing.arrived >= join.need(edges) and (standing.is_gated or not join.fan_in)
    if standing.is_run_cancelled or join.is_gone:
        is_waiting = standing.outcome is JoinOutcome.WAITING
        return Decision(JoinOutcome.CANCELLED, gives_back=True) if is_waiting else None
    if standing.outcome is JoinOutcome.WAITING:
        is_time = standing.open == 0 or standing.is_past_deadline or (join.is_eager and is_enough)
        if not is_time:
            return None
        return Decision(JoinOutcome.FIRED, fires=True) if is_enough else Decision(JoinOutcome.SHORT, gives_back=True)
    return _decide_late(standing, join, is_enough=is_enough)


def _decide_late(standing: Standing, join: Join, *, is_enough: bool) -> Decision | None:
    """A short join that has become enough runs; one that has run does so again only if it asks for that."""
    is_time = standing.open == 0 or (join.is_eager and not standing.firings)
    if not (is_enough and is_time and standing.known > standing.judged):
        return None
    if standing.outcome is JoinOutcome.CANCELLED:
        return None
    fires = not standing.firings or join.runs_again_on_late
    return Decision(JoinOutcome.FIRED, fires=fires, is_new=False)


@dataclass(frozen=True, slots=True)
class Absent:
    """The known facts of a member that has not arrived at a join in a run."""

    # Its newest execution in the run.
    execution_id: int = 0
    state: ExecutionState | None = None
    # The attempt that its queue row in the run is for; 0 without a row.
    queued_attempt: int = 0
    is_due: bool = False
    # The first obstacle that lists show as its state, and the first of all: only a due item is stopped by any.
    state_obstacle: Obstacle | None = None
    obstacle: Obstacle | None = None
    has_letter: bool = False
    # Its queue row in the run was cancelled, and it did not begin.
    is_row_cancelled: bool = False


def why_missing(member: Absent) -> str:
    """Why a member has not arrived, in words."""
    if member.state is ExecutionState.IN_PROGRESS:
        return "running"
    if member.state is ExecutionState.PENDING:
        return "dispatched"
    if member.state is None or member.queued_attempt or member.is_due:
        return _why_waiting(member)
    ended = f"{member.state.value} in execution {member.execution_id}"
    is_stopped = member.state is ExecutionState.FAILED and member.has_letter
    return f"{ended}, its dead letter awaits a decision" if is_stopped else ended


def _why_waiting(member: Absent) -> str:
    if member.state_obstacle is not None:
        return _named(member.state_obstacle)
    if member.queued_attempt:
        return "queued" if member.queued_attempt == 1 else f"waits for attempt {member.queued_attempt}"
    if member.has_letter:
        return "stopped by a dead letter of an earlier run"
    if member.is_due:
        return "due" if member.obstacle is None else _named(member.obstacle)
    if member.is_row_cancelled:
        return "cancelled before it began"
    return "not activated" if member.obstacle is Obstacle.DORMANT else "not reached"


def _named(obstacle: Obstacle) -> str:
    return obstacle.value.replace("_", " ")
