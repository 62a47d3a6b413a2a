"""Whether and when a failed attempt is made again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta

JITTER = 0.1
# Beyond this the ceiling has long been reached.
LAST_STEP = 60


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a job may fail, and how long it waits between its attempts."""

    max_retries: int
    delay: timedelta
    multiplier: float
    max_delay: timedelta


@dataclass(frozen=True, slots=True)
class TryAgain:
    """The attempt is made again after a wait."""

    delay: timedelta


@dataclass(frozen=True, slots=True)
class StopRetrying:
    """The job is given up and goes to the dead letter."""

    reason: str


def after_failure(
    policy: RetryPolicy, *, failures: int, is_permanent: bool, was_lost: bool, spread: float
) -> TryAgain | StopRetrying:
    """Decide whether a failed attempt is made again, and after which wait.

    ``failures`` counts this one too. ``is_permanent`` means that another attempt would fail too. An attempt that was
    lost with its process is made again at once, the first time. ``spread`` is a number from -1 to 1 that the caller
    draws, so that jobs that failed together do not retry together.
    """
    if is_permanent:
        return StopRetrying("Trying again cannot help")
    limit = max(policy.max_retries, 1)
    if failures >= limit:
        return StopRetrying(f"Max retries exceeded ({failures} failures >= {limit} max retries)")
    if was_lost and failures == 1:
        return TryAgain(timedelta(0))
    return TryAgain(backoff(policy, failures=failures, spread=spread))


def backoff(policy: RetryPolicy, *, failures: int, spread: float) -> timedelta:
    """The wait before the attempt that follows the given number of failures."""
    ceiling = policy.max_delay.total_seconds()
    return timedelta(seconds=min(_grown(policy, failures=failures), ceiling) * (1 + JITTER * spread))


def _grown(policy: RetryPolicy, *, failures: int) -> float:
    """The wait without its ceiling; infinite if it cannot be computed, so that a failure can always be recorded.

    No declaration has such a multiplier, but SQL can store one: to PostgreSQL, NaN is greater than every number.
    """
    try:
        grown = policy.delay.total_seconds() * policy.multiplier ** min(failures - 1, LAST_STEP)
    except OverflowError:
        return math.inf
    # NaN compares as false.
    return grown if grown >= 0 else math.inf
