from __future__ import annotations

import itertools
import random
import string
import time
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainsched.domain import cron
from chainsched.exceptions import InvalidSchedule

NEW_YORK, LORD_HOWE, SANTIAGO = "America/New_York", "Australia/Lord_Howe", "America/Santiago"
BUDGET_SECONDS = 0.05


def at(text: str, zone: str = "UTC") -> datetime:
    """An instant from wall time; a trailing ``'`` means the second pass of a repeated hour."""
    wall = datetime.fromisoformat(text.rstrip("'"))
    return wall.replace(tzinfo=ZoneInfo(zone), fold=int(text.endswith("'"))).astimezone(UTC)


def runs(expression: str, *, zone: str, after: str, until: str) -> list[datetime]:
    found, end = [], at(until, zone)
    run = cron.next_after(expression, zone=zone, after=at(after, zone))
    while run <= end:
        found.append(run)
        run = cron.next_after(expression, zone=zone, after=run)
    return found


@pytest.mark.parametrize(
    ("given", "normalised"),
    [
        ("30 2 * * *", "30 2 * * *"),
        ("  30\t2   * * * \n", "30 2 * * *"),
        ("*/10 * * * * *", "*/10 * * * * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        ("@weekly", "0 0 * * 0"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@HOURLY", "0 * * * *"),
        ("0 9 * JAN-mar Mon-FRI", "0 9 * JAN-mar Mon-FRI"),
        ("0 0 29 2 *", "0 0 29 2 *"),
        ("0 0 31 2 0", "0 0 31 2 0"),
        ("0 0 30 2 5", "0 0 30 2 5"),
        ("0 0 L 2 *", "0 0 L 2 *"),
        ("0 0 * 2 mon#5", "0 0 * 2 mon#5"),
        ("0 0 0 * * 7", "0 0 0 * * 7"),
        ("0 0 ? * ?", "0 0 ? * ?"),
    ],
)
def test_a_good_expression_is_returned_normalised(given, normalised):
    assert cron.validate(given) == normalised
    assert cron.validate(normalised) == normalised


@pytest.mark.parametrize(
    ("expression", "fact"),
    [
        ("", "0 fields"),
        ("0 0 * *", "4 fields"),
        ("0 0 0 * * * 2027", "7 fields"),
        ("@reboot", "1 field"),
        ("60 * * * *", "minute field '60'"),
        ("* 24 * * *", "hour field '24'"),
        ("* * 0 * *", "day of month field '0'"),
        ("* * 0-0 * *", "day of month field '0-0'"),
        ("* * 32 * *", "day of month field '32'"),
        ("* * * 13 *", "month field '13'"),
        ("* * * 5-0 *", "month field '5-0'"),
        ("* * * * 8", "day of week field '8'"),
        ("60 * * * * *", "second field '60'"),
        ("0 0 0 0 * *", "day of month field '0'"),
        ("*/0 * * * *", "minute field '*/0'"),
        ("1-5/0 * * * *", "minute field '1-5/0'"),
        ("1,,2 * * * *", "minute field '1,,2'"),
        ("-1 * * * *", "minute field '-1'"),
        ("jan-jan * * * *", "minute field 'jan-jan'"),
        ("٣ * * * *", "minute field"),
        ("* * LW * *", "day of month field 'lw'"),
        ("* * * * mon#6", "day of week field 'mon#6'"),
        ("* * * * mon#1,fri", "do not mix"),
        ("* * * * mon#1,0-6", "do not mix"),
        ("H * * * *", "hashed or random"),
        ("R * * * *", "hashed or random"),
        ("0 R(0-5) * * *", "hashed or random"),
        ("0 0 30 2 *", "can never match"),
        ("0 0 31 4,6,9,11 *", "can never match"),
        ("0 0 30-31 2 ?", "can never match"),
    ],
)
def test_a_bad_expression_is_refused_by_name_and_fact(expression, fact):
    with pytest.raises(InvalidSchedule) as refusal:
        cron.validate(expression)
    assert repr(expression) in str(refusal.value)
    assert fact in str(refusal.value)


def test_what_is_no_text_is_refused():
    with pytest.raises(InvalidSchedule, match="not int"):
        cron.validate(5)


def test_an_expression_of_200_characters_is_read_and_one_of_201_is_refused():
    minutes = ",".join(["5"] * 96)
    expression = f"{minutes} 0 * * *"
    longest = expression + " " * (200 - len(expression))
    assert cron.validate(longest) == expression
    with pytest.raises(InvalidSchedule, match="201 characters"):
        cron.validate(longest + " ")


def hostile_texts() -> list[str]:
    rng = random.Random(34)  # noqa: S311 - a seed, no secret
    alphabet = "0123456789*/,-#?lwhrLW mon@" + string.punctuation
    drawn = ["".join(rng.choices(alphabet, k=rng.randint(1, 200))) for _ in range(150)]
    fields = [" ".join("".join(rng.choices("0159*/,-#lw", k=rng.randint(1, 6))) for _ in range(5)) for _ in range(300)]
    long = [char * 100_000 for char in "0*/,-# a"] + [
        "1-" * 50_000,
        "*/" * 50_000,
        "* " * 50_000,
        "0 0 * * mon#" * 9_000,
    ]
    filled = [f"{char * 190} * * * *" for char in "0*/,-#l"] + [
        "0-59," * 37 + "0 * * * *",
        "0 0 29 2 " + "mon#5," * 30 + "tue#5",
    ]
    return drawn + fields + long + filled


def test_any_text_is_answered_within_the_budget():
    texts = hostile_texts()
    refusals = []
    for text in texts:
        started = time.process_time()
        try:
            cron.next_after(cron.validate(text), zone=NEW_YORK, after=at("2026-01-01T00:00"))
        except InvalidSchedule as error:
            refusals.append(str(error))
        assert time.process_time() - started < BUDGET_SECONDS, text[:80]
    assert 0 < len(refusals) < len(texts)
    assert max(len(refusal) for refusal in refusals) < 1_000


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("* * * * *", "2026-01-01T00:00", "2026-01-01T00:01"),
        ("* * * * *", "2026-01-01T00:00:59.999999", "2026-01-01T00:01"),
        ("* * * * *", "2026-12-31T23:59:30", "2027-01-01T00:00"),
        ("30 2 * * *", "2026-01-01T02:29:59.999999", "2026-01-01T02:30"),
        ("30 2 * * *", "2026-01-01T02:30", "2026-01-02T02:30"),
        ("0-10/5 4 * * *", "2026-01-01T04:05", "2026-01-01T04:10"),
        ("0-10/5 4 * * *", "2026-01-01T04:10", "2026-01-02T04:00"),
        ("20/25 * * * *", "2026-01-01T04:20", "2026-01-01T04:45"),
        ("59/15 * * * *", "2026-01-01T04:10", "2026-01-01T04:59"),
        ("5-5 * * * *", "2026-01-01T04:10", "2026-01-01T05:05"),
        ("50-10/15 * * * *", "2026-01-01T04:50", "2026-01-01T05:05"),
        ("0 22-2/2 * * *", "2026-01-01T22:00", "2026-01-02T00:00"),
        ("7,3,11 * * * *", "2026-01-01T04:03", "2026-01-01T04:07"),
        ("*/7 * * * *", "2026-01-01T04:56", "2026-01-01T05:00"),
        ("0 9 * * mon-fri", "2026-01-02T09:00", "2026-01-05T09:00"),
        ("0 9 * * 7", "2026-01-01T00:00", "2026-01-04T09:00"),
        ("0 9 * * fri-mon", "2026-01-05T09:00", "2026-01-09T09:00"),
        ("0 9 * * 6/1", "2026-01-01T00:00", "2026-01-03T09:00"),
        ("0 0 29 2 *", "2026-01-01T00:00", "2028-02-29T00:00"),
        ("0 0 29 2 *", "2096-02-29T00:00", "2104-02-29T00:00"),
        ("0 0 * 2 mon#5", "2072-02-29T00:00", "2112-02-29T00:00"),
        ("0 0 31 * *", "2026-01-31T00:00", "2026-03-31T00:00"),
        ("0 0 30,31 * *", "2026-01-31T00:00", "2026-03-30T00:00"),
        ("0 0 L * *", "2026-02-01T00:00", "2026-02-28T00:00"),
        ("0 0 L * *", "2028-02-01T00:00", "2028-02-29T00:00"),
        ("0 0 1,L * *", "2026-04-01T00:00", "2026-04-30T00:00"),
        ("0 0 28-L 2 *", "2028-02-28T00:00", "2028-02-29T00:00"),
        ("0 0 31-L * *", "2026-01-31T00:00", "2026-03-31T00:00"),
        ("0 9 * * MON#1", "2026-01-05T09:00", "2026-02-02T09:00"),
        ("0 9 * * fri#5", "2026-01-30T09:00", "2026-05-29T09:00"),
        ("0 9 * * L5", "2026-02-01T00:00", "2026-02-27T09:00"),
        ("0 9 15W * *", "2026-02-01T00:00", "2026-02-16T09:00"),
        ("0 9 1W * *", "2026-08-01T00:00", "2026-08-03T09:00"),
        ("0 9 31W 5 *", "2026-05-01T00:00", "2026-05-29T09:00"),
        ("0 0 13 * 5", "2026-01-01T00:00", "2026-01-02T00:00"),
        ("0 0 13 * 5", "2026-01-09T00:00", "2026-01-13T00:00"),
        ("0 0 */3 * 5", "2026-01-01T00:00", "2026-01-02T00:00"),
        ("0 0 1 * MON#1", "2026-03-31T00:00", "2026-04-01T00:00"),
        ("0 0 1 * MON#1", "2026-04-01T00:00", "2026-04-06T00:00"),
        ("0 0 15W * mon", "2026-01-13T00:00", "2026-01-15T00:00"),
        ("0 0 31 2 0", "2026-01-01T00:00", "2026-02-01T00:00"),
        ("*/20 * * * * *", "2026-01-01T00:00:20", "2026-01-01T00:00:40"),
        ("30 5 2 * * *", "2026-01-01T02:05:30", "2026-01-02T02:05:30"),
        ("0 0 0 1 * 7", "2026-01-01T00:00", "2026-01-04T00:00"),
        ("0 0 1 1 *", "2026-01-01T00:00", "2027-01-01T00:00"),
    ],
)
def test_the_next_occurrence_is_exact(expression, after, expected):
    assert cron.next_after(expression, zone="UTC", after=at(after)) == at(expected)


@pytest.mark.parametrize(
    ("expression", "until", "expected"),
    [
        ("30 2 * * *", "2026-01-02T02:30", "2026-01-02T02:30"),
        ("30 2 * * *", "2026-01-02T02:29:59.999999", "2026-01-01T02:30"),
        ("0 0 29 2 *", "2026-01-01T00:00", "2024-02-29T00:00"),
        ("0 0 31 * *", "2026-03-30T23:59", "2026-01-31T00:00"),
        ("0 9 * * MON#1", "2026-01-04T00:00", "2025-12-01T09:00"),
        ("50 59 23 * * *", "2026-01-01T00:00", "2025-12-31T23:59:50"),
    ],
)
def test_the_latest_occurrence_is_at_or_before_the_limit(expression, until, expected):
    assert cron.latest_until(expression, zone="UTC", until=at(until)) == at(expected)


def test_there_is_no_latest_occurrence_before_the_calendar():
    assert cron.latest_until("0 0 1 6 *", zone="UTC", until=datetime(1, 3, 1, tzinfo=UTC)) is None


def test_an_occurrence_after_the_calendar_is_refused():
    with pytest.raises(InvalidSchedule, match="no occurrence after 9999"):
        cron.next_after("0 0 1 6 *", zone="UTC", after=datetime(9999, 7, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("expression", "zone", "after", "until", "expected"),
    [
        pytest.param(
            "30 2 * * *",
            NEW_YORK,
            "2026-03-08T00:00",
            "2026-03-09T03:00",
            ["2026-03-08T03:00", "2026-03-09T02:30"],
            id="fixed, gap",
        ),
        pytest.param(
            "30 1 * * *",
            NEW_YORK,
            "2026-11-01T00:00",
            "2026-11-02T02:00",
            ["2026-11-01T01:30", "2026-11-02T01:30"],
            id="fixed, overlap",
        ),
        pytest.param(
            "15 1-2 * * *",
            NEW_YORK,
            "2026-11-01T00:00",
            "2026-11-01T05:00",
            ["2026-11-01T01:15", "2026-11-01T02:15"],
            id="fixed hours, overlap",
        ),
        pytest.param(
            "0 * * * *",
            NEW_YORK,
            "2026-11-01T00:00",
            "2026-11-01T02:00",
            ["2026-11-01T01:00", "2026-11-01T01:00'", "2026-11-01T02:00"],
            id="hourly, overlap",
        ),
        pytest.param(
            "*/30 * * * *",
            NEW_YORK,
            "2026-11-01T00:30",
            "2026-11-01T02:00",
            ["2026-11-01T01:00", "2026-11-01T01:30", "2026-11-01T01:00'", "2026-11-01T01:30'", "2026-11-01T02:00"],
            id="half-hourly, overlap",
        ),
        pytest.param(
            "*/30 * * * *",
            NEW_YORK,
            "2026-03-08T01:00",
            "2026-03-08T03:30",
            ["2026-03-08T01:30", "2026-03-08T03:00", "2026-03-08T03:30"],
            id="half-hourly, gap",
        ),
        pytest.param(
            "0 */2 * * *",
            NEW_YORK,
            "2026-03-08T00:00",
            "2026-03-08T06:00",
            ["2026-03-08T04:00", "2026-03-08T06:00"],
            id="second hours, gap",
        ),
        pytest.param(
            "45 1 * * *",
            LORD_HOWE,
            "2026-04-05T00:00",
            "2026-04-06T02:00",
            ["2026-04-05T01:45", "2026-04-06T01:45"],
            id="fixed, half-hour overlap",
        ),
        pytest.param(
            "15 2 * * *",
            LORD_HOWE,
            "2026-10-04T00:00",
            "2026-10-05T03:00",
            ["2026-10-04T02:30", "2026-10-05T02:15"],
            id="fixed, half-hour gap",
        ),
        pytest.param(
            "0 0 * * *",
            SANTIAGO,
            "2026-09-05T12:00",
            "2026-09-07T12:00",
            ["2026-09-06T01:00", "2026-09-07T00:00"],
            id="fixed, midnight gap",
        ),
        pytest.param(
            "0,20,40 2-3 * * *",
            NEW_YORK,
            "2026-03-08T00:00",
            "2026-03-08T04:00",
            ["2026-03-08T03:00", "2026-03-08T03:20", "2026-03-08T03:40"],
            id="several in one gap",
        ),
        pytest.param(
            "30 30 2 * * *",
            NEW_YORK,
            "2026-03-08T00:00",
            "2026-03-09T03:00",
            ["2026-03-08T03:00", "2026-03-09T02:30:30"],
            id="fixed with seconds, gap",
        ),
        pytest.param(
            "30 30 1 * * *",
            NEW_YORK,
            "2026-11-01T00:00",
            "2026-11-02T02:00",
            ["2026-11-01T01:30:30", "2026-11-02T01:30:30"],
            id="fixed with seconds, overlap",
        ),
        pytest.param(
            "30 30 * * * *",
            NEW_YORK,
            "2026-11-01T01:00",
            "2026-11-01T02:00",
            ["2026-11-01T01:30:30", "2026-11-01T01:30:30'"],
            id="wildcard with seconds, overlap",
        ),
        pytest.param(
            "0 12 * * *",
            "Pacific/Apia",
            "2011-12-29T00:00",
            "2011-12-31T23:00",
            ["2011-12-29T12:00", "2011-12-31T00:00", "2011-12-31T12:00"],
            id="the day that Apia skipped",
        ),
    ],
)
def test_a_changed_clock_follows_the_rule(expression, zone, after, until, expected):
    instants = [at(text, zone) for text in expected]
    assert runs(expression, zone=zone, after=after, until=until) == instants
    for instant, following in itertools.pairwise(instants):
        just_before = following - timedelta(microseconds=1)
        assert cron.latest_until(expression, zone=zone, until=just_before) == instant


def test_asked_in_the_second_pass_a_fixed_time_of_the_first_is_over():
    second_pass = at("2026-11-01T01:10'", NEW_YORK)
    assert cron.next_after("30 1 * * *", zone=NEW_YORK, after=second_pass) == at("2026-11-02T01:30", NEW_YORK)
    assert cron.latest_until("30 1 * * *", zone=NEW_YORK, until=second_pass) == at("2026-11-01T01:30", NEW_YORK)


@pytest.mark.parametrize("zone", ["Europe/Nope", "", "America", "../etc/passwd", "/etc/passwd", "x" * 5_000, "a\0b"])
def test_an_unknown_zone_is_refused_by_name(zone):
    with pytest.raises(InvalidSchedule) as refusal:
        cron.next_after("* * * * *", zone=zone, after=at("2026-01-01T00:00"))
    assert repr(zone[:200]) in str(refusal.value)


def test_a_time_without_zone_is_refused():
    with pytest.raises(InvalidSchedule, match="no time zone"):
        cron.next_after("* * * * *", zone="UTC", after=datetime(2026, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize(
    ("expression", "restricts_both"),
    [
        ("0 0 1 * 1", True),
        ("0 0 */3 * 1", True),
        ("0 0 L * mon#1", True),
        ("0 0 1 * *", False),
        ("0 0 * * 1", False),
        ("0 0 ? * 1", False),
        ("@weekly", False),
    ],
)
def test_two_restricted_day_fields_are_noticed(expression, restricts_both):
    assert cron.restricts_both_day_fields(expression) is restricts_both


ZONES = st.sampled_from([NEW_YORK, LORD_HOWE, SANTIAGO, "Pacific/Chatham", "Africa/Casablanca", "Europe/Dublin", "UTC"])
MOMENTS = st.datetimes(min_value=datetime(2020, 1, 1), max_value=datetime(2035, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
EXPRESSIONS = st.builds(
    "{} {} {} {} {}".format,
    st.sampled_from(["*", "*/7", "0", "30", "59", "1-20/6", "5,55"]),
    st.sampled_from(["*", "*/3", "0", "1", "2", "23", "0-4", "22-3"]),
    st.sampled_from(["*", "*/5", "1", "15", "31", "L", "10W"]),
    st.sampled_from(["*", "1", "3,10", "4-9", "jan-dec/3"]),
    st.sampled_from(["*", "0", "7", "mon-fri", "sun#1", "L0", "6,0"]),
) | st.sampled_from(["*/20 * * * * *", "0 0 29 2 *", "15 30 1,2 * * *", "@weekly"])
quick = settings(max_examples=400, deadline=None, derandomize=True, database=None)


@quick
@given(EXPRESSIONS, ZONES, MOMENTS)
def test_the_next_occurrence_is_later_and_the_same_when_asked_again(expression, zone, after):
    found = cron.next_after(expression, zone=zone, after=after)
    assert found > after
    assert found.tzinfo is UTC
    assert cron.next_after(expression, zone=zone, after=found - timedelta(microseconds=1)) == found
    assert cron.next_after(expression, zone=zone, after=after) == found


@quick
@given(EXPRESSIONS, ZONES, MOMENTS, st.timedeltas(timedelta(0), timedelta(days=3)))
def test_a_later_question_never_has_an_earlier_answer(expression, zone, after, shift):
    sooner = cron.next_after(expression, zone=zone, after=after)
    later = cron.next_after(expression, zone=zone, after=after + shift)
    assert sooner == later if after + shift < sooner else sooner < later


@quick
@given(EXPRESSIONS, ZONES, MOMENTS)
def test_the_latest_occurrence_has_no_other_between_it_and_the_next(expression, zone, moment):
    latest = cron.latest_until(expression, zone=zone, until=moment)
    following = cron.next_after(expression, zone=zone, after=moment)
    assert latest <= moment < following
    assert cron.next_after(expression, zone=zone, after=latest) == following
    assert cron.latest_until(expression, zone=zone, until=following) == following
