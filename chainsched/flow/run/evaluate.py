"""Stage 3 of 8: find what is due and have it queued.

Reads:  the alarms that have come, and the facts behind them.
Writes: through enqueue the queue rows; through arm the alarms of what may not be queued now.
Next:   the dispatcher starts what there is room for.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from chainsched.domain.due import Decision, Reason, decide
from chainsched.flow.run.alarm import Alarm, set_alarms
from chainsched.flow.run.enqueue import QueueRequest, enqueue
from chainsched.flow.transactions import TRANSIENT, in_parts, transact
from chainsched.models import ManifestState
from chainsched.models.manifest_facts import load_facts

logger = logging.getLogger(__name__)

PAGE = 1000


@dataclass(slots=True)
class Evaluated:
    """What a page came to."""

    seen: int = 0
    queued: int = 0
    passed_over: Counter[Reason] = field(default_factory=Counter)


def evaluate(*, now: datetime, limit: int = PAGE) -> Evaluated:
    """Judge one page of due manifests; each is queued, or disarmed or put off with its reason.

    The cost follows what is due, not what exists. Managers side by side pass over each other's rows.
    """
    page: list[int] = []
    try:
        with transact():
            page += ManifestState.objects.lock_due_page(now, limit=limit)
            return _evaluate_locked(page, now=now)
    except TRANSIENT:
        raise
    except Exception as error:  # noqa: BLE001 - whatever one manifest brings about must not cost the others
        logger.warning("A page of %d due manifests could not be queued (%r); trying smaller parts.", len(page), error)
    return _evaluate_in_parts(page, now=now)


def _evaluate_in_parts(manifest_ids: Sequence[int], *, now: datetime) -> Evaluated:
    """Find the row that cannot be queued by halving, put it aside, and queue the others."""

    def evaluate_part(part: Sequence[int]) -> Evaluated:
        with transact():
            return _evaluate_locked(ManifestState.objects.lock_due(part, now=now), now=now)

    parts = in_parts(manifest_ids, evaluate_part)
    for manifest_id, error in parts.refused:
        _put_aside(manifest_id, error)
    evaluated = Evaluated(seen=len(manifest_ids))
    for part in parts.results:
        evaluated.queued += part.queued
        evaluated.passed_over += part.passed_over
    return evaluated


def _evaluate_locked(locked: Sequence[int], *, now: datetime) -> Evaluated:
    """Queue or put off manifests whose states are locked."""
    decisions = {facts.manifest_id: decide(facts, now=now) for facts in load_facts(locked)}
    requests = [_queue_request(manifest_id, decision) for manifest_id, decision in decisions.items() if decision.is_yes]
    refused = {manifest_id: decision for manifest_id, decision in decisions.items() if not decision.is_yes}
    queued = enqueue(requests, now=now)
    set_alarms({id_: Alarm(decision.look_again_at, decision.occurrence_at) for id_, decision in refused.items()})
    for manifest_id, decision in refused.items():
        level = logging.ERROR if decision.reason is Reason.UNSCHEDULABLE else logging.DEBUG
        logger.log(level, "Manifest %d is not queued: %s.", manifest_id, decision.in_words)
    passed_over = Counter(decision.reason for decision in refused.values())
    return Evaluated(seen=len(locked), queued=len(queued), passed_over=passed_over)


def _queue_request(manifest_id: int, decision: Decision) -> QueueRequest:
    if decision.source is None or decision.scheduled_for is None:
        raise TypeError(f"manifest {manifest_id}: a refusal cannot be ordered")
    return QueueRequest(manifest_id=manifest_id, source=decision.source, scheduled_for=decision.scheduled_for)


def _put_aside(manifest_id: int, error: Exception) -> None:
    """Take the alarm from a row that cannot be queued, so that no turn meets it again until reconcile does."""
    logger.error("Manifest %d cannot be queued and is put aside: %s", manifest_id, error)
    with transact():
        ManifestState.objects.lock([manifest_id])
        set_alarms({manifest_id: Alarm()})
