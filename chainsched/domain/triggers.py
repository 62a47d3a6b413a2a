"""How a trigger request is answered: it opens a run, joins one that is queued or due, waits its turn, or is refused.

A manifest keeps one request that waits. Another request joins it if it asks for the same, and is refused otherwise, so
that no answer that was given is taken back.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from chainsched.domain.due import Facts, OpenItem
from chainsched.domain.inputs import OWN_INPUT
from chainsched.domain.obstacles import Obstacle, find_obstacle, find_obstacle_to_request
from chainsched.domain.results import Answer

# The answer to a request that an obstacle stops: it waits until the obstacle is lifted.
ANSWERS = {Obstacle.GROUP_DISABLED: Answer.WAITS_FOR_GROUP}
# The answers after which the request is stored until the manifest can run.
STORED = (Answer.WILL_RUN_AGAIN, Answer.DELAYED, Answer.WAITS_FOR_GROUP)


class Answered(enum.Enum):
    """Which of the requests that are due a new queue row answers."""

    ALL = enum.auto()
    WITHOUT_INPUT = enum.auto()
    NONE = enum.auto()


@dataclass(frozen=True, slots=True)
class Wanted:
    """A run that was asked for: when it may start, and its input if it is not to be the manifest's."""

    at: datetime
    input: Any = OWN_INPUT

    def asks_for_the_same(self, other: Wanted, *, now: datetime) -> bool:
        """Whether one run answers both: with the same input, at the same time or both as soon as possible."""
        is_same_time = self.at == other.at or (self.at <= now and other.at <= now)
        return is_same_time and self.input == other.input


@dataclass(frozen=True, slots=True)
class Situation:
    """The present state that decides about a request: the facts, the request that waits, the input of a queued row."""

    facts: Facts
    waiting: Wanted | None = None
    has_row_own_input: bool = True


def answer_trigger(wanted: Wanted, situation: Situation, *, now: datetime) -> Answer:
    """The answer to a request; the caller carries it out."""
    answer = _first_answer(wanted, situation, now=now)
    waiting = situation.waiting
    if answer in STORED and waiting is not None and not wanted.asks_for_the_same(waiting, now=now):
        return Answer.OTHER_REQUEST_WAITS
    return answer


def is_queued_first(wanted: Wanted, situation: Situation, *, now: datetime) -> bool:
    """Whether the manager would queue a request that waits just now, and the new request asks for another run."""
    waiting = situation.waiting
    if situation.facts.open_item is not None or waiting is None or waiting.at > now:
        return False
    return not wanted.asks_for_the_same(waiting, now=now)


def _first_answer(wanted: Wanted, situation: Situation, *, now: datetime) -> Answer:
    """The answer if no other request waits."""
    facts = situation.facts
    if facts.open_item is OpenItem.DEAD_LETTER:
        return Answer.AWAITS_DEAD_LETTER
    if wanted.at > now:
        return Answer.DELAYED
    if facts.open_item is OpenItem.QUEUED and wanted.input is OWN_INPUT and situation.has_row_own_input:
        return Answer.ALREADY_QUEUED
    if facts.open_item is not None:
        return Answer.WILL_RUN_AGAIN
    if wanted.input is not OWN_INPUT and facts.is_behind_parent and find_obstacle(facts) is None:
        # It runs first for the outcome that it is due for, then with the input of the request.
        return Answer.WILL_RUN_AGAIN
    obstacle = find_obstacle_to_request(facts)
    return Answer.QUEUED if obstacle is None else ANSWERS[obstacle]
