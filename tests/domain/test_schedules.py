from __future__ import annotations

import dataclasses
import time as clock
from datetime import UTC, date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainsched.domain.exclusions import Exclude
from chainsched.domain.schedules import (
    Cron,
    CronSchedule,
    Every,
    Interval,
    Once,
    Timing,
    latest_boundary,
    next_boundary,
    next_occurrence,
    next_runs,
)
from chainsched.exceptions import InvalidSchedule

NEW_YORK = "America/New_York"
NIGHT = (Exclude.window("22:00", "06:00"),)
ALWAYS = (Exclude.weekdays(*range(7)),)


def at(text: str, zone: str = "UTC") -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)


@pytest.mark.parametrize(
    ("made", "seconds"),
    [
        (Every.seconds(1), 1),
        (Every.seconds(90.0), 90),
        (Every.minutes(5), 300),
        (Every.minutes(0.5), 30),
        (Every.minutes(1.15), 69),
        (Every.hours(1 / 3), 1_200),
        (Every.hours(6), 21_600),
        (Every.days(1), 86_400),
        (Every.days(3_653), 3_653 * 86_400),
    ],
)
def test_an_interval_has_exactly_its_length(made, seconds):
    assert made == Interval(seconds)


@pytest.mark.parametrize(
    ("make", "fact"),
    [
        (lambda: Every.seconds(0), r"Every.seconds\(0\) is shorter than a second"),
        (lambda: Every.minutes(-5), r"Every.minutes\(-5\) is shorter"),
        (lambda: Every.seconds(0.5), "Write Every.seconds"),
        (lambda: Every.seconds(1.5), r"no whole number of seconds. Write Every.seconds\(2\)"),
        (lambda: Every.minutes(0.01), "shorter than a second"),
        (lambda: Every.minutes(True), "no length of time"),
        (lambda: Every.minutes("5"), "no length of time"),
        (lambda: Every.minutes(None), "no length of time"),
        (lambda: Every.hours(float("nan")), "no length of time"),
        (lambda: Every.hours(float("inf")), "no length of time"),
        (lambda: Every.days(3_654), "longer than ten years"),
        (lambda: Every.days(10**400), "longer than ten years"),
        (lambda: Interval(0), "from 1 second to 10 years"),
        (lambda: Interval(10**400), "from 1 second to 10 years"),
        (lambda: Interval(1.5), "whole number of seconds"),
        (lambda: Interval(True), "whole number of seconds"),
    ],
)
def test_an_impossible_interval_is_refused(make, fact):
    with pytest.raises(InvalidSchedule, match=fact):
        make()


@pytest.mark.parametrize(
    ("made", "expression"),
    [
        (Cron.minutely(), "* * * * *"),
        (Cron.hourly(), "0 * * * *"),
        (Cron.hourly(minute=5), "5 * * * *"),
        (Cron.daily(), "0 0 * * *"),
        (Cron.daily(2, 30), "30 2 * * *"),
        (Cron.weekly("mon", hour=9), "0 9 * * 1"),
        (Cron.weekly("Saturday"), "0 0 * * 6"),
        (Cron.weekly(0), "0 0 * * 0"),
        (Cron.weekly(7, minute=15), "15 0 * * 0"),
        (Cron.monthly(), "0 0 1 * *"),
        (Cron.monthly(day=31, hour=23, minute=59), "59 23 31 * *"),
        (Cron.expression(" @daily "), "0 0 * * *"),
        (Cron.expression("*/10  * * * * *"), "*/10 * * * * *"),
    ],
)
def test_a_cron_schedule_is_exactly_its_expression(made, expression):
    assert made == CronSchedule(expression)
    assert made.expression == expression


@pytest.mark.parametrize(
    ("make", "fact"),
    [
        (lambda: Cron.hourly(60), "The minute of a cron schedule cannot be 60. Write a number from 0 to 59"),
        (lambda: Cron.daily(hour=24), "The hour of a cron schedule cannot be 24"),
        (lambda: Cron.daily(minute=-1), "The minute of a cron schedule cannot be -1"),
        (lambda: Cron.daily(hour=True), "The hour of a cron schedule cannot be True"),
        (lambda: Cron.daily(hour="2"), "The hour of a cron schedule cannot be '2'"),
        (lambda: Cron.monthly(day=0), "The day of a cron schedule cannot be 0. Write a number from 1 to 31"),
        (lambda: Cron.monthly(day=32), "The day of a cron schedule cannot be 32"),
        (lambda: Cron.weekly(8), "8 is no weekday"),
        (lambda: Cron.weekly("funday"), "'funday' is no weekday"),
        (lambda: Cron.expression("0 0 30 2 *"), "can never match"),
        (lambda: Once(datetime(2026, 1, 1)), "carries its time zone"),  # noqa: DTZ001
        (lambda: Once("2026-01-01"), "carries its time zone"),
        (lambda: Once(date(2026, 1, 1)), "carries its time zone"),
        (lambda: Once(datetime(1, 1, 1, tzinfo=UTC)), "from 1900 to 2999"),
        (lambda: Once(datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))), "from 1900 to 2999"),
        (lambda: Once(datetime(1899, 12, 31, tzinfo=UTC)), "from 1900 to 2999"),
        (lambda: Once(datetime(3000, 1, 1, tzinfo=UTC)), "from 1900 to 2999"),
        (lambda: Once(datetime.max.replace(tzinfo=UTC)), "from 1900 to 2999"),
        (lambda: Once(datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))), "from 1900 to 2999"),
        (lambda: Timing(Cron.daily(), jitter_seconds=-1), "jitter of -1 seconds"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(make, fact):
    with pytest.raises(InvalidSchedule, match=fact):
        make()


@pytest.mark.parametrize("schedule", [Every.minutes(5), Cron.daily(), Once(at("2026-01-01T00:00"))])
def test_a_schedule_cannot_be_changed(schedule):
    field = dataclasses.fields(schedule)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(schedule, field, None)


def test_schedules_are_equal_by_value():
    plus_two = timezone(timedelta(hours=2))
    assert Once(datetime(2026, 1, 1, 14, tzinfo=plus_two)) == Once(at("2026-01-01T12:00"))
    assert {Every.minutes(60), Every.hours(1), Cron.daily(), Cron.expression("@daily")} == {
        Interval(3_600),
        CronSchedule("0 0 * * *"),
    }


@pytest.mark.parametrize(
    ("schedule", "english"),
    [
        (Every.seconds(1), "every second"),
        (Every.seconds(90), "every 90 seconds"),
        (Every.minutes(5), "every 5 minutes"),
        (Every.minutes(60), "every hour"),
        (Every.hours(36), "every 36 hours"),
        (Every.days(2), "every 2 days"),
        (Cron.daily(2, 30), "every day at 02:30"),
        (Once(at("2026-12-24T18:00")), "once at 2026-12-24 18:00:00 UTC"),
    ],
)
def test_a_schedule_describes_itself(schedule, english):
    assert schedule.describe() == english


@pytest.mark.parametrize(
    ("timing", "after", "expected"),
    [
        (Timing(Every.minutes(5)), "2026-01-01T12:00:30", "2026-01-01T12:05:30"),
        (Timing(Every.minutes(5), exclusions=NIGHT), "2026-01-01T21:58", "2026-01-02T06:00"),
        (Timing(Every.minutes(5), exclusions=NIGHT), "2026-01-02T05:55", "2026-01-02T06:00"),
        (Timing(Every.minutes(5), exclusions=ALWAYS), "2026-01-01T12:00", None),
        (Timing(Cron.hourly()), "2026-01-01T12:00", "2026-01-01T13:00"),
        (Timing(Cron.hourly(30), exclusions=NIGHT), "2026-01-01T21:30", "2026-01-02T06:30"),
        (Timing(Cron.hourly(), exclusions=NIGHT), "2026-01-01T21:00", "2026-01-02T06:00"),
        (Timing(Cron.daily(23), exclusions=(Exclude.weekdays("sat", "sun"),)), "2026-01-02T23:00", "2026-01-05T23:00"),
        (Timing(Cron.daily(23), exclusions=NIGHT), "2026-01-01T00:00", None),
        (Timing(Cron.minutely(), exclusions=ALWAYS), "2026-01-01T00:00", None),
        (
            Timing(Cron.minutely(), exclusions=(Exclude.between("2026-01-01", "2029-12-31"),)),
            "2026-01-01T00:00",
            "2030-01-01T00:00",
        ),
        (Timing(Cron.minutely(), exclusions=(Exclude.between("2026-01-01", "9999-12-31"),)), "2026-01-01T00:00", None),
        (Timing(Cron.expression("0 0 * 2 mon#5")), "2045-01-01T00:00", None),
        (Timing(Once(at("2026-01-01T12:00"))), "2026-01-01T00:00", "2026-01-01T12:00"),
        (Timing(Once(at("2026-01-01T12:00"))), "2027-01-01T00:00", "2026-01-01T12:00"),
        (Timing(Once(at("2026-01-01T23:00")), exclusions=NIGHT), "2026-01-01T00:00", "2026-01-02T06:00"),
    ],
)
def test_the_next_occurrence_heeds_the_exclusions(timing, after, expected):
    assert next_occurrence(timing, after=at(after)) == (at(expected) if expected else None)


def test_a_cron_occurrence_is_found_in_the_zone():
    timing = Timing(Cron.daily(23, 30), zone=NEW_YORK, exclusions=(Exclude.dates("2026-01-02"),))
    assert next_occurrence(timing, after=at("2026-01-02T05:00")) == at("2026-01-03T23:30", NEW_YORK)


@pytest.mark.parametrize(
    "timing",
    [
        Timing(Cron.expression("* * * * * *"), exclusions=(Exclude.between("2026-01-01", "2036-12-31"),)),
        Timing(Cron.expression("* * 23 * * *"), exclusions=NIGHT),
        Timing(Cron.expression("* * * * * *"), exclusions=ALWAYS),
    ],
)
def test_thousands_of_excluded_occurrences_cost_no_thousands_of_steps(timing):
    started = clock.process_time()
    assert next_occurrence(timing, after=at("2026-01-01T00:00")) is None
    assert clock.process_time() - started < 1


JITTERED = [Timing(Cron.hourly(), jitter_seconds=90, jitter_key=f"job-{n}") for n in range(200)]


def test_jitter_moves_a_run_later_by_at_most_its_seconds():
    delays = {next_occurrence(timing, after=at("2026-01-01T00:30")) - at("2026-01-01T01:00") for timing in JITTERED}
    assert min(delays) >= timedelta(0)
    assert max(delays) <= timedelta(seconds=90)
    assert all(delay.microseconds == 0 for delay in delays)
    assert len(delays) > 50


def test_jitter_is_the_same_in_every_process_and_differs_between_occurrences():
    timing = Timing(Cron.hourly(), jitter_seconds=600, jitter_key="nightly")
    first, second = next_runs(timing, after=at("2026-01-01T00:30"), count=2)
    assert first == next_occurrence(timing, after=at("2026-01-01T00:00")) == at("2026-01-01T01:01:47")
    assert first - at("2026-01-01T01:00") != second - at("2026-01-01T02:00")


def test_jitter_does_not_carry_a_run_into_an_exclusion():
    night = (Exclude.window("22:00", "06:00"),)
    for n in range(50):
        timing = Timing(Cron.daily(21, 59), exclusions=night, jitter_seconds=300, jitter_key=f"job-{n}")
        run = next_occurrence(timing, after=at("2026-01-01T00:00"))
        assert at("2026-01-01T21:59") <= run < at("2026-01-01T22:00")


@pytest.mark.parametrize(
    ("timing", "first", "until", "expected"),
    [
        (Timing(Every.minutes(5)), "2026-01-01T10:00", "2026-01-01T13:02", "2026-01-01T13:00"),
        (Timing(Every.minutes(5)), "2026-01-01T10:00", "2026-01-01T13:00", "2026-01-01T13:00"),
        (Timing(Every.minutes(5)), "2026-01-01T10:00:20", "2026-01-01T13:00", "2026-01-01T12:55:20"),
        (Timing(Every.minutes(5)), "2026-01-01T10:00", "2026-01-01T10:00", "2026-01-01T10:00"),
        (Timing(Cron.expression("*/5 * * * *")), "2026-01-01T10:00", "2026-01-01T13:02", "2026-01-01T13:00"),
        (Timing(Cron.daily(2)), "2026-01-01T02:00", "2026-01-01T13:00", "2026-01-01T02:00"),
        (Timing(Cron.daily(2), jitter_seconds=60), "2026-01-01T02:00:42", "2026-01-01T13:00", "2026-01-01T02:00:42"),
        (Timing(Cron.hourly(), exclusions=NIGHT), "2026-01-01T20:00", "2026-01-02T05:30", "2026-01-01T21:00"),
        (Timing(Cron.hourly(), exclusions=ALWAYS), "2026-01-01T20:00", "2026-01-02T05:30", "2026-01-01T20:00"),
        (Timing(Cron.minutely(), exclusions=ALWAYS), "2026-01-01T20:00", "2026-12-01T00:00", "2026-01-01T20:00"),
        (Timing(Once(at("2026-01-01T10:00"))), "2026-01-01T10:00", "2026-01-05T00:00", "2026-01-01T10:00"),
    ],
)
def test_the_latest_boundary_is_counted_from_the_missed_alarm(timing, first, until, expected):
    assert latest_boundary(timing, first=at(first), until=at(until)) == at(expected)


@pytest.mark.parametrize(
    ("timing", "first", "after", "expected"),
    [
        (Timing(Every.minutes(5)), "2026-01-01T10:00", "2026-01-01T13:02", "2026-01-01T13:05"),
        (Timing(Every.minutes(5)), "2026-01-01T10:00", "2026-01-01T13:05", "2026-01-01T13:10"),
        (Timing(Every.minutes(5)), "2026-01-01T10:00", "2026-01-01T09:00", "2026-01-01T10:00"),
        (Timing(Every.minutes(5), exclusions=NIGHT), "2026-01-01T10:00", "2026-01-01T22:01", "2026-01-02T06:00"),
        (Timing(Cron.expression("*/5 * * * *")), "2026-01-01T10:00", "2026-01-01T13:02", "2026-01-01T13:05"),
        (Timing(Once(at("2026-01-01T10:00"))), "2026-01-01T10:00", "2026-01-01T13:02", None),
    ],
)
def test_the_next_boundary_keeps_the_beat(timing, first, after, expected):
    assert next_boundary(timing, first=at(first), after=at(after)) == (at(expected) if expected else None)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.integers(1, 10_000_000), st.integers(0, 10**9))
def test_the_boundaries_of_an_interval_enclose_the_moment(seconds, late):
    timing, first = Timing(Interval(seconds)), at("2026-01-01T00:00")
    moment = first + timedelta(microseconds=late * 1_000)
    latest = latest_boundary(timing, first=first, until=moment)
    following = next_boundary(timing, first=first, after=moment)
    assert first <= latest <= moment < following
    assert following - latest == timedelta(seconds=seconds)
    assert (latest - first) % timedelta(seconds=seconds) == timedelta(0)


@pytest.mark.parametrize(
    ("timing", "count", "expected"),
    [
        (Timing(Every.hours(12)), 3, ["2026-01-02T00:00", "2026-01-02T12:00", "2026-01-03T00:00"]),
        (Timing(Cron.daily(2), exclusions=(Exclude.weekdays("sat"),)), 2, ["2026-01-02T02:00", "2026-01-04T02:00"]),
        (Timing(Once(at("2026-01-02T00:00"))), 10, ["2026-01-02T00:00"]),
        (Timing(Once(at("2025-01-02T00:00"))), 10, []),
        (Timing(Every.hours(1), exclusions=ALWAYS), 10, []),
        (Timing(Every.hours(1)), 0, []),
    ],
)
def test_the_next_runs_come_in_order_and_end_with_the_schedule(timing, count, expected):
    assert next_runs(timing, after=at("2026-01-01T12:00"), count=count) == [at(text) for text in expected]


def test_ten_runs_are_shown_unless_told_otherwise():
    runs = next_runs(Timing(Cron.minutely()), after=at("2026-01-01T12:00"))
    assert runs == [at("2026-01-01T12:00") + timedelta(minutes=n) for n in range(1, 11)]
