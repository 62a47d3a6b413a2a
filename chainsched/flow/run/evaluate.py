"""Stage 3 of 8: find due manifests and queue them.

Reads:  the alarms that are due, and the facts behind them.
Writes: through enqueue the queue rows; through alarm the alarms of manifests that may not be queued now.
Next:   the dispatcher starts as many rows as the limits allow.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from chainsched.domain.due import Decision, Reason, decide
from chainsched.flow.run.alarm import Alarm, set_alarms
from chainsched.flow.run.enqueue import enqueue
from chainsched.flow.run.requests import QueueRequest
from chainsched.flow.transactions import TRANSIENT, in_parts, transact
from chainsched.models import ManifestState
from chainsched.models.manifest_facts import load_facts

logger = logging.getLogger(__name__)

PAGE = 1000


@dataclass(slots=True)
class Evaluated:
    """The results of a page."""

    seen: int = 0
    queued: int = 0
    passed_over: Counter[Reason] = field(default_factory=Counter)


def evaluate(*, now: datetime, limit: int = PAGE) -> Evaluated:
    """Decide about one page of due manifests; each is queued, or its alarm is cleared or moved, with the reason.

    The cost depends on the number of due manifests, not of all. Concurrent managers skip each other's rows.
    """
    page: list[int] = []
    try:
        with transact():
            page += ManifestState.objects.lock_due_page(now, limit=limit)
            return _evaluate_locked(page, now=now)
    except TRANSIENT:
        raise
    except Exception as error:  # noqa: BLE001 - no error of one manifest may keep the others from being queued
        logger.warning("A page of %d due manifests could not be queued (%r); trying smaller parts.", len(page), error)
    return _evaluate_in_parts(page, now=now)


def _evaluate_in_parts(manifest_ids: Sequence[int], *, now: datetime) -> Evaluated:
    """Find the row that cannot be queued by halving, clear its alarm, and queue the others."""

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
    """Queue or postpone manifests; their states are locked."""
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
        raise TypeError(f"manifest {manifest_id}: a refusal cannot be queued")
    return QueueRequest(manifest_id=manifest_id, source=decision.source, scheduled_for=decision.scheduled_for)


def _put_aside(manifest_id: int, error: Exception) -> None:
    """Clear the alarm of a manifest that cannot be queued, so that no turn finds it again until reconcile does."""
    logger.error("Manifest %d cannot be queued; its alarm is cleared: %s", manifest_id, error)
    with transact():
        ManifestState.objects.lock([manifest_id])
        set_alarms({manifest_id: Alarm()})
