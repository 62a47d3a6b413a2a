"""A loop is late when three of its turns, and of the heartbeats that tell of them, were missed."""

from datetime import UTC, datetime, timedelta

import pytest

from chainsched.domain.health import loop_problem, max_silence, worker_problem

NOW = datetime(2026, 3, 2, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    ("interval", "heartbeat_interval", "seconds"), [(5, 5, 30), (0.5, 0.5, 3), (600, 5, 1815), (1, 60, 183)]
)
def test_patience_counts_turns_and_heartbeats(interval, heartbeat_interval, seconds):
    assert max_silence(interval=interval, heartbeat_interval=heartbeat_interval) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("ago", "problem"),
    [
        (None, "No process runs the reaper; start run_scheduler."),
        (0, None),
        (30, None),
        (30.001, "The reaper has not turned for 30 s."),
        (95, "The reaper has not turned for 95 s."),
        (-1, None),
    ],
)
def test_a_loop_is_in_time_to_the_last_moment(ago, problem):
    turned_at = None if ago is None else NOW - timedelta(seconds=ago)
    assert loop_problem("reaper", turned_at=turned_at, now=NOW, max_silence=timedelta(seconds=30)) == problem


@pytest.mark.parametrize(
    ("ago", "problem"),
    [(18, None), (95, "The worker of jobs-1:812 has not completed a turn for 95 s; see its log for the reason.")],
)
def test_a_worker_is_in_time_to_the_last_moment(ago, problem):
    turned_at = NOW - timedelta(seconds=ago)
    found = worker_problem("jobs-1:812", turned_at=turned_at, now=NOW, max_silence=timedelta(seconds=18))
    assert found == problem
