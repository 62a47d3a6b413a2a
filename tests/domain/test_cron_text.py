from __future__ import annotations

import random

import pytest

from chainsched.domain.cron_fields import Fields, normalise, parse
from chainsched.domain.cron_text import describe


@pytest.mark.parametrize(
    ("expression", "english"),
    [
        ("* * * * *", "every minute"),
        ("*/15 * * * *", "every 15 minutes"),
        ("0,30 * * * *", "every 30 minutes"),
        ("*/7 * * * *", "at minutes 0, 7, 14, 21, 28, 35, 42, 49 and 56 of every hour"),
        ("5 * * * *", "at minute 5 of every hour"),
        ("1-5,20 * * * *", "at minutes 1 to 5 and 20 of every hour"),
        ("59/15 * * * *", "at minute 59 of every hour"),
        ("30 2 * * *", "every day at 02:30"),
        ("0 9,17 * * *", "every day at 09:00 and 17:00"),
        ("0 */2 * * *", "every 2 hours at minute 0"),
        ("0 9-17 * * *", "at minute 0 of hours 9 to 17"),
        ("* 9 * * *", "every minute of hour 9"),
        ("*/10 9-17 * * 1-5", "every 10 minutes of hours 9 to 17 on Monday to Friday"),
        ("0 9 * * 1-5", "on Monday to Friday at 09:00"),
        ("0 9 * * 6,7", "on Saturday and Sunday at 09:00"),
        ("0 9 * * fri-sun", "on Friday to Sunday at 09:00"),
        ("0 0 1 * *", "on day 1 of the month at 00:00"),
        ("0 0 1,15,L * *", "on days 1 and 15 and the last day of the month at 00:00"),
        ("0 0 15W * *", "on the weekday nearest to day 15 of the month at 00:00"),
        ("0 9 * * mon#1,L5", "on the first Monday and the last Friday of the month at 09:00"),
        ("0 0 13 * 5", "on day 13 of the month or on Friday at 00:00"),
        ("0 0 29 2 *", "on day 29 of the month at 00:00 in February"),
        ("0 0 * jan,mar-may *", "every day at 00:00 in January and March to May"),
        ("*/5 * * 12 *", "every 5 minutes in December"),
        ("* * * * * *", "every second"),
        ("*/10 * * * * *", "every 10 seconds"),
        ("30 * * * * *", "at second 30 of every minute"),
        ("30 * 9 * * *", "at second 30 of every minute of hour 9"),
        ("* 0 * * * *", "every second of minute 0 of every hour"),
        ("5,10 */30 * * * *", "at seconds 5 and 10 of minutes 0 and 30 of every hour"),
        ("30 0 12 * * *", "every day at 12:00:30"),
        ("@weekly", "on Sunday at 00:00"),
    ],
)
def test_an_expression_is_told_in_english(expression, english):
    assert describe(expression) == english


def meaning(fields: Fields) -> tuple[object, ...]:
    return (
        fields.seconds,
        fields.minutes,
        fields.hours,
        (fields.days, fields.has_last_day, fields.nearest_weekdays) if fields.restricts_day else None,
        fields.months,
        (fields.weekdays, fields.nth_weekdays) if fields.restricts_weekday else None,
    )


def test_expressions_told_alike_mean_the_same():
    rng = random.Random(7)  # noqa: S311 - a seed, no secret
    choices = (
        ["0", "*", "0,30", "*/15", "59", "0-3"],
        ["*", "*/2", "0,12", "9", "9-17", "0-23/5"],
        ["*", "1", "L", "1,L", "1W", "1-31", "*/2"],
        ["*", "1", "1-3", "*/4", "2,4"],
        ["*", "0", "0-6", "mon#1", "L1", "1,2,3", "1,2"],
    )
    told: dict[str, tuple[object, ...]] = {}
    for _ in range(4_000):
        parts = [rng.choice(["0", "*", "30", "*/20"]), *(rng.choice(field) for field in choices)]
        expression = " ".join(parts[rng.choice([0, 1]) :])
        fields = parse(normalise(expression))
        assert told.setdefault(describe(expression), meaning(fields)) == meaning(fields), expression
    assert len(told) > 1_000
