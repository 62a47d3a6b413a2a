"""Which step may follow which, as tables."""

from __future__ import annotations

import pytest

from chainsched.domain.states import (
    ACTIVE_STATES,
    DEAD_LETTER_TRANSITIONS,
    EXECUTION_TRANSITIONS,
    QUEUE_TRANSITIONS,
    SOURCES_PAST_DISABLED,
    TERMINAL_STATES,
    DeadLetterStatus,
    ExecutionState,
    QueueStatus,
    ScheduleType,
    Source,
    may_become,
)

LEGAL_STEPS = {
    ("pending", "in_progress"),
    ("pending", "cancelled"),
    ("in_progress", "completed"),
    ("in_progress", "failed"),
    ("in_progress", "cancelled"),
}


@pytest.mark.parametrize("target", ExecutionState)
@pytest.mark.parametrize("current", ExecutionState)
def test_an_execution_takes_exactly_the_legal_steps(current, target):
    assert may_become(current, target=target) is ((current.value, target.value) in LEGAL_STEPS)


@pytest.mark.parametrize(
    ("state", "is_terminal"),
    [("pending", False), ("in_progress", False), ("completed", True), ("failed", True), ("cancelled", True)],
)
def test_only_an_ended_execution_is_terminal(state, is_terminal):
    assert ExecutionState(state).is_terminal is is_terminal


def test_every_execution_is_either_active_or_terminal():
    assert sorted([*ACTIVE_STATES, *TERMINAL_STATES]) == sorted(ExecutionState)
    assert not set(ACTIVE_STATES) & set(TERMINAL_STATES)


def test_a_queue_row_comes_back_from_dispatch_alone():
    assert {"queued": {"dispatched", "cancelled"}, "dispatched": {"queued"}, "cancelled": set()} == QUEUE_TRANSITIONS


def test_a_dead_letter_is_decided_about_once_and_for_all():
    decisions = {"retried", "acknowledged"}
    decided: dict[str, set[str]] = {decision: set() for decision in decisions}
    assert {"awaiting_intervention": decisions} | decided == DEAD_LETTER_TRANSITIONS


def test_every_state_says_what_may_follow_it():
    assert set(EXECUTION_TRANSITIONS) == set(ExecutionState)
    assert set(QUEUE_TRANSITIONS) == set(QueueStatus)
    assert set(DEAD_LETTER_TRANSITIONS) == set(DeadLetterStatus)


@pytest.mark.parametrize(
    ("schedule_type", "is_timed", "has_parent"),
    [
        ("on_demand", False, False),
        ("cron", True, False),
        ("interval", True, False),
        ("once", True, False),
        ("dependent", False, True),
        ("dormant_dependent", False, True),
    ],
)
def test_a_schedule_type_runs_by_time_or_by_its_parent(schedule_type, is_timed, has_parent):
    kind = ScheduleType(schedule_type)
    assert (kind.is_timed, kind.has_parent) == (is_timed, has_parent)


def test_only_what_a_person_asked_for_runs_although_disabled():
    assert set(SOURCES_PAST_DISABLED) == {Source.TRIGGER, Source.DEAD_LETTER}
