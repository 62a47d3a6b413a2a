"""Stage 3 of 8: find due manifests and queue them.

Reads:  the alarms that are due, and the facts behind them.
Writes: through enqueue the queue rows; through alarm the alarms of manifests that may not, or cannot, be queued now.
Next:   dispatch starts as many rows as the limits allow.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from chainsched.db.locks import Patience
from chainsched.domain.due import Alarm, Decision, Reason, decide
from chainsched.flow.run.alarm import put_aside, set_alarms
from chainsched.flow.run.enqueue import JOB_COLUMNS, enqueue
from chainsched.flow.run.requests import QueueRequest
from chainsched.flow.transactions import in_parts, in_words, is_about_rows, report_unwritable, transact
from chainsched.models import ManifestState
from chainsched.models.manifest_facts import load_facts_with

logger = logging.getLogger(__name__)

PAGE = 1000


@dataclass(slots=True)
class Evaluated:
    """The results of a page: how many manifests it had, were queued, put aside, or stay due because they are held."""

    seen: int = 0
    queued: int = 0
    put_aside: int = 0
    left: int = 0
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
    except Exception as error:
        if not page or not is_about_rows(error):
            raise
        logger.warning("%d due manifests could not be queued (%s); trying smaller parts.", len(page), in_words(error))
    return _evaluate_in_parts(page, now=now)


def _evaluate_in_parts(manifest_ids: Sequence[int], *, now: datetime) -> Evaluated:
    """Find the manifests that cannot be queued by halving, put them aside, and queue the others."""

    def evaluate_part(part: Sequence[int]) -> Evaluated:
        with transact(Patience.SHORT):
            return _evaluate_locked(ManifestState.objects.lock_due(part, now=now), now=now)

    parts = in_parts(manifest_ids, evaluate_part)
    evaluated = Evaluated(seen=len(manifest_ids), put_aside=_put_aside(parts.unwritable, now=now))
    evaluated.left = len(parts.refused) + len(parts.busy) - evaluated.put_aside
    for part in parts.results:
        evaluated.queued += part.queued
        evaluated.passed_over += part.passed_over
    return evaluated


def _evaluate_locked(locked: Sequence[int], *, now: datetime) -> Evaluated:
    """Queue or postpone manifests; their states are locked."""
    found, jobs = load_facts_with(JOB_COLUMNS, locked)
    decisions = {facts.manifest_id: decide(facts, now=now) for facts in found}
    requests = [_queue_request(manifest_id, decision) for manifest_id, decision in decisions.items() if decision.is_yes]
    refused = {manifest_id: decision for manifest_id, decision in decisions.items() if not decision.is_yes}
    queued = enqueue(requests, now=now, known=jobs)
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


def _put_aside(unwritable: Sequence[tuple[int, Exception]], *, now: datetime) -> int:
    """Put manifests that cannot be queued aside, so that no turn finds them again until something changes."""
    report_unwritable("Manifest %d cannot be queued and is put aside: %s", unwritable)
    reasons = {manifest_id: in_words(error) for manifest_id, error in unwritable}

    def write(part: Sequence[int]) -> int:
        with transact(Patience.SHORT):
            still_due = ManifestState.objects.lock_due(part, now=now)
            return put_aside({manifest_id: reasons[manifest_id] for manifest_id in still_due}, now=now)

    parts = in_parts(sorted(reasons), write)
    report_unwritable("Manifest %d cannot be put aside, either, and stays due: %s", parts.unwritable)
    return sum(parts.results)
