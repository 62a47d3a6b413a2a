"""Whether a manifest is queued now, why not, and when it is looked at next: one table each."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainsched.domain import exclusions
from chainsched.domain.due import IN_WORDS, Decision, Facts, OpenItem, Reason, alarm, decide
from chainsched.domain.exclusions import Exclude
from chainsched.domain.obstacles import find_obstacle
from chainsched.domain.states import MisfirePolicy, ScheduleType, Source
from chainsched.exceptions import InvalidSchedule

NOW = datetime(2026, 3, 2, 13, 2, tzinfo=UTC)  # a Monday
SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def at(hour: int, minute: int = 0, second: int = 0, *, day: int = 2) -> datetime:
    return datetime(2026, 3, day, hour, minute, second, tzinfo=UTC)


def next_alarm(known: Facts, *, now: datetime, is_fresh: bool = False) -> datetime | None:
    return alarm(known, now=now, is_fresh=is_fresh).next_run_at


def facts(schedule_type: str = "interval", **stated: Any) -> Facts:
    """A manifest that every five minutes, or else as stated, may run."""
    shape: dict[str, dict[str, Any]] = {
        "interval": {"interval_seconds": 300},
        "cron": {"cron_expression": "*/5 * * * *"},
        "once": {"once_at": NOW},
        "dependent": {"parent_id": 7, "is_parent_enabled": True},
        "dormant_dependent": {"parent_id": 7, "is_parent_enabled": True},
        "on_demand": {},
        "broken": {"cron_expression": "61 * * * *"},
    }
    defaults: dict[str, Any] = {
        "manifest_id": 1,
        "external_id": "sync",
        "schedule_type": ScheduleType("cron" if schedule_type == "broken" else schedule_type),
        "cron_expression": "",
        "zone": "UTC",
        "interval_seconds": None,
        "once_at": None,
        "jitter_seconds": 0,
        "exclusions": [],
        "misfire_policy": MisfirePolicy.RUN_ONCE,
        "misfire_threshold": 60 * SECOND,
        "is_enabled": True,
        "is_group_enabled": True,
        "is_retired": False,
        "is_done": False,
        "parent_id": None,
        "is_parent_enabled": False,
        "next_run_at": None,
        "trigger_at": None,
        "due_execution": 0,
        "covered_execution": 0,
        "last_finished_run": None,
    }
    if "exclusions" in stated:
        stated["exclusions"] = exclusions.to_json(stated["exclusions"])
    return Facts(**{**defaults, **shape[schedule_type], **stated})


CLOSED = [Exclude.window("13:00", "14:00")]
SKIP = {"misfire_policy": MisfirePolicy.SKIP}

YES = [
    pytest.param(facts(next_run_at=NOW), "due", "schedule", NOW, id="an interval at its time"),
    pytest.param(facts("cron", next_run_at=at(13)), "due", "schedule", at(13), id="a cron found late"),
    pytest.param(facts("once", next_run_at=NOW), "due", "schedule", NOW, id="a once run at its time"),
    pytest.param(
        facts("once", next_run_at=NOW - 90 * DAY, **SKIP),
        "due",
        "schedule",
        NOW - 90 * DAY,
        id="a once run never skips",
    ),
    pytest.param(
        facts("dependent", due_execution=9, covered_execution=8), "parent_ran", "dependency", NOW, id="its parent ran"
    ),
    pytest.param(
        facts("dependent", is_join=True, parent_id=None, due_execution=9),
        "parent_ran",
        "dependency",
        NOW,
        id="a join of several parents that was decided",
    ),
    pytest.param(
        facts("dependent", is_join=True, is_parent_enabled=False, due_execution=9),
        "parent_ran",
        "dependency",
        NOW,
        id="a fan-in that was decided runs although its parent was disabled since",
    ),
    pytest.param(
        facts("dependent", due_execution=9, trigger_at=NOW),
        "triggered",
        "trigger",
        NOW,
        id="a trigger joins what is due",
    ),
    pytest.param(
        facts("dependent", due_execution=9, trigger_at=NOW, has_trigger_input=True),
        "parent_ran",
        "dependency",
        NOW,
        id="what is due comes before a trigger with an input of its own",
    ),
    pytest.param(
        facts("dependent", trigger_at=NOW, has_trigger_input=True),
        "triggered",
        "trigger",
        NOW,
        id="a trigger with an input of its own, and nothing due",
    ),
    pytest.param(
        facts("dependent", due_execution=9, is_enabled=False, trigger_at=NOW, has_trigger_input=True),
        "triggered",
        "trigger",
        NOW,
        id="a trigger with an input of its own, and an obstacle to what is due",
    ),
    pytest.param(facts("on_demand", trigger_at=NOW), "triggered", "trigger", NOW, id="a trigger"),
    pytest.param(
        facts(next_run_at=NOW - HOUR, trigger_at=NOW - MINUTE), "triggered", "trigger", NOW - MINUTE, id="trigger first"
    ),
    pytest.param(
        facts(is_enabled=False, trigger_at=NOW), "triggered", "trigger", NOW, id="a trigger although disabled"
    ),
    pytest.param(
        facts("dormant_dependent", trigger_at=NOW), "triggered", "trigger", NOW, id="a trigger of a dormant one"
    ),
    pytest.param(
        facts("dependent", parent_id=None, trigger_at=NOW), "triggered", "trigger", NOW, id="a trigger of an orphan"
    ),
    pytest.param(
        facts("once", is_done=True, trigger_at=NOW), "triggered", "trigger", NOW, id="a trigger of a done one"
    ),
    pytest.param(facts("broken", trigger_at=NOW), "triggered", "trigger", NOW, id="a trigger despite a broken cron"),
    pytest.param(
        facts(next_run_at=NOW - MINUTE, exclusions=[Exclude.window("13:02", "14:00")]),
        "due",
        "schedule",
        NOW - MINUTE,
        id="an exclusion that begins within the threshold",
    ),
    pytest.param(facts(trigger_at=NOW, exclusions=CLOSED), "triggered", "trigger", NOW, id="a trigger in an exclusion"),
]

NO = [
    pytest.param(facts(next_run_at=NOW + SECOND), "not_due", NOW + SECOND, id="not yet its time"),
    pytest.param(facts(), "no_alarm", None, id="no alarm"),
    pytest.param(facts(next_run_at=NOW, open_item=OpenItem.RUNNING), "running", None, id="it runs"),
    pytest.param(facts(next_run_at=NOW, open_item=OpenItem.PENDING), "pending", None, id="it waits for a worker"),
    pytest.param(facts(next_run_at=NOW, open_item=OpenItem.QUEUED), "queued", None, id="it is queued"),
    pytest.param(
        facts(next_run_at=NOW, open_item=OpenItem.DEAD_LETTER), "awaiting_dead_letter", None, id="a letter awaits"
    ),
    pytest.param(facts(trigger_at=NOW, open_item=OpenItem.RUNNING), "running", None, id="triggered while it runs"),
    pytest.param(facts(next_run_at=NOW, is_enabled=False), "disabled", None, id="disabled"),
    pytest.param(
        facts(next_run_at=NOW, is_enabled=False, trigger_at=at(14)), "disabled", at(14), id="disabled, but triggered"
    ),
    pytest.param(facts(next_run_at=NOW, is_group_enabled=False), "group_disabled", None, id="its group is disabled"),
    pytest.param(
        facts(trigger_at=NOW, is_group_enabled=False), "group_disabled", None, id="triggered in a disabled group"
    ),
    pytest.param(
        facts(next_run_at=NOW, trigger_at=at(14), is_group_enabled=False),
        "group_disabled",
        None,
        id="triggered for later in a disabled group",
    ),
    pytest.param(facts(next_run_at=NOW, is_retired=True), "retired", None, id="its declaration is gone"),
    pytest.param(facts("once", next_run_at=NOW, is_done=True), "done", None, id="it had its one run"),
    pytest.param(facts("on_demand"), "on_demand", None, id="no schedule"),
    pytest.param(facts("on_demand", trigger_at=at(14)), "on_demand", at(14), id="no schedule, triggered for later"),
    pytest.param(facts("dormant_dependent", due_execution=9), "dormant", None, id="dormant"),
    pytest.param(facts("dependent", parent_id=None, due_execution=9), "parent_missing", None, id="no parent"),
    pytest.param(
        facts("dependent", is_parent_enabled=False, due_execution=9), "parent_disabled", None, id="a disabled parent"
    ),
    pytest.param(
        facts("dependent", due_execution=9, covered_execution=9), "parent_not_ahead", None, id="it ran for that success"
    ),
    pytest.param(facts("dependent"), "parent_not_ahead", None, id="its parent never succeeded"),
    pytest.param(
        facts("dependent", trigger_at=at(14)),
        "parent_not_ahead",
        at(14),
        id="its parent did not run, triggered for later",
    ),
    pytest.param(facts(next_run_at=at(10), **SKIP), "misfire_skipped", at(13, 5), id="an interval found too late"),
    pytest.param(facts("cron", next_run_at=at(10), **SKIP), "misfire_skipped", at(13, 5), id="a cron found too late"),
    pytest.param(
        facts(next_run_at=at(12), exclusions=CLOSED), "excluded", at(14), id="an interval late in an exclusion"
    ),
    pytest.param(
        facts("once", next_run_at=at(12), exclusions=CLOSED), "excluded", at(14), id="a once run late in an exclusion"
    ),
    pytest.param(
        facts("cron", cron_expression="7 * * * *", next_run_at=at(12, 7), exclusions=CLOSED),
        "excluded",
        at(14, 7),
        id="a cron in an exclusion waits for an occurrence outside it",
    ),
    pytest.param(facts("broken", next_run_at=NOW), "unschedulable", None, id="a cron that cannot be read"),
    pytest.param(facts(interval_seconds=None, next_run_at=NOW), "unschedulable", None, id="an interval without length"),
    pytest.param(
        facts(next_run_at=NOW)._replace(exclusions=[{"kind": "moon"}]), "unschedulable", None, id="a broken exclusion"
    ),
    pytest.param(facts("cron", zone="Mars/Base", next_run_at=at(10)), "unschedulable", None, id="a broken zone"),
    pytest.param(
        facts(next_run_at=at(10), unknown="schedule type 'seventh'"),
        "unknown_value",
        at(10),
        id="a value of a newer version, to which its alarm is left",
    ),
]


@pytest.mark.parametrize(("known", "reason", "source", "scheduled_for"), YES)
def test_it_is_queued(known, reason, source, scheduled_for):
    decision = decide(known, now=NOW)
    assert decision == Decision(Reason(reason), source=Source(source), scheduled_for=scheduled_for)
    assert decision.is_yes


@pytest.mark.parametrize(("known", "reason", "look_again_at"), NO)
def test_it_is_not_queued(known, reason, look_again_at):
    decision = decide(known, now=NOW)
    assert (decision.reason, decision.look_again_at) == (Reason(reason), look_again_at)
    assert not decision.is_yes
    assert decision.scheduled_for is None


def test_the_tables_show_every_reason_and_each_has_words():
    shown = {Reason(case.values[1]) for case in [*YES, *NO]}
    # What a join waits for is told by explain, which looks at its runs, and so is what is put aside; the rule knows
    # only what is due.
    told = {Reason.WAITS_FOR_PARENTS, Reason.TOO_FEW_ARRIVED, Reason.PUT_ASIDE}
    assert shown | told == set(Reason) == set(IN_WORDS)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        pytest.param(facts("dependent"), False, id="nothing is in its way"),
        pytest.param(facts("dependent", is_enabled=False), True, id="disabled"),
        pytest.param(facts("dependent", is_group_enabled=False), True, id="its group is disabled"),
        pytest.param(facts("dependent", is_retired=True), True, id="retired"),
        pytest.param(facts("dependent", is_parent_enabled=False), True, id="its parent is disabled"),
        pytest.param(
            facts("dependent", is_join=True, is_parent_enabled=False), False, id="a join, its parent disabled"
        ),
        pytest.param(facts("dependent", open_item=OpenItem.DEAD_LETTER), True, id="a letter awaits"),
        *(
            pytest.param(facts("dependent", open_item=item), False, id=f"an item is {item}")
            for item in (OpenItem.QUEUED, OpenItem.PENDING, OpenItem.RUNNING)
        ),
    ],
)
def test_joins_wait_for_what_is_due_unless_an_obstacle_or_a_letter_stops_it(known, expected):
    assert known.is_stopped is expected


def test_an_unschedulable_manifest_is_told_with_the_cause():
    decision = decide(facts("broken", next_run_at=NOW), now=NOW)
    assert decision.in_words.startswith(IN_WORDS[Reason.UNSCHEDULABLE])
    assert "61 * * * *" in decision.in_words


@pytest.mark.parametrize("schedule_type", ["interval", "cron"])
@pytest.mark.parametrize(
    ("policy", "now", "expected"),
    [
        pytest.param(
            "skip",
            at(13, 2),
            Decision(Reason.MISFIRE_SKIPPED, look_again_at=at(13, 5), occurrence_at=at(13, 5)),
            id="skip, 2 min late",
        ),
        pytest.param(
            "skip",
            at(13, 0, 30),
            Decision(Reason.DUE, source=Source.SCHEDULE, scheduled_for=at(13)),
            id="skip, 30 s late",
        ),
        pytest.param(
            "skip",
            at(13, 1),
            Decision(Reason.DUE, source=Source.SCHEDULE, scheduled_for=at(13)),
            id="skip, exactly at the threshold",
        ),
        pytest.param(
            "skip",
            at(13, 1, 1),
            Decision(Reason.MISFIRE_SKIPPED, look_again_at=at(13, 5), occurrence_at=at(13, 5)),
            id="skip, a second beyond",
        ),
        pytest.param(
            "run_once",
            at(13, 2),
            Decision(Reason.DUE, source=Source.SCHEDULE, scheduled_for=at(10)),
            id="run_once, 2 min late",
        ),
    ],
)
def test_every_five_minutes_and_down_since_ten(schedule_type, policy, now, expected):
    late = facts(schedule_type, next_run_at=at(10), misfire_policy=MisfirePolicy(policy))
    assert decide(late, now=now) == expected


@pytest.mark.parametrize(
    "late",
    [
        facts("cron", cron_expression="* * * * *", next_run_at=NOW - 7 * DAY),
        facts(interval_seconds=60, next_run_at=NOW - 7 * DAY, last_finished_run=NOW - 7 * DAY - MINUTE),
    ],
    ids=["cron", "interval"],
)
def test_a_week_down_with_an_every_minute_schedule_makes_one_run(late):
    assert decide(late, now=NOW).is_yes
    finished = late._replace(next_run_at=None, last_finished_run=NOW + 10 * SECOND)
    following = next_alarm(finished, now=NOW + 10 * SECOND)
    assert following is not None
    assert NOW + 10 * SECOND < following <= NOW + 70 * SECOND


ALARMS = [
    pytest.param(facts(), NOW, NOW, id="an interval that never ran: at once, also when new"),
    pytest.param(facts(last_finished_run=at(13)), at(13, 5), NOW + 5 * MINUTE, id="an interval after its last run"),
    pytest.param(
        facts(last_finished_run=at(9)), at(9, 5), NOW + 5 * MINUTE, id="an interval long overdue; fresh: from now"
    ),
    pytest.param(facts("cron"), at(13, 5), at(13, 5), id="a cron: its next occurrence"),
    pytest.param(
        facts("cron", last_finished_run=at(9)), at(13, 5), at(13, 5), id="a cron makes up for nothing when armed"
    ),
    pytest.param(facts("once", once_at=at(18)), at(18), at(18), id="once: its time"),
    pytest.param(facts("once", once_at=at(9)), at(9), at(9), id="once: its time, also when past"),
    pytest.param(facts("dependent", due_execution=9), NOW, NOW, id="a dependent behind its parent: now"),
    pytest.param(facts("dependent", due_execution=9, covered_execution=9), None, None, id="a dependent not behind"),
    pytest.param(facts("on_demand"), None, None, id="on demand: never"),
    pytest.param(facts("dormant_dependent", due_execution=9), None, None, id="dormant: never"),
    pytest.param(facts(exclusions=CLOSED), at(14), at(14), id="an interval waits for an exclusion's end"),
    pytest.param(
        facts("cron", cron_expression="7 * * * *", exclusions=CLOSED),
        at(14, 7),
        at(14, 7),
        id="a cron drops what is excluded",
    ),
    pytest.param(
        facts("cron", cron_expression="0 2 * * *", zone="Europe/Berlin"),
        at(1, day=3),
        at(1, day=3),
        id="a cron on its zone's wall clock",
    ),
]

OBSTACLES = [
    ({"is_enabled": False}, "disabled"),
    ({"is_group_enabled": False}, "group_disabled"),
    ({"is_retired": True}, "retired"),
    ({"is_done": True}, "done"),
    ({"schedule_type": ScheduleType.DEPENDENT, "due_execution": 9}, "parent_missing"),
    ({"schedule_type": ScheduleType.DEPENDENT, "due_execution": 9, "parent_id": 7}, "parent_disabled"),
]


@pytest.mark.parametrize(("known", "usual", "fresh"), ALARMS)
def test_the_alarm_of_a_schedule(known, usual, fresh):
    assert next_alarm(known, now=NOW) == usual
    assert next_alarm(known, now=NOW, is_fresh=True) == fresh


@pytest.mark.parametrize(("change", "reason"), OBSTACLES, ids=[reason for _, reason in OBSTACLES])
def test_an_obstacle_stops_the_schedule_but_not_a_trigger_unless_the_group_is_off(change, reason):
    hindered = facts(next_run_at=NOW)._replace(**change)
    assert find_obstacle(hindered) == reason
    assert next_alarm(hindered, now=NOW) is None
    request = None if reason == "group_disabled" else at(15)
    assert next_alarm(hindered._replace(trigger_at=at(15)), now=NOW) == request


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        pytest.param(facts("cron", trigger_at=at(13, 3)), at(13, 3), id="the trigger comes first"),
        pytest.param(facts("cron", trigger_at=at(15)), at(13, 5), id="the schedule comes first"),
        pytest.param(facts("cron", trigger_at=at(12)), at(12), id="a trigger from before"),
        pytest.param(facts("on_demand", trigger_at=at(15)), at(15), id="only a trigger"),
        pytest.param(facts("dependent", due_execution=9, trigger_at=at(15)), NOW, id="due for its parent first"),
        pytest.param(facts("dependent", trigger_at=at(15)), at(15), id="not due for its parent"),
        pytest.param(facts("dormant_dependent", trigger_at=at(15)), at(15), id="a dormant one is triggered"),
    ],
)
def test_the_alarm_is_the_earlier_of_schedule_and_trigger(known, expected):
    assert next_alarm(known, now=NOW) == expected


@pytest.mark.parametrize("known", [facts("broken"), facts("cron", zone="Mars/Base"), facts(interval_seconds=None)])
def test_the_alarm_of_a_broken_schedule_is_refused(known):
    with pytest.raises(InvalidSchedule):
        next_alarm(known, now=NOW)


def test_jitter_moves_an_alarm_later_by_at_most_its_seconds():
    times = [next_alarm(facts("cron", external_id=f"sync-{n}", jitter_seconds=120), now=NOW) for n in range(50)]
    assert all(time is not None and at(13, 5) <= time <= at(13, 7) for time in times)
    assert len(set(times)) > 10


@pytest.mark.parametrize(
    ("known", "reason"),
    [
        (facts(next_run_at=at(10), trigger_at=at(13, 3), **SKIP), "misfire_skipped"),
        (facts(next_run_at=at(12), trigger_at=at(13, 3), exclusions=CLOSED), "excluded"),
        (facts("broken", next_run_at=NOW, trigger_at=at(13, 3)), "unschedulable"),
    ],
    ids=["misfire skipped", "excluded", "unschedulable"],
)
def test_a_refusal_still_looks_again_when_a_delayed_trigger_is_due(known, reason):
    decision = decide(known, now=NOW)
    assert decision.reason == Reason(reason)
    assert decision.look_again_at == at(13, 3)


def test_a_trigger_stays_although_the_schedule_is_broken():
    assert next_alarm(facts("broken", trigger_at=at(15)), now=NOW) == at(15)


timed_facts = st.builds(
    facts,
    st.sampled_from(["interval", "cron", "once"]),
    next_run_at=st.none() | st.integers(-(10**6), 10**6).map(lambda seconds: NOW + timedelta(seconds=seconds)),
    jitter_seconds=st.integers(0, 3600),
    misfire_policy=st.sampled_from(MisfirePolicy),
    misfire_threshold=st.integers(0, 7200).map(lambda seconds: timedelta(seconds=seconds)),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Kathmandu"]),
    exclusions=st.lists(
        st.sampled_from(
            [
                Exclude.window("12:00", "13:30"),
                Exclude.window("22:00", "06:00"),
                Exclude.weekdays("mon"),
                Exclude.dates("2026-03-02"),
                Exclude.between("2026-03-01", "2026-03-05"),
            ]
        ),
        max_size=3,
    ),
)
moments = st.integers(-(10**6), 10**6).map(lambda seconds: NOW + timedelta(seconds=seconds))


@given(known=timed_facts, now=moments)
def test_a_refused_timed_decision_never_looks_again_at_or_before_now(known, now):
    decision = decide(known, now=now)
    if not decision.is_yes and decision.look_again_at is not None:
        assert decision.look_again_at > now


@given(known=timed_facts, now=moments)
def test_what_is_queued_by_schedule_is_queued_for_a_time_that_has_come(known, now):
    decision = decide(known, now=now)
    if decision.is_yes:
        assert decision.scheduled_for is not None
        assert decision.scheduled_for <= now


@given(
    known=timed_facts | st.builds(facts, st.sampled_from(["dependent", "on_demand"]), due_execution=st.integers(0, 9)),
    item=st.sampled_from(OpenItem),
    trigger_at=st.none() | moments,
    now=moments,
    is_fresh=st.booleans(),
)
def test_nothing_with_an_open_item_has_an_alarm_or_is_queued(known, item, trigger_at, now, is_fresh):
    busy = known._replace(open_item=item, trigger_at=trigger_at)
    assert next_alarm(busy, now=now, is_fresh=is_fresh) is None
    assert not decide(busy, now=now).is_yes
