"""A cron expression in English, written from the values that its fields allow."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from chainsched.domain.cron_fields import LAST, Fields, normalise, parse

_MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_MONDAY_FIRST = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_PLACES = {LAST: "last", 1: "first", 2: "second", 3: "third", 4: "fourth", 5: "fifth"}
_NUMBERS = tuple(str(number) for number in range(60))
_MAX_CLOCK_TIMES = 6


def describe(expression: str) -> str:
    """Say in English when the expression fires, such as ``on Monday to Friday at 09:00``."""
    fields = parse(normalise(expression))
    days = " or ".join(filter(None, (_days(fields), _weekdays(fields))))
    clock = _clock_times(fields)
    parts = (days or "every day", clock) if clock else (_rhythm(fields), days)
    return " ".join(filter(None, (*parts, _months(fields))))


def _clock_times(fields: Fields) -> str:
    """Name the times of day one by one, if they are few."""
    if len(fields.hours) * len(fields.minutes) * len(fields.seconds) > _MAX_CLOCK_TIMES:
        return ""
    times = [f"{hour:02}:{minute:02}" for hour, minute in product(fields.hours, fields.minutes)]
    if fields.seconds != (0,):
        times = [f"{time}:{second:02}" for time, second in product(times, fields.seconds)]
    return f"at {_listed(times)}"


def _rhythm(fields: Fields) -> str:
    every_hours = _step(fields.hours, size=24)
    if every_hours and len(fields.minutes) == 1 and fields.seconds == (0,):
        return f"every {every_hours} hours at minute {fields.minutes[0]}"
    is_by_second = fields.seconds != (0,)
    parts = [_repeated("second", fields.seconds)] if is_by_second else []
    if not is_by_second:
        parts.append(_repeated("minute", fields.minutes))
    elif len(fields.minutes) < 60:
        parts.append(_numbered("minute", fields.minutes))
    elif parts[0].startswith("at"):
        parts.append("every minute")
    if len(fields.hours) < 24:
        parts.append(_numbered("hour", fields.hours))
    elif not parts[-1].startswith("every"):
        parts.append("every hour")
    return " of ".join(parts)


def _repeated(unit: str, values: Sequence[int]) -> str:
    if len(values) == 60:
        return f"every {unit}"
    step = _step(values, size=60)
    return f"every {step} {unit}s" if step else f"at {_numbered(unit, values)}"


def _step(values: Sequence[int], *, size: int) -> int | None:
    """Return the step if the values go evenly around the clock from 0."""
    step = size // len(values)
    return step if 1 < len(values) < size and tuple(values) == tuple(range(0, size, step)) and not size % step else None


def _months(fields: Fields) -> str:
    if len(fields.months) == 12:
        return ""
    return f"in {_listed(_runs(sorted(month - 1 for month in fields.months), names=_MONTHS))}"


def _days(fields: Fields) -> str:
    if not fields.restricts_day:
        return ""
    parts = [f"the weekday nearest to day {day}" for day in sorted(fields.nearest_weekdays)]
    if fields.days:
        parts.append(_numbered("day", sorted(fields.days)))
    if fields.has_last_day:
        parts.append("the last day")
    return f"on {' and '.join(parts)} of the month"


def _weekdays(fields: Fields) -> str:
    if not fields.restricts_weekday:
        return ""
    if fields.nth_weekdays:
        ordered = sorted(fields.nth_weekdays, key=lambda nth: (nth[1] or 6, (nth[0] - 1) % 7))
        names = [f"the {_PLACES[place]} {_MONDAY_FIRST[weekday - 1]}" for weekday, place in ordered]
        return f"on {_listed(names)} of the month"
    return f"on {_listed(_runs(sorted((day - 1) % 7 for day in fields.weekdays), names=_MONDAY_FIRST))}"


def _numbered(unit: str, values: Sequence[int]) -> str:
    return f"{unit}{'s' if len(values) > 1 else ''} {_listed(_runs(values, names=_NUMBERS))}"


def _runs(values: Sequence[int], *, names: Sequence[str]) -> list[str]:
    """Name ascending values, three or more in a row as one range."""
    parts, rest = [], list(values)
    while rest:
        length = next((n for n in range(1, len(rest)) if rest[n] != rest[0] + n), len(rest))
        taken = 1 if length == 2 else length
        parts.append(names[rest[0]] if taken == 1 else f"{names[rest[0]]} to {names[rest[taken - 1]]}")
        del rest[:taken]
    return parts


def _listed(items: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(items[:-1]), items[-1])))
