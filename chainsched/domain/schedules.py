"""Schedules as values, and the times at which they fire.

Nothing here reads a clock: the caller passes the moment to count from.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from chainsched.domain import cron, cron_text
from chainsched.domain.exclusions import HORIZON as EXCLUSION_HORIZON
from chainsched.domain.exclusions import Exclusion, end_of_exclusion, is_excluded, weekday_number
from chainsched.exceptions import InvalidSchedule

MAX_INTERVAL_SECONDS = 3_653 * 86_400  # ten years
HORIZON = timedelta(days=3_653)
# Dates from which no step of a calculation leads out of those that Python and databases have.
FIRST_YEAR, LAST_YEAR = 1900, 2999

_MAX_HOPS = 10_000  # over excluded occurrences: ten years of days, and more
_MAX_HOPS_BACK = 1_000  # an occurrence further back is later than any misfire threshold
# How many occurrences may have their jittered time still to come; of more, the earlier ones are passed over.
_MAX_JITTERED = 1000
_INSTANT = timedelta(microseconds=1)
_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


@dataclass(frozen=True, slots=True)
class Interval:
    """A run, then a pause of so many seconds, then the next run."""

    seconds: int

    def __post_init__(self) -> None:
        if not isinstance(self.seconds, int) or isinstance(self.seconds, bool):
            raise InvalidSchedule(f"An interval is a whole number of seconds, not {self.seconds!r}.")
        if not 1 <= self.seconds <= MAX_INTERVAL_SECONDS:
            raise InvalidSchedule(
                f"An interval of {self.seconds!r:.20} seconds cannot be scheduled. Write one from 1 second to 10 years."
            )

    def describe(self) -> str:
        """Say in English when it runs."""
        unit, size = next((unit, size) for unit, size in _UNITS if self.seconds % size == 0)
        count = self.seconds // size
        return f"every {unit}" if count == 1 else f"every {count} {unit}s"


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """The occurrences of a cron expression."""

    expression: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "expression", cron.validate(self.expression))

    def describe(self) -> str:
        """Say in English when it runs."""
        return cron_text.describe(self.expression)


@dataclass(frozen=True, slots=True)
class Once:
    """One run at one moment."""

    at: datetime

    def __post_init__(self) -> None:
        if not isinstance(self.at, datetime) or self.at.tzinfo is None:
            raise InvalidSchedule(
                f"Once needs a datetime that carries its time zone, not {self.at!r}. "
                "Write datetime(2026, 12, 24, 18, 0, tzinfo=ZoneInfo('Europe/Berlin'))."
            )
        if not FIRST_YEAR <= self.at.year <= LAST_YEAR:
            raise InvalidSchedule(
                f"Once at {self.at} cannot be scheduled. Write a year from {FIRST_YEAR} to {LAST_YEAR}."
            )
        object.__setattr__(self, "at", self.at.astimezone(UTC))

    def describe(self) -> str:
        """Say in English when it runs."""
        return f"once at {self.at:%Y-%m-%d %H:%M:%S} UTC"


Schedule: TypeAlias = Interval | CronSchedule | Once


class Every:
    """Intervals: ``Every.minutes(5)``."""

    @staticmethod
    def seconds(n: float) -> Interval:
        """Every ``n`` seconds."""
        return _interval(n, unit="seconds", size=1)

    @staticmethod
    def minutes(n: float) -> Interval:
        """Every ``n`` minutes; a fraction must come to whole seconds."""
        return _interval(n, unit="minutes", size=60)

    @staticmethod
    def hours(n: float) -> Interval:
        """Every ``n`` hours; a fraction must come to whole seconds."""
        return _interval(n, unit="hours", size=3_600)

    @staticmethod
    def days(n: float) -> Interval:
        """Every ``n`` days; a fraction must come to whole seconds."""
        return _interval(n, unit="days", size=86_400)


class Cron:
    """Wall-clock times in the manifest's zone: ``Cron.daily(hour=2, minute=30)``."""

    @staticmethod
    def minutely() -> CronSchedule:
        """Every minute."""
        return CronSchedule("* * * * *")

    @staticmethod
    def hourly(minute: int = 0) -> CronSchedule:
        """Every hour at this minute."""
        return CronSchedule(f"{_part('minute', minute, high=59)} * * * *")

    @staticmethod
    def daily(hour: int = 0, minute: int = 0) -> CronSchedule:
        """Every day at this time."""
        return CronSchedule(f"{_clock(hour, minute)} * * *")

    @staticmethod
    def weekly(day: int | str, hour: int = 0, minute: int = 0) -> CronSchedule:
        """Once a week; the day is a name such as ``"mon"``, or 0 (Sunday) to 6 (Saturday)."""
        return CronSchedule(f"{_clock(hour, minute)} * * {weekday_number(day)}")

    @staticmethod
    def monthly(day: int = 1, hour: int = 0, minute: int = 0) -> CronSchedule:
        """Once a month; a month that lacks the day has no run (``Cron.expression("0 0 L * *")`` is its last day)."""
        return CronSchedule(f"{_clock(hour, minute)} {_part('day', day, low=1, high=31)} * *")

    @staticmethod
    def expression(text: str) -> CronSchedule:
        """Any cron expression: a nickname, 5 fields, or 6 with the seconds first."""
        return CronSchedule(text)


@dataclass(frozen=True, slots=True)
class Timing:
    """A schedule with everything that shifts its runs; ``jitter_key`` spreads schedules that share their times."""

    schedule: Schedule
    zone: str = "UTC"
    exclusions: tuple[Exclusion, ...] = ()
    jitter_seconds: int = 0
    jitter_key: str = ""

    def __post_init__(self) -> None:
        if self.jitter_seconds < 0:
            raise InvalidSchedule(f"A jitter of {self.jitter_seconds} seconds would run too early. Write 0 or more.")


def next_occurrence(timing: Timing, *, after: datetime) -> datetime | None:
    """Return the next time to run, jitter included; None if there is none within the horizon.

    A cron occurrence inside an exclusion is dropped; an interval or once run waits for the exclusion's end.
    """
    match timing.schedule:
        case CronSchedule():
            occurrence = _cron_occurrence(timing, timing.schedule.expression, after)
        case Interval(seconds):
            occurrence = _after_exclusions(timing, after + timedelta(seconds=seconds))
        case Once(at):
            occurrence = _after_exclusions(timing, at)
    return None if occurrence is None else _jittered(timing, occurrence)


def next_run(timing: Timing, *, after: datetime) -> datetime | None:
    """Return the next time to run of a schedule that has begun, jitter included.

    An occurrence at or before ``after`` with a jittered time after it is still to be run; ``next_occurrence`` leaves
    it out, as one from before the schedule began.
    """
    if not timing.jitter_seconds or not isinstance(timing.schedule, CronSchedule):
        return next_occurrence(timing, after=after)
    earliest = next_occurrence(timing, after=after)
    start = after - timedelta(seconds=timing.jitter_seconds) - _INSTANT
    for _ in range(_MAX_JITTERED):
        occurrence = _cron_occurrence(timing, timing.schedule.expression, start)
        if occurrence is None or occurrence > after:
            break
        jittered = _jittered(timing, occurrence)
        if after < jittered and (earliest is None or jittered < earliest):
            earliest = jittered
        start = occurrence
    return earliest


def latest_boundary(timing: Timing, *, first: datetime, until: datetime) -> datetime:
    """Return the latest regular time up to ``until``, counted from the missed alarm ``first``."""
    match timing.schedule:
        case Interval(seconds):
            interval = timedelta(seconds=seconds)
            return first + max((until - first) // interval, 0) * interval
        case CronSchedule(expression):
            return _latest_cron_occurrence(timing, expression, first=first, until=until)
        case Once():
            return first


def next_boundary(timing: Timing, *, first: datetime, after: datetime) -> datetime | None:
    """Return the first regular time after ``after``, counted from ``first``; None for a once run."""
    match timing.schedule:
        case Interval(seconds):
            # The alarm ``first`` carries its jitter already.
            boundary = latest_boundary(timing, first=first, until=after)
            step = timedelta(seconds=seconds if boundary <= after else 0)
            return _after_exclusions(timing, boundary + step)
        case CronSchedule():
            return next_run(timing, after=after)
        case Once():
            return None


def next_runs(timing: Timing, *, after: datetime, count: int = 10) -> list[datetime]:
    """Return the next times to run, in order, as if every run took no time."""
    runs: list[datetime] = []
    while len(runs) < count:
        run = next_occurrence(timing, after=runs[-1] if runs else after)
        if run is None or run <= (runs[-1] if runs else after):
            break
        runs.append(run)
    return runs


def _cron_occurrence(timing: Timing, expression: str, after: datetime) -> datetime | None:
    limit, start = after + HORIZON, after
    for _ in range(_MAX_HOPS):
        occurrence = cron.next_after(expression, zone=timing.zone, after=start)
        if occurrence > limit:
            return None
        free = _after_exclusions(timing, occurrence)
        if free == occurrence:
            return occurrence
        start = (free or occurrence + EXCLUSION_HORIZON) - _INSTANT
    return None


def _latest_cron_occurrence(timing: Timing, expression: str, *, first: datetime, until: datetime) -> datetime:
    start = until
    for _ in range(_MAX_HOPS_BACK):
        occurrence = cron.latest_until(expression, zone=timing.zone, until=start)
        if occurrence is None or occurrence <= first:
            return first
        # An occurrence with a jittered time in the future runs at that time.
        jittered = _jittered(timing, occurrence)
        if jittered <= until and not is_excluded(timing.exclusions, moment=occurrence, zone=timing.zone):
            return jittered
        start = occurrence - _INSTANT
    return first


def _after_exclusions(timing: Timing, moment: datetime) -> datetime | None:
    if not timing.exclusions:
        return moment
    return end_of_exclusion(timing.exclusions, moment=moment, zone=timing.zone)


def _jittered(timing: Timing, occurrence: datetime) -> datetime:
    if not timing.jitter_seconds:
        return occurrence
    seed = f"{timing.jitter_key} {occurrence.astimezone(UTC).isoformat()}"
    number = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big")
    later = occurrence + timedelta(seconds=number % (timing.jitter_seconds + 1))
    # An exclusion must hold, jitter only spreads the load.
    return occurrence if is_excluded(timing.exclusions, moment=later, zone=timing.zone) else later


def _interval(n: float, *, unit: str, size: int) -> Interval:
    call = f"Every.{unit}({n!r:.60})"
    is_number = isinstance(n, int) or (isinstance(n, float) and math.isfinite(n))
    if not is_number or isinstance(n, bool):
        raise InvalidSchedule(f"{call} is no length of time. Write a number, such as Every.minutes(5).")
    if n * size < 1:
        raise InvalidSchedule(f"{call} is shorter than a second. Write Every.seconds(1) or longer.")
    if n * size > MAX_INTERVAL_SECONDS:
        raise InvalidSchedule(
            f"{call} is longer than ten years. Write Every.days(3653) or shorter, or Once for one run."
        )
    seconds = round(n * size)
    # A third of an hour is 1199.9999999999998 seconds in floating point, and is meant as 1200.
    if abs(n * size - seconds) > 1e-6:
        raise InvalidSchedule(f"{call} is no whole number of seconds. Write Every.seconds({seconds}).")
    return Interval(seconds)


def _clock(hour: int, minute: int) -> str:
    return f"{_part('minute', minute, high=59)} {_part('hour', hour, high=23)}"


def _part(name: str, value: int, *, low: int = 0, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidSchedule(
            f"The {name} of a cron schedule cannot be {value!r:.60}. Write a number from {low} to {high}."
        )
    return value
