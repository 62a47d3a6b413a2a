"""The outcomes of executions in each hour of a day, as plain numbers, which a template draws and lists in a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.utils.timezone import localtime

from chainsched.domain.states import ExecutionState

# In the order in which they are stacked, from the axis up.
STACKED = (ExecutionState.COMPLETED, ExecutionState.CANCELLED, ExecutionState.FAILED)
HEIGHT = 120
STEP = 26
BAR = 20
LEFT = 44
TOP = 8
LABEL_EVERY = 3


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a column: its state and its position."""

    state: str
    x: int
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class Column:
    """The executions that ended in an hour."""

    hour: str
    counts: Sequence[tuple[str, int]]
    bars: Sequence[Piece]
    middle: int
    is_labelled: bool

    @property
    def words(self) -> str:
        """The column in words."""
        return f"{self.hour}: " + (
            ", ".join(f"{number:,} {state}" for state, number in self.counts if number) or "none"
        )


@dataclass(frozen=True, slots=True)
class Day:
    """A column for each hour; the largest one has the full height."""

    columns: Sequence[Column]
    highest: int

    states = STACKED
    left = LEFT
    top = TOP
    bar_width = BAR
    base = TOP + HEIGHT
    total_height = TOP + HEIGHT + 24

    @property
    def total_width(self) -> int:
        return LEFT + STEP * len(self.columns)


def hourly(counts: Sequence[tuple[datetime, Mapping[str, int]]]) -> Day:
    """How many executions ended in each hour, by state."""
    highest = max((sum(by_state.values()) for _, by_state in counts), default=0)
    columns = [_column(number, hour, by_state, highest) for number, (hour, by_state) in enumerate(counts)]
    return Day(columns, highest)


def _column(number: int, hour: datetime, by_state: Mapping[str, int], highest: int) -> Column:
    left, bars, top = LEFT + number * STEP, [], float(TOP + HEIGHT)
    for state in STACKED:
        height = HEIGHT * by_state.get(state, 0) / highest if highest else 0.0
        top -= height
        if height:
            bars.append(Piece(state.value, left, round(top, 1), round(height, 1)))
    counts = [(state.value, by_state.get(state, 0)) for state in STACKED]
    shown = f"{localtime(hour):%H:%M}"
    return Column(shown, counts, bars, left + BAR // 2, is_labelled=number % LABEL_EVERY == 0)
