"""Operator action: trigger a run; a caller in code does the same.

Reads:  the open items of the manifests.
Writes: through enqueue a queue row; or the trigger request, which is stored until the manifest can run.
Next:   the dispatcher, or the manager when the trigger request is due.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from chainsched.db import bulk
from chainsched.db.chunks import chunks
from chainsched.domain.due import Facts, OpenItem
from chainsched.domain.inputs import OWN_INPUT
from chainsched.domain.obstacles import Obstacle, find_obstacle, find_obstacle_to_request
from chainsched.domain.results import Answer
from chainsched.domain.states import ScheduleType, Source
from chainsched.flow.run.alarm import arm
from chainsched.flow.run.enqueue import enqueue
from chainsched.flow.run.requests import Lineage, QueueRequest
from chainsched.flow.transactions import transact
from chainsched.models import Manifest, ManifestState, Near, WorkQueue
from chainsched.models.manifest_facts import load_facts

# The answer to a trigger that an obstacle stops: the request waits until it is lifted.
ANSWERS = {Obstacle.GROUP_DISABLED: Answer.WAITS_FOR_GROUP}


@dataclass(frozen=True, slots=True)
class TriggerRequest:
    """The input of the run, and the delay before it may start."""

    input: Any = OWN_INPUT
    delay: timedelta | None = None


def trigger(manifest_ids: Collection[int], *, request: TriggerRequest, now: datetime) -> dict[int, Answer]:
    """Run these manifests now, or store the trigger request; never raises because of an open item.

    A thousand trigger requests while a run is active make one more run, with the input of the newest.
    """
    with transact():
        facts = {known.manifest_id: known for known in load_facts(ManifestState.objects.lock(manifest_ids))}
        answers = {manifest_id: _answer(known, request) for manifest_id, known in facts.items()}
        answers |= _queue(_those(answers, Answer.QUEUED), facts, request, now=now)
        answers |= _bring_forward(_those(answers, Answer.ALREADY_QUEUED), now=now)
        waiting = _those(answers, Answer.WILL_RUN_AGAIN, Answer.DELAYED, Answer.WAITS_FOR_GROUP)
        _store_request(waiting, request, now=now)
    return answers


def trigger_group(group_id: int, *, now: datetime) -> Counter[Answer]:
    """Run all enabled members of a group that depend on no other manifest; counts the answers."""
    members = Manifest.objects.enabled().filter(group=group_id, retired_at__isnull=True).order_by("id")
    ids = [
        id_
        for id_, schedule_type in members.values_list("id", "schedule_type")
        if not ScheduleType(schedule_type).has_parent
    ]
    answers: Counter[Answer] = Counter()
    with transact():
        for part in chunks(ids):
            answers.update(trigger(part, request=TriggerRequest(), now=now).values())
    return answers


def _answer(facts: Facts, request: TriggerRequest) -> Answer:
    if facts.open_item is OpenItem.DEAD_LETTER:
        return Answer.AWAITS_DEAD_LETTER
    if request.delay:
        return Answer.DELAYED
    if facts.open_item is OpenItem.QUEUED:
        # The input of a queued row is fixed; a request with another input asks for another run.
        return Answer.ALREADY_QUEUED if request.input is OWN_INPUT else Answer.WILL_RUN_AGAIN
    if facts.open_item is not None:
        return Answer.WILL_RUN_AGAIN
    if request.input is not OWN_INPUT and facts.is_behind_parent and find_obstacle(facts) is None:
        # It runs first for the outcome that it is due for, then with the input of the request.
        return Answer.WILL_RUN_AGAIN
    obstacle = find_obstacle_to_request(facts)
    return Answer.QUEUED if obstacle is None else ANSWERS[obstacle]


def _those(answers: Mapping[int, Answer], *wanted: Answer) -> list[int]:
    return [manifest_id for manifest_id, answer in answers.items() if answer in wanted]


def _queue(
    manifest_ids: Collection[int], facts: Mapping[int, Facts], request: TriggerRequest, *, now: datetime
) -> dict[int, Answer]:
    requests = [QueueRequest(manifest_id, Source.TRIGGER, now, input=request.input) for manifest_id in manifest_ids]
    opened = enqueue(requests, now=now)
    # In the middle of a graph it begins a run that does not reach the other parents of joins.
    inner = [id_ for id_ in opened if facts[id_].schedule_type.has_parent and not facts[id_].is_behind_parent]
    before_joins = Near.objects.leading_to_joins(inner)
    answers = {manifest_id: Answer.ALREADY_QUEUED for manifest_id in manifest_ids if manifest_id not in opened}
    return answers | dict.fromkeys(before_joins, Answer.QUEUED_BY_ITSELF)


def _bring_forward(manifest_ids: Collection[int], *, now: datetime) -> dict[int, Answer]:
    """Let waiting rows start at once; a manifest with a row that was dispatched just now has an active run."""
    moved = WorkQueue.objects.bring_forward(manifest_ids)
    # An operator asks for them now, so that joins wait for them although their manifests are disabled.
    arm(moved, now=now)
    return {manifest_id: Answer.WILL_RUN_AGAIN for manifest_id in manifest_ids if manifest_id not in moved}


def _store_request(manifest_ids: Collection[int], request: TriggerRequest, *, now: datetime) -> None:
    wanted_at = now + (request.delay or timedelta(0))
    wanted_input = None if request.input is OWN_INPUT else request.input
    lineage = Lineage.of_scope()
    rows = [
        {
            "manifest": id_,
            "trigger_at": wanted_at,
            "trigger_input": wanted_input,
            "trigger_causation_id": lineage.causation_id,
            "trigger_root_correlation_id": lineage.root_correlation_id,
        }
        for id_ in manifest_ids
    ]
    bulk.update(ManifestState, rows, key="manifest")
    arm(manifest_ids, now=now)
