"""Cron occurrences against cronsim, an independent implementation of Debian's rules, around every change of the clock.

Left to explicit cases elsewhere, because cronsim means something else by them: a star-step beside a restricted day
field (it asks for both), and fixed times with seconds (it has no rule for the changed clock there).

Where the clock changes at midnight or not by whole hours, cronsim's steps stumble over wildcards: it names midnights
that do not exist, misses hours, and around Chatham never returns. There, and everywhere else too, a wildcard is
checked against a walk over every minute with cronsim's reading of the fields.
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
STUMBLING = {"Australia/Lord_Howe", "Pacific/Chatham", "America/Santiago", "America/Sao_Paulo", "Africa/Cairo"}
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
    expression = f"{minute} {hour} {day} {month} {weekday}"
    seconds = rng.choice(["*/20", "15", "0,59"])
    return f"{seconds} {expression}" if is_elapsed(expression) and rng.random() < 0.15 else expression


def by_cronsim(expression: str, *, zone: str, after: datetime, until: datetime) -> list[datetime]:
    runs = (run.astimezone(UTC) for run in CronSim(expression, after.astimezone(ZoneInfo(zone))))
    return list(itertools.takewhile(lambda run: run <= until, runs))


def by_walking(expression: str, *, zone: str, after: datetime, until: datetime) -> list[datetime]:
    sim, region, runs, minute = CronSim(expression, after), ZoneInfo(zone), [], after
    while minute <= until:
        wall = minute.astimezone(region)
        if wall.minute in sim.minutes and wall.hour in sim.hours and wall.month in sim.months and sim.match_day(wall):
            runs += [minute + timedelta(seconds=second) for second in sorted(sim.seconds)]
        minute += timedelta(minutes=1)
    return [run for run in runs if after < run <= until]


def is_elapsed(expression: str) -> bool:
    minute, hour, *_ = expression.split()[-5:]
    return minute.startswith("*") or hour.startswith("*")


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
    rng = random.Random(f"{zone} {change}")  # noqa: S311 - a seed, no secret
    span = {"zone": zone, "after": change - AROUND, "until": change + AROUND}
    for _ in range(RANDOM_EXPRESSIONS):
        expression = random_expression(rng)
        runs = by_us(expression, **span)
        assert backwards(expression, **span) == runs, expression
        if is_elapsed(expression):
            assert runs == by_walking(expression, **span), expression
        if not is_elapsed(expression) or zone not in STUMBLING:
            assert runs == by_cronsim(expression, **span), expression


@pytest.mark.parametrize("expression", ["30 2 * * *", "0 0 * * *", "15,45 1-3 * * 0", "0 */6 * * *", "5 4 L * *"])
@pytest.mark.parametrize("zone", FIRST_YEARS)
def test_two_whole_years_of_a_fixed_time_and_one_of_a_wildcard_are_the_oracles(zone, expression):
    year = FIRST_YEARS[zone]
    years = 1 if is_elapsed(expression) else 2
    span = {"zone": zone, "after": datetime(year, 1, 1, tzinfo=UTC), "until": datetime(year + years, 1, 1, tzinfo=UTC)}
    oracle = by_walking if is_elapsed(expression) and zone in STUMBLING else by_cronsim
    assert by_us(expression, **span) == oracle(expression, **span)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "Asia/Kathmandu"])
def test_random_expressions_agree_where_the_clock_never_changes(zone):
    rng = random.Random(zone)  # noqa: S311 - a seed, no secret
    for _ in range(200):
        expression = random_expression(rng)
        after = datetime(2025, 1, 1, tzinfo=UTC) + timedelta(minutes=rng.randrange(2 * 525_600))
        span = {"zone": zone, "after": after, "until": after + timedelta(hours=40)}
        assert by_us(expression, **span) == by_cronsim(expression, **span), expression
