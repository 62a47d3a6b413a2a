"""Number types for the options of the commands."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from datetime import timedelta

from chainsched.domain.routing import check_queue

SECONDS_PER_DAY = 24 * 3600
MAX_SECONDS = 10 * 365 * 24 * 3600
# The largest number that the columns of both databases hold.
MAX_NUMBER = 2**31 - 1


def positive_seconds(text: str) -> float:
    """A number of seconds above zero."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= MAX_SECONDS:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds above 0 and up to {MAX_SECONDS:,}")
    return seconds


def positive_days(text: str) -> timedelta:
    """A number of days above zero, fractions included."""
    try:
        days = float(text)
    except ValueError:
        days = math.nan
    if not 0 < days * SECONDS_PER_DAY <= MAX_SECONDS:
        most = MAX_SECONDS // SECONDS_PER_DAY
        raise ArgumentTypeError(f"{text!r} is not a number of days above 0 and up to {most:,}")
    return timedelta(days=days)


def whole_number(text: str) -> int:
    """A whole number, zero included."""
    if not text.isascii() or not text.isdigit():
        raise ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    if len(text) > len(str(MAX_NUMBER)) or int(text) > MAX_NUMBER:
        raise ArgumentTypeError(f"{text[:20]!r} is above {MAX_NUMBER}")
    return int(text)


def queue_names(text: str) -> list[str]:
    """Names of queues, with commas between them."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        try:
            check_queue(name)
        except ValueError as error:
            raise ArgumentTypeError(f"the name of a queue {error}; {name!r:.100} is none") from error
    return sorted(set(names))


def positive_number(text: str) -> int:
    """A whole number above zero."""
    number = whole_number(text)
    if number < 1:
        raise ArgumentTypeError(f"{text!r} is below 1")
    return number
