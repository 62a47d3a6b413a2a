from __future__ import annotations

import json
import time as clock
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainsched.domain.exclusions import (
    DateRange,
    Dates,
    Exclude,
    Weekdays,
    Window,
    end_of_exclusion,
    from_json,
    is_excluded,
    to_json,
)
from chainsched.exceptions import InvalidSchedule

NEW_YORK, BERLIN = "America/New_York", "Europe/Berlin"


def at(text: str, zone: str = "UTC") -> datetime:
    """An instant from wall time; a trailing ``'`` means the second pass of a repeated hour."""
    wall = datetime.fromisoformat(text.rstrip("'"))
    return wall.replace(tzinfo=ZoneInfo(zone), fold=int(text.endswith("'"))).astimezone(UTC)


@pytest.mark.parametrize(
    ("made", "value"),
    [
        (Exclude.weekdays("sat", "Sunday"), Weekdays((0, 6))),
        (Exclude.weekdays(7, 6, 6), Weekdays((0, 6))),
        (Exclude.weekdays(), Weekdays(())),
        (Exclude.dates("2026-12-26", date(2026, 12, 25)), Dates((date(2026, 12, 25), date(2026, 12, 26)))),
        (Exclude.between("2026-12-24", "2027-01-01"), DateRange(date(2026, 12, 24), date(2027, 1, 1))),
        (Exclude.window("22:00", time(6)), Window(time(22), time(6))),
        (Exclude.window("22:00:30", "06:00"), Window(time(22, 0, 30), time(6))),
    ],
)
def test_exclusions_are_equal_by_value(made, value):
    assert made == value
    assert hash(made) == hash(value)


@pytest.mark.parametrize(
    ("make", "fact"),
    [
        (lambda: Exclude.weekdays("caturday"), "'caturday' is no weekday"),
        (lambda: Exclude.weekdays(8), "8 is no weekday"),
        (lambda: Exclude.weekdays(True), "True is no weekday"),
        (lambda: Exclude.dates("25.12.2026"), "'25.12.2026' is no date"),
        (lambda: Exclude.dates(datetime(2026, 12, 25, tzinfo=UTC)), "is no date"),
        (lambda: Exclude.between("2026-12-02", "2026-12-01"), "ends before it begins"),
        (lambda: Exclude.window("24:00", "06:00"), "'24:00' is no time of day"),
        (lambda: Exclude.window("6:00", "07:00"), "'6:00' is no time of day"),
        (lambda: Exclude.window(time(6, tzinfo=UTC), "07:00"), "is no time of day"),
        (lambda: Exclude.window("06:00", "06:00"), "has no length"),
    ],
)
def test_a_wrong_exclusion_is_refused(make, fact):
    with pytest.raises(InvalidSchedule, match=fact):
        make()


def test_exclusions_survive_json():
    exclusions = (
        Exclude.weekdays("sun", "wed"),
        Exclude.dates("2026-12-25"),
        Exclude.between("2026-12-24", "2027-01-01"),
        Exclude.window("22:00", "06:00"),
        Exclude.window("12:00:05", "12:30"),
    )
    data = json.loads(json.dumps(to_json(exclusions)))
    assert data[0] == {"kind": "weekdays", "days": [0, 3]}
    assert data[3] == {"kind": "window", "start": "22:00", "end": "06:00"}
    assert from_json(data) == exclusions


@pytest.mark.parametrize(
    "entry",
    [
        "sat",
        None,
        {},
        {"kind": "moon"},
        {"kind": ["dates"]},
        {"kind": "weekdays"},
        {"kind": "weekdays", "days": 5},
        {"kind": "weekdays", "days": ["x"]},
        {"kind": "dates", "dates": ["2026-02-30"]},
        {"kind": "dates", "dates": [20261225]},
        {"kind": "range", "first": "2026-01-02", "last": "2026-01-01"},
        {"kind": "window", "start": "22:00"},
        {"kind": "window", "start": "22:00", "end": "06:00", "zone": "UTC"},
    ],
)
def test_a_broken_entry_is_refused_and_named(entry):
    with pytest.raises(InvalidSchedule) as refusal:
        from_json([{"kind": "weekdays", "days": [0]}, entry])
    assert repr(entry)[:80] in str(refusal.value)


@pytest.mark.parametrize("data", [None, {}, "[]", 5])
def test_what_is_no_list_is_refused(data):
    with pytest.raises(InvalidSchedule, match="are a list"):
        from_json(data)


@pytest.mark.parametrize(
    ("exclusion", "zone", "moment", "expected"),
    [
        (Exclude.weekdays("sat"), "UTC", "2026-01-02T23:59:59", False),
        (Exclude.weekdays("sat"), "UTC", "2026-01-03T00:00", True),
        (Exclude.weekdays("sat"), "UTC", "2026-01-03T23:59:59.999999", True),
        (Exclude.weekdays("sun"), "UTC", "2026-01-04T12:00", True),
        (Exclude.weekdays("sat"), BERLIN, "2026-01-02T23:30", True),
        (Exclude.dates("2026-12-25"), "UTC", "2026-12-25T12:00", True),
        (Exclude.dates("2026-12-25"), "UTC", "2026-12-26T00:00", False),
        (Exclude.dates("2026-12-25"), NEW_YORK, "2026-12-26T03:00", True),
        (Exclude.between("2026-12-24", "2026-12-26"), "UTC", "2026-12-23T23:59", False),
        (Exclude.between("2026-12-24", "2026-12-26"), "UTC", "2026-12-24T00:00", True),
        (Exclude.between("2026-12-24", "2026-12-26"), "UTC", "2026-12-26T23:59", True),
        (Exclude.between("2026-12-24", "2026-12-26"), "UTC", "2026-12-27T00:00", False),
        (Exclude.window("09:00", "17:00"), "UTC", "2026-01-01T09:00", True),
        (Exclude.window("09:00", "17:00"), "UTC", "2026-01-01T17:00", False),
        (Exclude.window("22:00", "06:00"), "UTC", "2026-01-01T22:00", True),
        (Exclude.window("22:00", "06:00"), "UTC", "2026-01-01T05:59:59", True),
        (Exclude.window("22:00", "06:00"), "UTC", "2026-01-01T06:00", False),
        (Exclude.window("22:00", "06:00"), "UTC", "2026-01-01T21:59:59", False),
        (Exclude.window("22:00", "06:00"), NEW_YORK, "2026-01-01T04:00", True),
    ],
)
def test_an_exclusion_covers_the_wall_clock_of_the_zone(exclusion, zone, moment, expected):
    assert is_excluded([exclusion], moment=at(moment), zone=zone) is expected


WEEKEND_AND_NIGHT = (Exclude.weekdays("sat", "sun"), Exclude.window("22:00", "06:00"))


@pytest.mark.parametrize(
    ("exclusions", "zone", "moment", "expected"),
    [
        ((), "UTC", "2026-01-01T12:00:00.5", "2026-01-01T12:00:00.5"),
        (WEEKEND_AND_NIGHT, "UTC", "2026-01-01T12:00:00.5", "2026-01-01T12:00:00.5"),
        (WEEKEND_AND_NIGHT, "UTC", "2026-01-01T23:00:00.5", "2026-01-02T06:00"),
        (WEEKEND_AND_NIGHT, "UTC", "2026-01-02T22:00", "2026-01-05T06:00"),
        (WEEKEND_AND_NIGHT, BERLIN, "2026-01-02T22:00", "2026-01-05T06:00"),
        ((Exclude.between("2026-01-01", "2027-06-30"),), BERLIN, "2026-05-01T12:00", "2027-07-01T00:00"),
        ((Exclude.dates("2026-01-01", "2026-01-02"),), BERLIN, "2026-01-01T00:00", "2026-01-03T00:00"),
        # The window's end lies in the gap: it is over when the clock has been changed.
        ((Exclude.window("01:00", "02:30"),), NEW_YORK, "2026-03-08T01:30", "2026-03-08T03:00"),
        # The clock goes back out of the window, and it begins again.
        ((Exclude.window("01:30", "02:00"),), NEW_YORK, "2026-11-01T01:45", "2026-11-01T01:00'"),
        ((Exclude.window("01:30", "02:00"),), NEW_YORK, "2026-11-01T01:45'", "2026-11-01T02:00"),
        ((Exclude.window("00:30", "01:30"),), NEW_YORK, "2026-11-01T01:10'", "2026-11-01T01:30'"),
    ],
)
def test_the_end_of_an_exclusion_is_the_first_moment_nothing_covers(exclusions, zone, moment, expected):
    assert end_of_exclusion(exclusions, moment=at(moment, zone), zone=zone) == at(expected, zone)


@pytest.mark.parametrize(
    "exclusions",
    [
        (Exclude.weekdays(*range(7)),),
        (Exclude.between("2026-01-01", "9999-12-31"),),
        (Exclude.window("00:00", "12:00"), Exclude.window("12:00", "00:00")),
        tuple(Exclude.window(time(m // 60, m % 60), time((m + 1) // 60 % 24, (m + 1) % 60)) for m in range(1440)),
    ],
    ids=["weekdays", "forever", "two windows", "a window for every minute"],
)
def test_an_exclusion_without_end_is_noticed_in_bounded_time(exclusions):
    started = clock.process_time()
    assert end_of_exclusion(exclusions, moment=at("2026-06-01T12:00"), zone=NEW_YORK) is None
    assert clock.process_time() - started < 5


@settings(max_examples=120, deadline=None, derandomize=True, database=None)
@given(
    st.datetimes(min_value=datetime(2026, 3, 7), max_value=datetime(2026, 3, 10), timezones=st.just(UTC))  # noqa: DTZ001
    | st.datetimes(min_value=datetime(2026, 10, 31), max_value=datetime(2026, 11, 3), timezones=st.just(UTC)),  # noqa: DTZ001
    st.lists(
        st.builds(
            Exclude.window, st.sampled_from(["00:30", "01:30", "02:00"]), st.sampled_from(["02:30", "02:45", "03:00"])
        )
        | st.builds(Exclude.weekdays, st.integers(0, 6)),
        max_size=3,
    ),
)
def test_the_end_is_free_and_every_minute_before_it_is_not(moment, exclusions):
    end = end_of_exclusion(exclusions, moment=moment, zone=NEW_YORK)
    assert end is not None
    assert not is_excluded(exclusions, moment=end, zone=NEW_YORK)
    while moment < end:
        assert is_excluded(exclusions, moment=moment, zone=NEW_YORK)
        moment += timedelta(minutes=1)
