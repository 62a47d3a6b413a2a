"""Times in which a schedule does not run: weekdays, dates, ranges of dates and daily windows.

All are read on the wall clock of the schedule's zone; a day ends at its midnight.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo

from chainsched.domain.cron import change_between, zone_named
from chainsched.exceptions import InvalidSchedule

HORIZON = timedelta(days=2 * 365)

_MAX_HOPS = 5_000  # from one exclusion into the next: two years of days, several times over
_DAY = timedelta(days=1)
_DAY_NAMES = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_CLOCK = re.compile(r"(?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9])?")


@dataclass(frozen=True, slots=True)
class Weekdays:
    """Whole weekdays, 0 for Sunday as in cron."""

    days: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "days", tuple(sorted({weekday_number(day) for day in self.days})))

    def covers(self, wall: datetime) -> bool:
        return wall.isoweekday() % 7 in self.days

    def lifted_at(self, wall: datetime) -> datetime:
        return _midnight_after(wall)


@dataclass(frozen=True, slots=True)
class Dates:
    """Single dates."""

    dates: tuple[date, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "dates", tuple(sorted({_date(day) for day in self.dates})))

    def covers(self, wall: datetime) -> bool:
        place = bisect_left(self.dates, wall.date())
        return place < len(self.dates) and self.dates[place] == wall.date()

    def lifted_at(self, wall: datetime) -> datetime:
        return _midnight_after(wall)


@dataclass(frozen=True, slots=True)
class DateRange:
    """All dates from the first to the last, both included."""

    first: date
    last: date

    def __post_init__(self) -> None:
        object.__setattr__(self, "first", _date(self.first))
        object.__setattr__(self, "last", _date(self.last))
        if self.last < self.first:
            raise InvalidSchedule(f"The exclusion from {self.first} to {self.last} ends before it begins. Swap them.")

    def covers(self, wall: datetime) -> bool:
        return self.first <= wall.date() <= self.last

    def lifted_at(self, wall: datetime) -> datetime:
        return _midnight_after(max(self.last, wall.date()))


@dataclass(frozen=True, slots=True)
class Window:
    """Every day from the start up to, but not at, the end; over midnight when the end is the earlier of the two."""

    start: time
    end: time

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", _time(self.start))
        object.__setattr__(self, "end", _time(self.end))
        if self.start == self.end:
            raise InvalidSchedule(
                f"The exclusion window from {self.start} to {self.end} has no length. To exclude whole days, "
                "use Exclude.weekdays, Exclude.dates or Exclude.between."
            )

    def covers(self, wall: datetime) -> bool:
        if self.start < self.end:
            return self.start <= wall.time() < self.end
        return wall.time() >= self.start or wall.time() < self.end

    def lifted_at(self, wall: datetime) -> datetime:
        is_tomorrow = wall.time() >= self.end
        return datetime.combine(_midnight_after(wall) if is_tomorrow else wall, self.end)


Exclusion: TypeAlias = Weekdays | Dates | DateRange | Window

_KINDS: Mapping[str, type[Exclusion]] = {"weekdays": Weekdays, "dates": Dates, "range": DateRange, "window": Window}
_KIND_NAMES = {kind: name for name, kind in _KINDS.items()}


class Exclude:
    """Constructors of exclusions, the times at which a schedule does not run."""

    @staticmethod
    def weekdays(*days: int | str) -> Weekdays:
        """These weekdays: ``"sat"``, ``"Saturday"`` or ``6``; Sunday is 0 or 7."""
        return Weekdays(tuple(weekday_number(day) for day in days))

    @staticmethod
    def dates(*dates: date | str) -> Dates:
        """These dates: ``date(2026, 12, 25)`` or ``"2026-12-25"``."""
        return Dates(tuple(_date(day) for day in dates))

    @staticmethod
    def between(first: date | str, last: date | str) -> DateRange:
        """All dates from the first to the last, both included."""
        return DateRange(_date(first), _date(last))

    @staticmethod
    def window(start: time | str, end: time | str) -> Window:
        """Every day between two times of day, over midnight if need be: ``("22:00", "06:00")``."""
        return Window(_time(start), _time(end))


def is_excluded(exclusions: Iterable[Exclusion], *, moment: datetime, zone: str) -> bool:
    """Whether an exclusion covers the moment on the zone's wall clock."""
    wall = moment.astimezone(zone_named(zone)).replace(tzinfo=None)
    return any(exclusion.covers(wall) for exclusion in exclusions)


def end_of_exclusion(exclusions: Iterable[Exclusion], *, moment: datetime, zone: str) -> datetime | None:
    """Return the first instant from ``moment`` on that no exclusion covers; None if two years have none."""
    region, exclusions = zone_named(zone), tuple(exclusions)
    free = moment.astimezone(UTC)
    for _ in range(_MAX_HOPS):
        wall = free.astimezone(region).replace(tzinfo=None, fold=0)
        lifted = [exclusion.lifted_at(wall) for exclusion in exclusions if exclusion.covers(wall)]
        if not lifted:
            return free
        free = _advanced(free, by=max(lifted) - wall, zone=region)
        if free - moment > HORIZON:
            return None
    return None


def to_json(exclusions: Iterable[Exclusion]) -> list[dict[str, Any]]:
    """Return the exclusions as JSON can hold them."""
    return [
        {"kind": _KIND_NAMES[type(entry)]} | {field.name: _plain(getattr(entry, field.name)) for field in fields(entry)}
        for entry in exclusions
    ]


def from_json(data: Any) -> tuple[Exclusion, ...]:
    """Return the exclusions that ``to_json`` wrote; an entry that is no exclusion is refused and named."""
    if data in ([], ()):
        return ()
    if not isinstance(data, list | tuple):
        raise InvalidSchedule(f"Exclusions are a list, not {_shown(data)}. Write [] for none.")
    return tuple(_exclusion(entry) for entry in data)


def weekday_number(day: int | str) -> int:
    """Return the weekday as cron counts it, 0 for Sunday, from a number or an English name."""
    if isinstance(day, str):
        for number, name in enumerate(_DAY_NAMES):
            if day.strip().lower() in (name, name[:3]):
                return number
    elif isinstance(day, int) and not isinstance(day, bool) and 0 <= day <= 7:
        return day % 7
    raise InvalidSchedule(f"{_shown(day)} is no weekday. Write a name such as 'mon', or 0 (Sunday) to 6 (Saturday).")


def _advanced(moment: datetime, *, by: timedelta, zone: ZoneInfo) -> datetime:
    # If the clock changes on the way, the hour that follows has to be checked again.
    target = moment + by
    if moment.astimezone(zone).utcoffset() == target.astimezone(zone).utcoffset():
        return target
    return change_between(moment.replace(microsecond=0), target, zone=zone)


def _midnight_after(day: date) -> datetime:
    return datetime.combine(min(date(day.year, day.month, day.day), date.max - _DAY) + _DAY, time())


def _date(value: date | str) -> date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    try:
        return date.fromisoformat(value)  # type: ignore[arg-type]  # a value that is no text is refused below
    except (TypeError, ValueError) as error:
        raise InvalidSchedule(f"{_shown(value)} is no date. Write date(2026, 12, 25) or '2026-12-25'.") from error


def _time(value: time | str) -> time:
    if isinstance(value, time) and value.tzinfo is None and not value.microsecond:
        return value
    if isinstance(value, str) and _CLOCK.fullmatch(value):
        return time.fromisoformat(value)
    raise InvalidSchedule(f"{_shown(value)} is no time of day. Write time(22, 0) or '22:00'; midnight is '00:00'.")


def _exclusion(entry: Any) -> Exclusion:
    kind = _KINDS.get(str(entry.get("kind"))) if isinstance(entry, dict) else None
    if kind is None:
        raise InvalidSchedule(f"{_shown(entry)} is no exclusion. Give it a kind: {', '.join(_KINDS)}.")
    try:
        return kind(**{name: value for name, value in entry.items() if name != "kind"})
    except (TypeError, InvalidSchedule) as error:
        raise InvalidSchedule(f"The exclusion {_shown(entry)} cannot be read: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, time):
        return value.isoformat("seconds" if value.second else "minutes")
    return value.isoformat() if isinstance(value, date) else value


def _shown(value: object) -> str:
    return repr(value)[:80]
