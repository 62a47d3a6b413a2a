"""Reading a cron expression: which values its fields allow, or why it is refused.

croniter expands the fields. Terms that it reads differently from cron, or differently in its next release, are
rewritten as lists of values first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from croniter import croniter

from chainsched.exceptions import InvalidSchedule

NICKNAMES: Mapping[str, str] = MappingProxyType(
    {
        "@yearly": "0 0 1 1 *",
        "@annually": "0 0 1 1 *",
        "@monthly": "0 0 1 * *",
        "@weekly": "0 0 * * 0",
        "@daily": "0 0 * * *",
        "@midnight": "0 0 * * *",
        "@hourly": "0 * * * *",
    }
)
MAX_LENGTH = 200
LAST = 0  # the place of the last such weekday of a month, as in ``L5``

_CHARACTERS = re.compile(r"[0-9a-z*/,#?-]+")
_RANGE = re.compile(r"([0-9a-z]+)(?:-([0-9a-z]+))?(?:/(0*[1-9][0-9]*))?(#[0-9]+)?")
_MONTH_LENGTHS = {2: (28, 29), 4: (30,), 6: (30,), 9: (30,), 11: (30,)}


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    low: int
    high: int
    names: Sequence[str] = ()

    def number(self, text: str) -> int:
        if text == "l" and self.name == "day of month":
            return self.high
        value = self.low + self.names.index(text) if text in self.names else int(text)
        if not self.low <= value <= self.high + (self.name == "day of week"):  # 7 is Sunday too
            raise ValueError(text)
        return value


_KINDS = (
    _Kind("second", 0, 59),
    _Kind("minute", 0, 59),
    _Kind("hour", 0, 23),
    _Kind("day of month", 1, 31),
    _Kind("month", 1, 12, names=("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")),
    _Kind("day of week", 0, 6, names=("sun", "mon", "tue", "wed", "thu", "fri", "sat")),
)


@dataclass(frozen=True, slots=True, eq=False)
class Fields:
    """The values that the fields of an expression allow; weekday 0 is Sunday."""

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    has_last_day: bool
    nearest_weekdays: frozenset[int]  # to these days of the month
    months: frozenset[int]
    weekdays: frozenset[int]
    nth_weekdays: frozenset[tuple[int, int]]  # weekday and its place in the month
    restricts_day: bool
    restricts_weekday: bool
    is_fixed: bool  # neither minute nor hour is a wildcard


def normalise(expression: str) -> str:
    """Return the expression with its nickname resolved and its spaces squeezed; its fields are not checked."""
    if not isinstance(expression, str):
        raise InvalidSchedule(f"A cron expression is a text such as '30 2 * * *', not {type(expression).__name__}.")
    if len(expression) > MAX_LENGTH:
        raise InvalidSchedule(
            f"The cron expression {expression[:40]!r}... has {len(expression)} characters; "
            f"write one of at most {MAX_LENGTH}."
        )
    text = " ".join(expression.split())
    return NICKNAMES.get(text.lower(), text)


@lru_cache(maxsize=4096)
def parse(text: str) -> Fields:
    """Return the values that the fields of a normalised expression allow; one that never matches is refused."""
    parts = text.lower().split()
    if len(parts) not in (5, 6):
        raise InvalidSchedule(
            f"The cron expression {text!r} has {len(parts)} fields; write 5 (minute, hour, day of month, month, "
            f"day of week), 6 with the seconds first, or one of {', '.join(NICKNAMES)}."
        )
    parts = parts if len(parts) == 6 else ["0", *parts]
    for part, kind in zip(parts, _KINDS, strict=True):
        if (problem := _problem(part, kind=kind)) is not None:
            raise InvalidSchedule(f"The cron expression {text!r} has a wrong {kind.name} field {part!r}: {problem}")
    fields = _expand(parts)
    if not _can_match(fields):
        raise InvalidSchedule(
            f"The cron expression {text!r} can never match: no month that it allows has such a day. "
            "Change the day of month, the month or the day of week."
        )
    return fields


@lru_cache(maxsize=16384)
def days_matching(fields: Fields, first_weekday: int, length: int) -> tuple[int, ...]:
    """Return the days that match in a month of this length that begins on this weekday."""
    either = fields.restricts_day and fields.restricts_weekday
    nearest = {_nearest_weekday(day, first_weekday=first_weekday, length=length) for day in fields.nearest_weekdays}
    matching = []
    for day in range(1, length + 1):
        by_day = day in fields.days or day in nearest or (fields.has_last_day and day == length)
        by_weekday = _matches_weekday(fields, day=day, weekday=(first_weekday + day - 1) % 7, length=length)
        if (by_day or by_weekday) if either else (by_day and by_weekday):
            matching.append(day)
    return tuple(matching)


def _matches_weekday(fields: Fields, *, day: int, weekday: int, length: int) -> bool:
    nth = fields.nth_weekdays
    return (
        weekday in fields.weekdays or (weekday, (day + 6) // 7) in nth or ((weekday, LAST) in nth and day + 7 > length)
    )


def _nearest_weekday(day: int, *, first_weekday: int, length: int) -> int:
    day = min(day, length)
    weekday = (first_weekday + day - 1) % 7
    if weekday == 6:
        return day - 1 if day > 1 else 3
    if weekday == 0:
        return day + 1 if day < length else day - 2
    return day


def _can_match(fields: Fields) -> bool:
    # Over the years every month of every length begins on every weekday.
    months = {length for month in fields.months for length in _MONTH_LENGTHS.get(month, (31,))}
    return any(days_matching(fields, weekday, length) for length in months for weekday in range(7))


def _problem(part: str, *, kind: _Kind) -> str | None:
    if part[0] in "hr":
        return "a hashed or random value is not the same at every evaluation. Write a fixed value and use jitter."
    is_nth = {"#" in term or term.startswith("l") for term in part.split(",")}
    if kind.name == "day of week" and len(is_nth) > 1:
        return "plain weekdays do not mix with the nth or last weekday of a month. Make two schedules of it."
    if not _is_readable(part, kind=kind):
        return f"it cannot be read. Use *, values from {kind.low} to {kind.high}, ranges, steps and lists."
    return None


@lru_cache(maxsize=4096)
def _is_readable(part: str, *, kind: _Kind) -> bool:
    if _CHARACTERS.fullmatch(part) is None:
        return False
    try:
        _croniter([part if other.name == kind.name else "*" for other in _KINDS])
    except (ValueError, LookupError, TypeError):
        return False
    return True


def _expand(parts: Sequence[str]) -> Fields:
    cron, seconds = _croniter(parts)
    minutes, hours, days, months, weekdays = cron.expanded
    nth = {
        (int(day), LAST if str(n) == "l" else int(n))
        for day, places in cron.nth_weekday_of_month.items()
        for n in places
    }
    return Fields(
        seconds=_values(seconds, kind=_KINDS[0]),
        minutes=_values(minutes, kind=_KINDS[1]),
        hours=_values(hours, kind=_KINDS[2]),
        days=frozenset(() if cron.nearest_weekday else _values(days, kind=_KINDS[3])),
        has_last_day="l" in days,
        nearest_weekdays=frozenset(cron.nearest_weekday),
        months=frozenset(_values(months, kind=_KINDS[4])),
        weekdays=frozenset(() if nth else _values(weekdays, kind=_KINDS[5])),
        nth_weekdays=frozenset(nth),
        restricts_day="*" not in days,
        restricts_weekday="*" not in weekdays,
        is_fixed=not (parts[1].startswith("*") or parts[2].startswith("*")),
    )


def _croniter(parts: Sequence[str]) -> tuple[croniter[float], Sequence[str]]:
    """Return croniter's reading of the last five fields, and of the seconds."""
    seconds, *others = (
        ",".join(_spelled_out(term, kind=kind) for term in part.split(","))
        for part, kind in zip(parts, _KINDS, strict=True)
    )
    # The seconds go in as minutes: given six fields, croniter refuses 7 for Sunday and takes day 0 for day 1.
    return croniter(" ".join(others), 0.0), croniter(f"{seconds} * * * *", 0.0).expanded[0]


def _spelled_out(term: str, *, kind: _Kind) -> str:
    # croniter takes 5-5 for the whole cycle, 59/15 for */15, and is one off after the turn of 50-10/15.
    match = _RANGE.fullmatch(term)
    if match is None or not (match[2] or match[3]):
        return term
    first = kind.number(match[1])
    last = kind.number(match[2]) if match[2] else max(first, kind.high)
    if first < last:
        return term
    turn = [*range(first, kind.high + 1), *range(kind.low, last + 1)]
    values = [first] if first == last else turn[:: int(match[3] or 1)]
    return ",".join(f"{value}{match[4] or ''}" for value in values)


def _values(expanded: Sequence[str], *, kind: _Kind) -> tuple[int, ...]:
    if "*" in expanded:
        return tuple(range(kind.low, kind.high + 1))
    return tuple(sorted(int(value) for value in expanded if value != "l"))
