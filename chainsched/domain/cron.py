"""Cron expressions: which are accepted, and the instants at which one fires in a time zone.

The rule for a changed clock is chainsched's own: a fixed wall time runs once in a repeated hour and right after a gap;
a wildcard minute or hour follows elapsed time, so it runs in both passes and skips times that do not exist.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from calendar import monthrange
from datetime import MAXYEAR, MINYEAR, UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from chainsched.domain.cron_fields import MAX_LENGTH, NICKNAMES, Fields, days_matching, normalise, parse
from chainsched.exceptions import InvalidSchedule

__all__ = ["NICKNAMES", "latest_until", "next_after", "restricts_both_day_fields", "validate"]

# The rarest date, a 29 February on a given weekday, returns after forty years at most (around 2100).
_MONTHS_SEARCHED = 12 * 41
_SECOND = timedelta(seconds=1)


def validate(expression: str) -> str:
    """Return the expression with its nickname resolved and its spaces squeezed; raises if it cannot be used."""
    text = normalise(expression)
    parse(text)
    return text


def restricts_both_day_fields(expression: str) -> bool:
    """Whether day of month and day of week are both restricted, so that either may match."""
    fields = parse(normalise(expression))
    return fields.restricts_day and fields.restricts_weekday


def next_after(expression: str, *, zone: str, after: datetime) -> datetime:
    """Return the first occurrence strictly after the aware ``after``, in UTC."""
    fields, region = parse(normalise(expression)), zone_named(zone)
    search = _next_fixed if fields.is_fixed else _next_elapsed
    found = search(fields, zone=region, after=_whole_seconds(after))
    if found is None:
        raise InvalidSchedule(
            f"The cron expression {expression!r} has no occurrence after {after.isoformat()} that the calendar can "
            "name. Ask for an earlier time."
        )
    return found


def latest_until(expression: str, *, zone: str, until: datetime) -> datetime | None:
    """Return the latest occurrence at or before the aware ``until``, in UTC, if there is one."""
    fields, region = parse(normalise(expression)), zone_named(zone)
    search = _latest_fixed if fields.is_fixed else _latest_elapsed
    return search(fields, zone=region, until=_whole_seconds(until))


def zone_named(name: str) -> ZoneInfo:
    """Return the time zone of this IANA name."""
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError, TypeError, AttributeError) as error:
        raise InvalidSchedule(
            f"There is no time zone {str(name)[:MAX_LENGTH]!r}. Use an IANA name such as 'Europe/Berlin' or 'UTC'."
        ) from error


def change_between(earlier: datetime, later: datetime, *, zone: ZoneInfo) -> datetime:
    """Return the instant after ``earlier``, up to ``later``, at which the zone takes the offset it has at ``later``."""
    offset = later.astimezone(zone).utcoffset()

    def has_changed(seconds: int) -> bool:
        return (earlier + timedelta(seconds=seconds)).astimezone(zone).utcoffset() == offset

    distance = int((later - earlier).total_seconds())
    return earlier + timedelta(seconds=bisect_left(range(distance), True, key=has_changed))


def _whole_seconds(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise InvalidSchedule(f"The time {moment.isoformat()} has no time zone. Pass an aware datetime.")
    return moment.astimezone(UTC).replace(microsecond=0)


def _next_fixed(fields: Fields, *, zone: ZoneInfo, after: datetime) -> datetime | None:
    wall = _wall_after(fields, _wall_behind(after, zone))
    return None if wall is None else _settled(wall, zone)


def _latest_fixed(fields: Fields, *, zone: ZoneInfo, until: datetime) -> datetime | None:
    wall = _wall_until(fields, _wall_behind(until, zone))
    return None if wall is None else _settled(wall, zone)


def _wall_behind(moment: datetime, zone: ZoneInfo) -> datetime:
    """Return the last wall time that has had its run at this moment: all of a repeated hour in its second pass."""
    wall = _wall(moment, zone)
    first, second = _passes(wall, zone)
    if first < second == moment:
        return wall + (change_between(first, second, zone=zone) - first) - _SECOND
    return wall


def _settled(wall: datetime, zone: ZoneInfo) -> datetime:
    first, second = _passes(wall, zone)
    return first if first <= second else change_between(second, first, zone=zone)


def _next_elapsed(fields: Fields, *, zone: ZoneInfo, after: datetime) -> datetime | None:
    wall = _wall(after, zone)
    found = _wall_after(fields, wall)
    first, second = _passes(wall, zone)
    if after == first < second:
        change = change_between(first, second, zone=zone)
        if found is None or found >= wall + (change - first):
            found = _wall_after(fields, wall - (second - change) - _SECOND)
    while found is not None:
        first, second = _passes(found, zone)
        if first <= second:
            return first if first > after else second
        gap_end = found + (change_between(second, first, zone=zone) - second)
        found = _wall_after(fields, gap_end - _SECOND)
    return None


def _latest_elapsed(fields: Fields, *, zone: ZoneInfo, until: datetime) -> datetime | None:
    wall = _wall(until, zone)
    found = _wall_until(fields, wall)
    first, second = _passes(wall, zone)
    if first < second == until:
        change = change_between(first, second, zone=zone)
        if found is None or found < wall - (second - change):
            found = _wall_until(fields, wall + (change - first) - _SECOND)
    while found is not None:
        first, second = _passes(found, zone)
        if first <= second:
            return second if second <= until else first
        gap_start = found - (first - change_between(second, first, zone=zone))
        found = _wall_until(fields, gap_start - _SECOND)
    return None


def _wall(moment: datetime, zone: ZoneInfo) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def _passes(wall: datetime, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """Return both instants at which the wall clock shows this: equal outside a repeated hour, reversed in a gap."""
    first = wall.replace(tzinfo=zone)
    second = first.replace(fold=1)
    return first.astimezone(UTC), second.astimezone(UTC)


def _wall_after(fields: Fields, wall: datetime) -> datetime | None:
    rank = _times_until(fields, wall)
    if rank < _times_a_day(fields) and _is_matching_day(fields, wall):
        return datetime.combine(wall, _nth_time(fields, rank))
    day = _day_after(fields, wall)
    return None if day is None else datetime.combine(day, _nth_time(fields, 0))


def _wall_until(fields: Fields, wall: datetime) -> datetime | None:
    rank = _times_until(fields, wall)
    if rank > 0 and _is_matching_day(fields, wall):
        return datetime.combine(wall, _nth_time(fields, rank - 1))
    day = _day_before(fields, wall)
    return None if day is None else datetime.combine(day, _nth_time(fields, _times_a_day(fields) - 1))


def _times_a_day(fields: Fields) -> int:
    return len(fields.hours) * len(fields.minutes) * len(fields.seconds)


def _times_until(fields: Fields, wall: datetime) -> int:
    """Count the times of day that match up to and including this one."""
    hour = bisect_left(fields.hours, wall.hour)
    minute = second = 0
    if hour < len(fields.hours) and fields.hours[hour] == wall.hour:
        minute = bisect_left(fields.minutes, wall.minute)
        if minute < len(fields.minutes) and fields.minutes[minute] == wall.minute:
            second = bisect_right(fields.seconds, wall.second)
    return (hour * len(fields.minutes) + minute) * len(fields.seconds) + second


def _nth_time(fields: Fields, rank: int) -> time:
    rest, second = divmod(rank, len(fields.seconds))
    hour, minute = divmod(rest, len(fields.minutes))
    return time(fields.hours[hour], fields.minutes[minute], fields.seconds[second])


def _is_matching_day(fields: Fields, day: date) -> bool:
    return day.day in _days(fields, _month_number(day))


def _day_after(fields: Fields, day: date) -> date | None:
    passed, month = day.day, _month_number(day)
    for number in range(month, month + _MONTHS_SEARCHED):
        days = _days(fields, number)
        if days and days[-1] > passed:
            return date(number // 12, number % 12 + 1, days[bisect_right(days, passed)])
        passed = 0
    return None


def _day_before(fields: Fields, day: date) -> date | None:
    limit, month = day.day, _month_number(day)
    for number in range(month, month - _MONTHS_SEARCHED, -1):
        days = _days(fields, number)
        if days and days[0] < limit:
            return date(number // 12, number % 12 + 1, days[bisect_left(days, limit) - 1])
        limit = 32
    return None


def _month_number(day: date) -> int:
    return day.year * 12 + day.month - 1


def _days(fields: Fields, month_number: int) -> tuple[int, ...]:
    year, month = month_number // 12, month_number % 12 + 1
    if month not in fields.months or not MINYEAR <= year <= MAXYEAR:
        return ()
    weekday, length = monthrange(year, month)
    return days_matching(fields, (weekday + 1) % 7, length)
