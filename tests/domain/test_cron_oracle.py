"""Cron occurrences against cronsim, an independent implementation of Debian's rules, around every change of the clock.

Left to explicit cases elsewhere, because cronsim means something else by them: a star-step beside a restricted day
field (it asks for both), and fixed times with seconds (it has no rule for the changed clock there).
"""

from __future__ import annotations

import itertools
import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from chainsched.domain import cron

# Two years of each zone, with rules in force that change its clock where it ever had any lately.
FIRST_YEARS = {
    "America/New_York": 2025,
    "Europe/London": 2025,
    "Europe/Berlin": 2025,
    "Australia/Lord_Howe": 2025,
    "America/Santiago": 2025,
    "America/Sao_Paulo": 2018,
    "Asia/Kolkata": 2025,
    "Asia/Kathmandu": 2025,
    "Pacific/Apia": 2020,
    "Pacific/Chatham": 2025,
    "Africa/Casablanca": 2025,
    "Africa/Cairo": 2025,
    "UTC": 2025,
}
AROUND = timedelta(hours=7)
RANDOM_EXPRESSIONS = 60


def transitions(zone: str) -> list[datetime]:
    region, moment = ZoneInfo(zone), datetime(FIRST_YEARS[zone], 1, 1, tzinfo=UTC)
    found = []
    while moment.year < FIRST_YEARS[zone] + 2:
        following = moment + timedelta(minutes=30)
        if moment.astimezone(region).utcoffset() != following.astimezone(region).utcoffset():
            found.append(following)
        moment = following
    return found


def random_field(rng: random.Random, *, low: int, high: int, likely: tuple[int, int]) -> str:
    def number() -> int:
        return rng.randint(*(likely if rng.random() < 0.7 else (low, high)))

    first, last = sorted((number(), number()))
    return rng.choice(
        [
            "*",
            f"*/{rng.randint(1, high)}",
            f"{number()}",
            f"{first}-{last}",
            f"{first}-{last + 1}/{rng.randint(1, 20)}" if last < high else "*",
            f"{first}/{rng.randint(1, 20)}",
            ",".join(str(number()) for _ in range(rng.randint(2, 4))),
        ]
    )


def random_days(rng: random.Random) -> tuple[str, str]:
    day = rng.choice(["L", f"{rng.randint(1, 31)}", "1-15", "10/3", "1,7,25,26,31"])
    weekday = rng.choice(["0", "7", "sun", "5-7", "mon-fri", "0,3", "0#1", "SUN#4", f"{rng.randint(0, 6)}"])
    shapes = [("*", "*"), (day, "*"), ("*", weekday), (day, weekday), (f"*/{rng.randint(1, 9)}", "*"), ("*", "*/2")]
    return rng.choices(shapes, weights=[8, 1, 2, 2, 1, 1])[0]


def random_expression(rng: random.Random) -> str:
    minute = random_field(rng, low=0, high=59, likely=(0, 59))
    hour = random_field(rng, low=0, high=23, likely=(0, 4))
    day, weekday = random_days(rng)
    month = rng.choices(["*", "3,4,9-11", "*/2", "mar-nov"], weights=[8, 1, 1, 1])[0]
    is_elapsed = minute.startswith("*") or hour.startswith("*")
    seconds = f"{rng.choice(['*/20', '15', '0,59'])} " if is_elapsed and rng.random() < 0.15 else ""
    return f"{seconds}{minute} {hour} {day} {month} {weekday}"


def by_oracle(expression: str, *, zone: str, after: datetime, until: datetime) -> list[datetime]:
    runs = itertools.takewhile(lambda run: run <= until, CronSim(expression, after.astimezone(ZoneInfo(zone))))
    # It names a midnight that does not exist, if a restricted day begins with the gap.
    return [run.astimezone(UTC) for run in runs if run == run.astimezone(UTC).astimezone(ZoneInfo(zone))]


def by_us(expression: str, *, zone: str, after: datetime, until: datetime) -> list[datetime]:
    runs = []
    run = cron.next_after(expression, zone=zone, after=after)
    while run <= until:
        runs.append(run)
        run = cron.next_after(expression, zone=zone, after=run)
    return runs


def backwards(expression: str, *, zone: str, after: datetime, until: datetime) -> list[datetime]:
    runs = []
    run = cron.latest_until(expression, zone=zone, until=until)
    while run is not None and run > after:
        runs.append(run)
        run = cron.latest_until(expression, zone=zone, until=run - timedelta(microseconds=1))
    return runs[::-1]


CHANGES = [(zone, change) for zone in FIRST_YEARS for change in transitions(zone)]


def test_the_years_hold_changes_of_the_clock_in_both_directions():
    changing = {zone for zone, _ in CHANGES}
    assert changing == set(FIRST_YEARS) - {"UTC", "Asia/Kolkata", "Asia/Kathmandu"}
    assert len(CHANGES) >= 35


@pytest.mark.parametrize(("zone", "change"), CHANGES, ids=lambda value: str(value).replace(" ", "T"))
def test_every_occurrence_around_a_change_of_the_clock_is_the_oracles(zone, change):
    rng = random.Random(f"{zone} {change}")
    span = {"zone": zone, "after": change - AROUND, "until": change + AROUND}
    for _ in range(RANDOM_EXPRESSIONS):
        expression = random_expression(rng)
        expected = by_oracle(expression, **span)
        assert by_us(expression, **span) == expected, expression
        assert backwards(expression, **span) == expected, expression


@pytest.mark.parametrize("expression", ["30 2 * * *", "0 0 * * *", "15,45 1-3 * * 0", "0 */6 * * *", "5 4 L * *"])
@pytest.mark.parametrize("zone", FIRST_YEARS)
def test_two_whole_years_are_the_oracles(zone, expression):
    year = FIRST_YEARS[zone]
    span = {"zone": zone, "after": datetime(year, 1, 1, tzinfo=UTC), "until": datetime(year + 2, 1, 1, tzinfo=UTC)}
    assert by_us(expression, **span) == by_oracle(expression, **span)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "Asia/Kathmandu"])
def test_random_expressions_agree_where_the_clock_never_changes(zone):
    rng = random.Random(zone)
    for _ in range(400):
        expression = random_expression(rng)
        after = datetime(2025, 1, 1, tzinfo=UTC) + timedelta(minutes=rng.randrange(2 * 525_600))
        expected = by_oracle(expression, zone=zone, after=after, until=after + timedelta(days=2))
        assert by_us(expression, zone=zone, after=after, until=after + timedelta(days=2))[:50] == expected[:50], (
            expression
        )
