"""Whether and when a failed attempt is made again."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainsched.domain.retry import RetryPolicy, StopRetrying, TryAgain, after_failure, backoff

MINUTE = timedelta(minutes=1)
DEFAULT = RetryPolicy(max_retries=3, delay=5 * MINUTE, multiplier=2.0, max_delay=60 * MINUTE)


def policy(max_retries: int) -> RetryPolicy:
    return RetryPolicy(max_retries, delay=5 * MINUTE, multiplier=2.0, max_delay=60 * MINUTE)


@pytest.mark.parametrize(
    ("max_retries", "failures", "is_given_up"),
    [
        (3, 1, False),
        (3, 2, False),
        (3, 3, True),
        (3, 4, True),
        (1, 1, True),
        (0, 1, True),
        (10, 9, False),
        (10, 10, True),
    ],
)
def test_a_job_is_given_up_when_its_failures_reach_max_retries(max_retries, failures, is_given_up):
    answer = after_failure(policy(max_retries), failures=failures, is_permanent=False, was_lost=False, spread=0)
    assert isinstance(answer, StopRetrying if is_given_up else TryAgain)


def test_nothing_is_given_up_before_one_failure():
    answer = after_failure(policy(0), failures=0, is_permanent=False, was_lost=False, spread=0)
    assert isinstance(answer, TryAgain)


def test_giving_up_says_how_many_failures_and_what_the_limit_is():
    answer = after_failure(DEFAULT, failures=3, is_permanent=False, was_lost=False, spread=0)
    assert answer == StopRetrying("Max retries exceeded (3 failures >= 3 max retries)")


@pytest.mark.parametrize("was_lost", [False, True])
def test_what_time_cannot_mend_is_given_up_at_once(was_lost):
    answer = after_failure(DEFAULT, failures=1, is_permanent=True, was_lost=was_lost, spread=0)
    assert answer == StopRetrying("Trying again cannot help")


@pytest.mark.parametrize(
    ("was_lost", "failures", "delay"),
    [(True, 1, timedelta(0)), (True, 2, 10 * MINUTE), (False, 1, 5 * MINUTE), (False, 2, 10 * MINUTE)],
)
def test_an_attempt_lost_with_its_process_is_made_again_at_once_the_first_time(was_lost, failures, delay):
    answer = after_failure(DEFAULT, failures=failures, is_permanent=False, was_lost=was_lost, spread=0)
    assert answer == TryAgain(delay)


def test_a_lost_attempt_counts_towards_the_limit():
    answer = after_failure(policy(1), failures=1, is_permanent=False, was_lost=True, spread=0)
    assert isinstance(answer, StopRetrying)


@pytest.mark.parametrize(
    ("failures", "spread", "minutes"),
    [
        (1, 0, 5),
        (2, 0, 10),
        (3, 0, 20),
        (4, 0, 40),
        (5, 0, 60),
        (6, 0, 60),
        (10_000, 0, 60),
        (1, 1, 5.5),
        (1, -1, 4.5),
        (9, 1, 66),
        (9, -1, 54),
    ],
)
def test_the_wait_doubles_up_to_an_hour_and_is_spread_by_a_tenth(failures, spread, minutes):
    assert backoff(DEFAULT, failures=failures, spread=spread) == minutes * MINUTE


def test_a_multiplier_of_one_keeps_the_wait():
    steady = RetryPolicy(max_retries=9, delay=7 * MINUTE, multiplier=1.0, max_delay=60 * MINUTE)
    assert [backoff(steady, failures=failures, spread=0) for failures in (1, 5)] == [7 * MINUTE, 7 * MINUTE]


@pytest.mark.parametrize("multiplier", [1e300, math.inf, math.nan, -math.inf, -2.0])
def test_a_wait_that_no_number_can_tell_is_the_longest(multiplier):
    absurd = RetryPolicy(max_retries=99, delay=5 * MINUTE, multiplier=multiplier, max_delay=60 * MINUTE)
    assert {backoff(absurd, failures=failures, spread=0) for failures in (2, 80)} == {60 * MINUTE}


@given(
    failures=st.integers(1, 10**6),
    spread=st.floats(-1, 1),
    delay=st.integers(0, 10**6),
    multiplier=st.floats(),
    ceiling=st.integers(0, 10**6),
)
def test_no_wait_is_negative_or_above_its_ceiling_and_none_overflows(failures, spread, delay, multiplier, ceiling):
    bounded = RetryPolicy(
        3, delay=timedelta(seconds=delay), multiplier=multiplier, max_delay=timedelta(seconds=ceiling)
    )
    wait = backoff(bounded, failures=failures, spread=spread)
    assert timedelta(0) <= wait <= timedelta(seconds=ceiling) * 1.1 + timedelta(microseconds=1)
