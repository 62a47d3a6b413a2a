"""A loop is late when three of its turns, and of the heartbeats that tell of them, were missed."""

from datetime import UTC, datetime, timedelta

import pytest

from chainsched.domain.health import loop_problem, max_silence, signals_note, worker_problem

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


WAITS = "812 signals of jobs-1:812 wait for receivers of the project, the first for"
QUICK = "Make the receivers quick."


@pytest.mark.parametrize(
    ("signals", "since_heartbeat", "note"),
    [
        ({}, 100, None),
        ({"waiting": 812, "oldest_seconds": 50, "dropped": 0, "is_dropping": False}, 9, None),
        ({"waiting": 812, "oldest_seconds": 50, "dropped": 0, "is_dropping": False}, 10, f"{WAITS} 60 s. {QUICK}"),
        (
            {"waiting": 812, "oldest_seconds": 5, "dropped": 40, "is_dropping": True},
            0,
            f"{WAITS} 5 s. 40 were dropped. {QUICK}",
        ),
        ({"waiting": 0, "oldest_seconds": 0, "dropped": 40, "is_dropping": False}, 100, None),
        (
            {"waiting": 812, "oldest_seconds": 70, "dropped": 40, "is_dropping": False},
            0,
            f"{WAITS} 70 s. 40 were dropped. {QUICK}",
        ),
    ],
    ids=["nothing", "in time", "late", "dropping", "dropped long ago", "late again"],
)
def test_receivers_are_noted_while_they_are_late_or_signals_are_dropped(signals, since_heartbeat, note):
    assert signals_note("jobs-1:812", signals, since_heartbeat=timedelta(seconds=since_heartbeat)) == note
