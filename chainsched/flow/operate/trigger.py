"""Operator action: trigger a run; a caller in code does the same.

Reads:  the open items of the manifests, and the trigger requests that wait.
Writes: through enqueue a queue row; or the trigger request, which is stored until the manifest can run.
Next:   dispatch, or the manager when the trigger request is due.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from chainsched.db import bulk
from chainsched.db.chunks import chunks
from chainsched.db.clock import database_now
from chainsched.db.id_in import id_in
from chainsched.db.notify import DISPATCHER
from chainsched.domain.due import Decision, Facts, OpenItem, decide
from chainsched.domain.inputs import OWN_INPUT
from chainsched.domain.results import Answer
from chainsched.domain.states import Source
from chainsched.domain.triggers import STORED, Situation, Wanted, answer_trigger, is_queued_first
from chainsched.exceptions import InvalidInput
from chainsched.flow.announce import wake
from chainsched.flow.run.alarm import arm
from chainsched.flow.run.carried import Jobs
from chainsched.flow.run.enqueue import JOB_COLUMNS, enqueue
from chainsched.flow.run.requests import Lineage, QueueRequest
from chainsched.flow.transactions import transact
from chainsched.models import Manifest, ManifestState, Near, WorkQueue
from chainsched.models.manifest import PARENTED
from chainsched.models.manifest_facts import load_facts, load_facts_with

# A hundred years: every date that follows is one that databases can hold.
MAX_DELAY = timedelta(days=36_500)


@dataclass(frozen=True, slots=True)
class TriggerRequest:
    """The input of the run, and the delay before it may start."""

    input: Any = OWN_INPUT
    delay: timedelta | None = None


def trigger(requests: Mapping[int, TriggerRequest], *, now: datetime | None = None) -> dict[int, Answer]:
    """Run these manifests now, or store their trigger requests; never raises because of an open item.

    A thousand requests for the same during a run make one more run; one that asks for another than the one that waits
    already is refused, as the answer says. A manifest that is gone has no answer. Without ``now`` the clock is read.
    """
    with transact() as begun_at:
        now = now or begun_at or database_now()
        found, jobs = load_facts_with(JOB_COLUMNS, ManifestState.objects.lock(requests.keys()))
        facts = {known.manifest_id: known for known in found}
        wanted = _wanted({id_: requests[id_] for id_ in facts}, now=now)
        before = _find_situations(facts)
        situations = _queue_first(before, wanted, now=now)
        answers = {id_: answer_trigger(wanted[id_], found, now=now) for id_, found in situations.items()}
        unchanged = {id_: jobs[id_] for id_, found in situations.items() if found is before[id_]}
        new = {id_: wanted[id_] for id_ in _those(answers, Answer.QUEUED)}
        answers |= _queue(new, situations, known=unchanged, now=now)
        gone = _bring_forward(_those(answers, Answer.ALREADY_QUEUED), facts, now=now)
        # A worker took these rows just now: the request comes after their runs.
        situations |= {id_: _with_open_item(situations[id_], OpenItem.PENDING) for id_ in gone}
        answers |= {id_: answer_trigger(wanted[id_], situations[id_], now=now) for id_ in gone}
        free = [id_ for id_ in _those(answers, *STORED) if situations[id_].waiting is None]
        _store_requests({id_: wanted[id_] for id_ in free}, now=now)
    return answers


def trigger_all(requests: Mapping[int, TriggerRequest], *, now: datetime) -> dict[int, Answer]:
    """The same for any number of manifests, in one transaction."""
    answers: dict[int, Answer] = {}
    with transact():
        # By id, as all that locks several states does.
        for part in chunks(sorted(requests)):
            answers |= trigger({id_: requests[id_] for id_ in part}, now=now)
    return answers


def trigger_group(group_id: int, *, now: datetime) -> Counter[Answer]:
    """Run all enabled members of a group that depend on no other manifest; counts the answers."""
    members = Manifest.objects.enabled().filter(group=group_id, retired_at__isnull=True)
    ids = [id_ for id_, schedule_type in members.values_list("id", "schedule_type") if schedule_type not in PARENTED]
    return Counter(trigger_all(dict.fromkeys(ids, TriggerRequest()), now=now).values())


def _wanted(requests: Mapping[int, TriggerRequest], *, now: datetime) -> dict[int, Wanted]:
    """What is asked of each manifest; no input is the own one of a manifest that has none."""
    without = [id_ for id_, request in requests.items() if request.input is None]
    own = set()
    if without:
        inputs = Manifest.objects.filter(id_in(id=without)).values_list("id", "input")
        own = {id_ for id_, declared in inputs if declared is None}
    return {
        id_: Wanted(now + (request.delay or timedelta(0)), OWN_INPUT if id_ in own else request.input)
        for id_, request in requests.items()
    }


def _find_situations(facts: Mapping[int, Facts]) -> dict[int, Situation]:
    requests = ManifestState.objects.waiting_requests([id_ for id_, known in facts.items() if known.trigger_at])
    queued = [id_ for id_, known in facts.items() if known.open_item is OpenItem.QUEUED]
    foreign = WorkQueue.objects.with_other_input(queued)
    waiting = {id_: Wanted(at, OWN_INPUT if own is None else own) for id_, (at, own) in requests.items()}
    return {id_: Situation(known, waiting.get(id_), id_ not in foreign) for id_, known in facts.items()}


def _queue_first(
    situations: Mapping[int, Situation], wanted: Mapping[int, Wanted], *, now: datetime
) -> dict[int, Situation]:
    """Queue what is due by a request that waits, as the manager is about to, where this request asks for another run.

    Both are honoured then: the new one comes after it.
    """
    decisions = {
        id_: decide(found.facts, now=now)
        for id_, found in situations.items()
        if is_queued_first(wanted[id_], found, now=now)
    }
    requests = [
        QueueRequest(id_, decision.source, decision.scheduled_for)
        for id_, decision in decisions.items()
        if decision.source is not None and decision.scheduled_for is not None
    ]
    opened = enqueue(requests, now=now)
    queued = {id_: _after_queueing(situations[id_], decisions[id_]) for id_ in opened}
    # An outcome that it was due for in cancelled runs alone is covered now without a row; its request comes next.
    dropped = [id_ for id_, found in decisions.items() if found.source is Source.DEPENDENCY and id_ not in opened]
    facts = {known.manifest_id: known for known in load_facts(dropped)} if dropped else {}
    return {**situations, **queued, **(_queue_first(_find_situations(facts), wanted, now=now) if facts else {})}


def _after_queueing(situation: Situation, decision: Decision) -> Situation:
    """The situation when its request was queued; or what it is due for by an outcome, and the request still waits."""
    waiting = situation.waiting
    if decision.source is not Source.TRIGGER or waiting is None:
        return _with_open_item(situation, OpenItem.QUEUED)
    queued = replace(situation, waiting=None, has_row_own_input=waiting.input is OWN_INPUT)
    return _with_open_item(queued, OpenItem.QUEUED)


def _with_open_item(situation: Situation, item: OpenItem) -> Situation:
    return replace(situation, facts=situation.facts._replace(open_item=item))


def _those(answers: Mapping[int, Answer], *wanted: Answer) -> list[int]:
    return [manifest_id for manifest_id, answer in answers.items() if answer in wanted]


def _queue(
    wanted: Mapping[int, Wanted], situations: Mapping[int, Situation], *, known: Jobs, now: datetime
) -> dict[int, Answer]:
    requests = [QueueRequest(id_, Source.TRIGGER, now, input=request.input) for id_, request in wanted.items()]
    opened = enqueue(requests, now=now, known=known)
    # In the middle of a graph it begins a run that does not reach the other parents of joins.
    found = {id_: situations[id_].facts for id_ in opened}
    inner = [id_ for id_, facts in found.items() if facts.schedule_type.has_parent and not facts.is_behind_parent]
    before_joins = Near.objects.leading_to_joins(inner)
    answers = {manifest_id: Answer.ALREADY_QUEUED for manifest_id in wanted if manifest_id not in opened}
    return answers | dict.fromkeys(before_joins, Answer.QUEUED_BY_ITSELF)


def _bring_forward(manifest_ids: Collection[int], facts: Mapping[int, Facts], *, now: datetime) -> list[int]:
    """Let waiting rows start at once; returns the manifests whose row was dispatched just now."""
    moved = WorkQueue.objects.bring_forward({id_: facts[id_].is_enabled for id_ in manifest_ids})
    # An operator asks for them now, so that joins wait for them although their manifests are disabled.
    arm(moved, now=now)
    if moved:
        wake(DISPATCHER)
    return [manifest_id for manifest_id in manifest_ids if manifest_id not in moved]


def _store_requests(wanted: Mapping[int, Wanted], *, now: datetime) -> None:
    lineage = Lineage.of_scope()
    rows = [
        {
            "manifest": id_,
            "trigger_at": request.at,
            "trigger_input": None if request.input is OWN_INPUT else request.input,
            "trigger_causation_id": lineage.causation_id,
            "trigger_root_correlation_id": lineage.root_correlation_id,
        }
        for id_, request in wanted.items()
    ]
    bulk.update(ManifestState, rows, key="manifest")
    arm(wanted, now=now)


def check_delay(delay: timedelta | float | None) -> timedelta | None:
    """The delay of a trigger as a length of time; refuses anything that is none, is negative or too long."""
    if delay is None:
        return None
    remedy = f"give a timedelta or seconds, from 0 to {MAX_DELAY.days:,} days"
    if isinstance(delay, bool) or not isinstance(delay, timedelta | int | float):
        raise InvalidInput(f"A delay of {delay!r} is no length of time; {remedy}.")
    try:
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
    except OverflowError:
        seconds = math.inf
    # What is not a number is not between these, either.
    if not 0 <= seconds <= MAX_DELAY.total_seconds():
        raise InvalidInput(f"A delay of {seconds:g} seconds is out of range; {remedy}.")
    return timedelta(seconds=seconds)
