"""Whether a manifest should be queued now and, if not, why; and when to evaluate it next.

The manager's turn, the alarm and ``explain`` all use the same two rules from here.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from chainsched.domain import exclusions
from chainsched.domain.items import NO_ITEM, Item
from chainsched.domain.known import LEFT_TO_NEWER
from chainsched.domain.obstacles import Obstacle, find_obstacle, find_obstacle_to_request
from chainsched.domain.schedules import (
    CronSchedule,
    Interval,
    Once,
    Timing,
    latest_boundary,
    next_boundary,
    next_occurrence,
    next_run,
)
from chainsched.domain.states import MisfirePolicy, ScheduleType, Source
from chainsched.exceptions import InvalidSchedule


class OpenItem(enum.StrEnum):
    """The one thing that a manifest may have under way."""

    RUNNING = "running"
    PENDING = "pending"
    QUEUED = "queued"
    DEAD_LETTER = "dead_letter"


class Reason(enum.StrEnum):
    """Why a manifest is or is not queued now; the value is the stable code."""

    DUE = "due"
    TRIGGERED = "triggered"
    PARENT_RAN = "parent_ran"
    NOT_DUE = "not_due"
    NO_ALARM = "no_alarm"
    RUNNING = "running"
    PENDING = "pending"
    QUEUED = "queued"
    AWAITING_DEAD_LETTER = "awaiting_dead_letter"
    RETIRED = Obstacle.RETIRED.value
    DONE = Obstacle.DONE.value
    DISABLED = Obstacle.DISABLED.value
    GROUP_DISABLED = Obstacle.GROUP_DISABLED.value
    PARENT_MISSING = Obstacle.PARENT_MISSING.value
    PARENT_DISABLED = Obstacle.PARENT_DISABLED.value
    PARENT_NOT_AHEAD = "parent_not_ahead"
    WAITS_FOR_PARENTS = "waits_for_parents"
    TOO_FEW_ARRIVED = "too_few_arrived"
    ON_DEMAND = Obstacle.ON_DEMAND.value
    DORMANT = Obstacle.DORMANT.value
    MISFIRE_SKIPPED = "misfire_skipped"
    EXCLUDED = "excluded"
    PUT_ASIDE = "put_aside"
    UNSCHEDULABLE = "unschedulable"
    UNKNOWN_VALUE = "unknown_value"


IN_WORDS = {
    **{Reason(obstacle.value): obstacle.in_words for obstacle in Obstacle},
    Reason.DUE: "its run is due",
    Reason.TRIGGERED: "it was triggered",
    Reason.PARENT_RAN: "its parent ran and matched its condition",
    Reason.NOT_DUE: "its next run is not due yet",
    Reason.NO_ALARM: "it has no open work and no alarm; the next reconciliation sets the alarm",
    Reason.RUNNING: "it is running",
    Reason.PENDING: "it is dispatched and waits for a worker",
    Reason.QUEUED: "it is queued and waits to be dispatched",
    Reason.AWAITING_DEAD_LETTER: "a dead letter awaits a decision: retry or acknowledge it",
    Reason.PARENT_NOT_AHEAD: "its parent has not run since, or not with the outcome it waits for",
    Reason.WAITS_FOR_PARENTS: "it waits until all that leads to it in a run has ended",
    Reason.TOO_FEW_ARRIVED: "too few of the manifests that it waits for arrived in its last run",
    Reason.MISFIRE_SKIPPED: "it was found too late, and its misfire policy is to skip",
    Reason.EXCLUDED: "an exclusion covers this time",
    Reason.PUT_ASIDE: "it is put aside, because it could not be queued or dispatched",
    Reason.UNSCHEDULABLE: "its schedule cannot be computed",
    Reason.UNKNOWN_VALUE: f"it has a value that this version does not know; {LEFT_TO_NEWER}",
}

_OPEN_REASONS = {
    OpenItem.RUNNING: Reason.RUNNING,
    OpenItem.PENDING: Reason.PENDING,
    OpenItem.QUEUED: Reason.QUEUED,
    OpenItem.DEAD_LETTER: Reason.AWAITING_DEAD_LETTER,
}


class Facts(NamedTuple):
    """All facts that the two rules use, with the project's defaults filled in.

    A tuple: thousands are made in a second, and a frozen dataclass of so many fields takes four times as long.
    """

    manifest_id: int
    external_id: str
    schedule_type: ScheduleType
    cron_expression: str
    zone: str
    interval_seconds: int | None
    once_at: datetime | None
    jitter_seconds: int
    exclusions: Sequence[Any]
    misfire_policy: MisfirePolicy
    misfire_threshold: timedelta
    is_enabled: bool
    is_group_enabled: bool
    is_retired: bool
    is_done: bool
    parent_id: int | None
    is_parent_enabled: bool
    next_run_at: datetime | None
    trigger_at: datetime | None
    due_execution: int
    covered_execution: int
    last_finished_run: datetime | None
    occurrence_at: datetime | None = None
    is_join: bool = False
    is_put_aside: bool = False
    has_trigger_input: bool = False
    is_one_time: bool = False
    consecutive_failures: int = 0
    due_item: Item = NO_ITEM
    open_item: OpenItem | None = None
    # A value that this version does not know: the manifest is left as it is to processes of the newer one.
    unknown: str = ""

    @property
    def is_behind_parent(self) -> bool:
        """Whether an outcome has made it due since the execution that it was last queued for."""
        return self.due_execution > self.covered_execution

    def ended(self, *, at: datetime, is_done: bool) -> Facts:
        """The facts when its open item has just ended, and not by a failure; a one-time manifest may be done then."""
        # As ``_replace`` does it, which takes five times as long for so many fields.
        before, between, after = self[:_DONE], self[_DONE + 1 : _FINISHED], self[_FINISHED + 1 : _OPEN]
        return Facts._make((*before, self.is_done or is_done, *between, at, *after, None, self.unknown))

    @property
    def is_stopped(self) -> bool:
        """Whether an obstacle or a dead letter keeps the due item from running, so that no join waits for it."""
        return self.open_item is OpenItem.DEAD_LETTER or find_obstacle(self) is not None


_DONE, _FINISHED, _OPEN = (Facts._fields.index(name) for name in ("is_done", "last_finished_run", "open_item"))


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer: queue it, for which time and from which source, or why not and when to evaluate it again."""

    reason: Reason
    source: Source | None = None
    scheduled_for: datetime | None = None
    look_again_at: datetime | None = None
    occurrence_at: datetime | None = None
    detail: str = ""

    @property
    def is_yes(self) -> bool:
        return self.source is not None

    @property
    def in_words(self) -> str:
        return IN_WORDS[self.reason] + (f" ({self.detail})" if self.detail else "")


def decide(facts: Facts, *, now: datetime) -> Decision:
    """Say whether the manifest should be queued now and, if not, why."""
    if facts.open_item is not None:
        return Decision(_OPEN_REASONS[facts.open_item])
    if facts.unknown:
        at, occurrence_at = facts.next_run_at, facts.occurrence_at
        return Decision(Reason.UNKNOWN_VALUE, look_again_at=at, occurrence_at=occurrence_at, detail=facts.unknown)
    if facts.trigger_at is not None and facts.trigger_at <= now and not _is_first_due(facts):
        return _decide_trigger(facts, facts.trigger_at)
    decision = _decide_by_itself(facts, now)
    if decision.is_yes:
        return decision
    own = decision.look_again_at
    return replace(decision, look_again_at=_earliest(own, _trigger_time(facts)), occurrence_at=own)


class Alarm(NamedTuple):
    """When the manager evaluates a manifest next, and the time of the schedule's own next occurrence."""

    next_run_at: datetime | None = None
    occurrence_at: datetime | None = None


def alarm(facts: Facts, *, now: datetime, is_fresh: bool = False) -> Alarm:
    """When the manager should evaluate the manifest next; None for never, until it is armed again.

    ``is_fresh`` says that the schedule begins now: it was declared, edited or enabled, and missed runs are dropped.
    Raises InvalidSchedule when the schedule cannot be computed and no trigger request waits.
    """
    if facts.unknown:
        return Alarm(facts.next_run_at, facts.occurrence_at)
    if facts.open_item is not None:
        return Alarm()
    request = _trigger_time(facts)
    if find_obstacle(facts) is not None:
        return Alarm(request)
    if facts.schedule_type is ScheduleType.DEPENDENT:
        return Alarm(_earliest(now if facts.is_behind_parent else None, request))
    try:
        own = _occurrence(facts, now=now, is_fresh=is_fresh)
    except InvalidSchedule:
        if request is None:
            raise
        return Alarm(request)
    return Alarm(_earliest(own, request), own)


def _occurrence(facts: Facts, *, now: datetime, is_fresh: bool) -> datetime | None:
    """When its own schedule makes the manifest run next.

    An occurrence that is set stays until a run uses it up or the schedule begins again: requests do not change it.
    """
    if facts.occurrence_at is not None and not is_fresh:
        return facts.occurrence_at
    return _next_run(facts, now=now, is_fresh=is_fresh)


def timing_of(facts: Facts) -> Timing:
    """The manifest's schedule as a value; raises InvalidSchedule when a stored part of it is broken."""
    return Timing(
        schedule=_schedule_of(facts),
        zone=facts.zone,
        exclusions=exclusions.from_json(facts.exclusions),
        jitter_seconds=facts.jitter_seconds,
        jitter_key=facts.external_id,
    )


def _decide_trigger(facts: Facts, wanted_at: datetime) -> Decision:
    """A trigger runs a disabled manifest too; few obstacles stop it."""
    if (obstacle := find_obstacle_to_request(facts)) is not None:
        return Decision(Reason(obstacle.value))
    return Decision(Reason.TRIGGERED, source=Source.TRIGGER, scheduled_for=wanted_at)


def _is_first_due(facts: Facts) -> bool:
    """Whether it runs for an outcome before a trigger that has an input of its own, and so asks for another run."""
    return facts.has_trigger_input and facts.is_behind_parent and find_obstacle(facts) is None


def _decide_by_itself(facts: Facts, now: datetime) -> Decision:
    """The decision without a trigger request."""
    if (obstacle := find_obstacle(facts)) is not None:
        return Decision(Reason(obstacle.value))
    if facts.schedule_type is ScheduleType.DEPENDENT:
        return _decide_dependent(facts, now)
    try:
        return _decide_timed(facts, now)
    except InvalidSchedule as error:
        return Decision(Reason.UNSCHEDULABLE, detail=str(error))


def _decide_dependent(facts: Facts, now: datetime) -> Decision:
    if not facts.is_behind_parent:
        return Decision(Reason.PARENT_NOT_AHEAD)
    return Decision(Reason.PARENT_RAN, source=Source.DEPENDENCY, scheduled_for=now)


def _decide_timed(facts: Facts, now: datetime) -> Decision:
    timing = timing_of(facts)
    if facts.next_run_at is None:
        next_occurrence(timing, after=now)  # raises if the schedule cannot be computed, which then is the reason
        return Decision(Reason.NO_ALARM)
    if facts.next_run_at > now:
        return Decision(Reason.NOT_DUE, look_again_at=facts.next_run_at)
    is_late = now - facts.next_run_at > facts.misfire_threshold
    # The alarm itself lies outside every exclusion; only a late run can fall into one.
    if is_late and exclusions.is_excluded(timing.exclusions, moment=now, zone=timing.zone):
        return Decision(Reason.EXCLUDED, look_again_at=_after_exclusion(timing, now))
    boundary = facts.next_run_at
    if facts.misfire_policy is MisfirePolicy.SKIP and not isinstance(timing.schedule, Once):
        boundary = latest_boundary(timing, first=facts.next_run_at, until=now)
        if now - boundary > facts.misfire_threshold:
            again = next_boundary(timing, first=facts.next_run_at, after=now)
            return Decision(Reason.MISFIRE_SKIPPED, look_again_at=again)
    return Decision(Reason.DUE, source=Source.SCHEDULE, scheduled_for=boundary)


def _after_exclusion(timing: Timing, now: datetime) -> datetime | None:
    """An occurrence of a cron inside an exclusion is dropped; an interval or once run waits for its end."""
    if isinstance(timing.schedule, CronSchedule):
        return next_occurrence(timing, after=now)
    return exclusions.end_of_exclusion(timing.exclusions, moment=now, zone=timing.zone)


def _next_run(facts: Facts, *, now: datetime, is_fresh: bool) -> datetime | None:
    timing = timing_of(facts)
    if not isinstance(timing.schedule, Interval):
        return next_occurrence(timing, after=now) if is_fresh else next_run(timing, after=now)
    interval = timedelta(seconds=timing.schedule.seconds)
    if facts.last_finished_run is None:
        return next_occurrence(timing, after=now - interval)
    return next_occurrence(timing, after=now if is_fresh else facts.last_finished_run)


def _trigger_time(facts: Facts) -> datetime | None:
    """The time of the trigger that waits; None while an obstacle stops it."""
    if facts.trigger_at is None or find_obstacle_to_request(facts) is not None:
        return None
    return facts.trigger_at


def _earliest(*times: datetime | None) -> datetime | None:
    return min((time for time in times if time is not None), default=None)


def _schedule_of(facts: Facts) -> CronSchedule | Interval | Once:
    if facts.schedule_type is ScheduleType.CRON:
        return _cron(facts.cron_expression)
    if facts.schedule_type is ScheduleType.INTERVAL and facts.interval_seconds is not None:
        return _interval(facts.interval_seconds)
    if facts.schedule_type is ScheduleType.ONCE and facts.once_at is not None:
        return Once(facts.once_at)
    raise InvalidSchedule(f"{facts.external_id}: a manifest of type {facts.schedule_type} has no times of its own.")


# Thousands of manifests share few schedules, which are checked when they are made.
_cron, _interval = lru_cache(CronSchedule), lru_cache(Interval)
