"""The last runs of a manifest as a chart: how long each waited and ran, and how it ended. Reads no rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from chainsched.admin.kit import display
from chainsched.admin.kit.sections import Bar, Chart, Table, Tick
from chainsched.domain.known import label
from chainsched.domain.states import ExecutionState

MAX_RUNS = 50

LEFT, TOP, RIGHT, BOTTOM = 84, 24, 24, 28
STEP, BAR_WIDTH, PLOT_HEIGHT = 18, 12, 180
LABEL_EVERY = 8
LEAST_HEIGHT = 1.0
ZERO = timedelta(0)

# A state that only a newer version knows has another mark.
UNKNOWN = "?"
MARKS: dict[str, str] = {
    ExecutionState.COMPLETED: "✓",
    ExecutionState.FAILED: "✖",
    ExecutionState.CANCELLED: "‖",
    ExecutionState.IN_PROGRESS: "▶",
    ExecutionState.PENDING: "…",
}

# Steps of an axis with round numbers, in seconds.
ROUND_STEPS = (
    *(base * 10**power for power in (-3, -2, -1, 0) for base in (1, 2, 5)),
    *(10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400),
)
MOST_TICKS = 5


@dataclass(frozen=True, slots=True)
class Run:
    """The values of a run that the chart needs. ``since`` is when it was due or, for a retry, dispatched."""

    pk: int
    state: str
    since: datetime
    started_at: datetime | None
    ended_at: datetime | None

    def waited(self, now: datetime) -> timedelta:
        """From ``since`` until its code began; if it never began, until it ended or until now."""
        return max((self.started_at or self.ended_at or now) - self.since, ZERO)

    def ran(self, now: datetime) -> timedelta:
        """From the start of its code until it ended, or until now."""
        return ZERO if self.started_at is None else max((self.ended_at or now) - self.started_at, ZERO)


def chart(runs: Sequence[Run], *, now: datetime, address_of: Callable[[int], str]) -> Chart:
    """The chart of these runs, the oldest on the left."""
    longest = max((run.waited(now) + run.ran(now) for run in runs), default=ZERO)
    shown = {run.state for run in runs}
    step = round_step(longest.total_seconds())
    ceiling = step * max(1, -(-longest.total_seconds() // step))
    return Chart(
        "Timeline",
        f"The last {len(runs)} runs, the newest on the right: how long each waited and, above it, how long it ran.",
        _table(runs, now, address_of),
        width=LEFT + max(len(runs), LABEL_EVERY) * STEP + RIGHT,
        height=TOP + PLOT_HEIGHT + BOTTOM,
        bars=[_bar(at, run, now, ceiling, address_of(run.pk)) for at, run in enumerate(runs)],
        ticks=_ticks(step, ceiling),
        labels=_labels(runs),
        left=LEFT,
        bar_width=BAR_WIDTH,
        right=LEFT + max(len(runs), LABEL_EVERY) * STEP,
        legend=[_Outcome(state) for state in dict.fromkeys([*MARKS, *(run.state for run in runs)]) if state in shown],
    )


def round_step(seconds: float) -> float:
    """The distance between two lines of the axis, so that there are few lines, with round numbers."""
    for step in ROUND_STEPS:
        if step * MOST_TICKS >= seconds:
            return float(step)
    days = -(-seconds // (MOST_TICKS * ROUND_STEPS[-1]))
    return float(days * ROUND_STEPS[-1])


@dataclass(frozen=True, slots=True)
class _Outcome:
    state: str

    @property
    def mark(self) -> str:
        return MARKS.get(self.state, UNKNOWN)

    @property
    def words(self) -> str:
        return label(ExecutionState, self.state)

    @property
    def css_class(self) -> str:
        return f"chainsched-run-{self.state.replace('_', '-') if self.state in MARKS else 'pending'}"


def _bar(at: int, run: Run, now: datetime, ceiling: float, url: str) -> Bar:
    waited, ran = run.waited(now), run.ran(now)
    low = _height(waited, ceiling)
    high = _height(ran, ceiling)
    left = LEFT + at * STEP + (STEP - BAR_WIDTH) / 2
    floor = TOP + PLOT_HEIGHT
    outcome = _Outcome(run.state)
    return Bar(
        left=f"{left:.1f}",
        middle=f"{left + BAR_WIDTH / 2:.1f}",
        wait_top=f"{floor - low:.1f}",
        wait_height=f"{low:.1f}",
        run_top=f"{floor - low - high:.1f}",
        run_height=f"{high:.1f}",
        mark_at=f"{floor - low - high - 5:.1f}",
        mark=outcome.mark,
        words=f"#{run.pk} {outcome.words}: waited {display.duration(waited)}, ran {display.duration(ran)}",
        css_class=outcome.css_class,
        url=url,
    )


def _height(span: timedelta, ceiling: float) -> float:
    """In points; any duration above zero is visible."""
    return max(span.total_seconds() / ceiling * PLOT_HEIGHT, LEAST_HEIGHT) if span else 0.0


def _ticks(step: float, ceiling: float) -> list[Tick]:
    floor = TOP + PLOT_HEIGHT
    heights = [step * number for number in range(round(ceiling / step) + 1)]
    return [Tick(f"{floor - height / ceiling * PLOT_HEIGHT:.1f}", _axis_words(height)) for height in heights]


def _axis_words(seconds: float) -> str:
    """The value in the largest unit of which it has at least one."""
    for unit, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:g} {name}"
    return f"{seconds:g} s"


def _labels(runs: Sequence[Run]) -> list[Tick]:
    """When some of the runs began to wait, below their bars; none so far right that it would be cut off."""
    return [
        Tick(f"{LEFT + at * STEP + STEP / 2:.1f}", f"{display.in_zone(runs[at].since):%m-%d %H:%M}")
        for at in range(0, max(len(runs) - LABEL_EVERY // 2, 1), LABEL_EVERY)
        if runs
    ]


def _table(runs: Sequence[Run], now: datetime, address_of: Callable[[int], str]) -> Table:
    rows: list[tuple[Any, ...]] = [
        (
            display.linked(address_of(run.pk), f"#{run.pk}"),
            display.standing(ExecutionState, run.state),
            display.moment(run.since),
            display.duration(run.waited(now)),
            display.duration(run.ran(now)) if run.started_at else display.NOTHING,
        )
        for run in reversed(runs)
    ]
    return Table("", ("Execution", "State", "Since", "Waited", "Ran"), rows, if_empty="It has not run yet.")
