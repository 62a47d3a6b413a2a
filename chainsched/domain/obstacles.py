"""The one ordered list of obstacles: may this manifest run and, if not, why?

``models/obstacles.py`` holds the same conditions as SQL, and a test runs both forms over all combinations. A new
obstacle is one entry in each. Open work (a queued row, an execution, a dead letter) is no obstacle: rule 2 keeps it
out of the question.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from chainsched.domain.states import SOURCES_PAST_DISABLED, ScheduleType, Source


class Obstacle(enum.StrEnum):
    """A reason for which a manifest does not run; the value is the stable code."""

    RETIRED = "retired"
    DONE = "done"
    DISABLED = "disabled"
    GROUP_DISABLED = "group_disabled"
    ON_DEMAND = "on_demand"
    DORMANT = "dormant"
    PARENT_MISSING = "parent_missing"
    PARENT_DISABLED = "parent_disabled"

    @property
    def in_words(self) -> str:
        return RULES[self].in_words


class Standing(Protocol):
    """The columns of a manifest, its group and its parent that obstacles are judged by."""

    @property
    def is_retired(self) -> bool: ...
    @property
    def is_done(self) -> bool: ...
    @property
    def is_enabled(self) -> bool: ...
    @property
    def is_group_enabled(self) -> bool: ...
    @property
    def schedule_type(self) -> ScheduleType: ...
    @property
    def parent_id(self) -> int | None: ...
    @property
    def is_parent_enabled(self) -> bool: ...
    @property
    def is_join(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Rule:
    """One obstacle: when it is met, and how far it reaches. Every obstacle stops runs that the engine starts itself."""

    is_met: Callable[[Standing], bool]
    in_words: str
    # It also stops runs that an operator asked for: a trigger, the retry of a dead letter.
    stops_requests: bool = False
    # It also holds a row that is queued already, and this says so with the remedy; a row that an operator asked for
    # only if ``stops_requests``.
    held_row_in_words: str = ""
    # Lists and graphs show it as the state of the manifest.
    is_state: bool = False


def _is_plain(standing: Standing) -> bool:
    """Whether it starts and stops with its parent; a join that was decided runs in any case."""
    return standing.schedule_type is ScheduleType.DEPENDENT and not standing.is_join


# In the order in which they are named where several are met: first those that enabling something does not lift.
RULES = {
    Obstacle.RETIRED: Rule(lambda it: it.is_retired, "its declaration is gone from the code", is_state=True),
    Obstacle.DONE: Rule(lambda it: it.is_done, "it was a one-time job and has had its run", is_state=True),
    Obstacle.DISABLED: Rule(
        lambda it: not it.is_enabled,
        "it is disabled",
        held_row_in_words="it is queued, but the manifest is disabled; enable or trigger it",
        is_state=True,
    ),
    Obstacle.GROUP_DISABLED: Rule(
        lambda it: not it.is_group_enabled,
        "its group is disabled",
        stops_requests=True,
        held_row_in_words="it is queued, but its group is disabled; enable the group",
        is_state=True,
    ),
    Obstacle.ON_DEMAND: Rule(
        lambda it: it.schedule_type is ScheduleType.ON_DEMAND, "it has no schedule and runs only when triggered"
    ),
    Obstacle.DORMANT: Rule(
        lambda it: it.schedule_type is ScheduleType.DORMANT_DEPENDENT,
        "it is dormant and runs only when its parent activates it",
    ),
    Obstacle.PARENT_MISSING: Rule(
        lambda it: _is_plain(it) and it.parent_id is None,
        "it depends on a manifest that no longer exists",
    ),
    Obstacle.PARENT_DISABLED: Rule(lambda it: _is_plain(it) and not it.is_parent_enabled, "its parent is disabled"),
}

STOPPING_REQUESTS = tuple(obstacle for obstacle, rule in RULES.items() if rule.stops_requests)
HOLDING_QUEUED_ROWS = tuple(obstacle for obstacle, rule in RULES.items() if rule.held_row_in_words)
STATES = tuple(obstacle for obstacle, rule in RULES.items() if rule.is_state)

# Each list with its conditions, looked up once: every decision about every manifest goes through one of them.
Conditions = tuple[tuple[Obstacle, Callable[[Standing], bool]], ...]


def _conditions(obstacles: Iterable[Obstacle]) -> Conditions:
    return tuple((obstacle, RULES[obstacle].is_met) for obstacle in obstacles)


_ALL = _conditions(RULES)
_OF_REQUESTS = _conditions(STOPPING_REQUESTS)
_OF_QUEUED_ROWS = _conditions(HOLDING_QUEUED_ROWS)
_OF_STATES = _conditions(STATES)


def find_obstacle(standing: Standing) -> Obstacle | None:
    """The first obstacle to a run that the engine would start itself."""
    return _first(_ALL, standing)


def find_obstacle_to_request(standing: Standing) -> Obstacle | None:
    """The first obstacle to a run that an operator asks for."""
    return _first(_OF_REQUESTS, standing)


def find_obstacle_to_row(standing: Standing, source: Source) -> Obstacle | None:
    """The first obstacle that holds a queued row of this source back from dispatch."""
    return _first(_OF_REQUESTS if source in SOURCES_PAST_DISABLED else _OF_QUEUED_ROWS, standing)


def find_state(standing: Standing) -> Obstacle | None:
    """The obstacle that lists and graphs show as the state of a manifest without open work."""
    return _first(_OF_STATES, standing)


def _first(conditions: Conditions, standing: Standing) -> Obstacle | None:
    for obstacle, is_met in conditions:
        if is_met(standing):
            return obstacle
    return None
