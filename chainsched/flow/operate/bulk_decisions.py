"""Operator action: decide about more dead letters than fit one request; a scheduler works through them in batches.

Reads:  the oldest unfinished bulk decision, and the next of its letters. The operator's page chose the letters.
Writes: the bulk decision and its letters; through resolve the decisions; the outcome of each letter and its history.
Next:   dispatch for retries, the manager for schedules that continue.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.auth import get_user_model

from chainsched import history
from chainsched.db import bulk
from chainsched.db.chunks import chunks
from chainsched.db.notify import BULK_DECISIONS
from chainsched.domain.states import BulkDecisionOutcome, BulkDecisionVerb
from chainsched.flow.announce import wake
from chainsched.flow.operate.resolve import LETTER_VERBS, LetterDecision, decide
from chainsched.flow.transactions import in_parts, transact
from chainsched.models import BulkDecision, BulkDecisionItem

logger = logging.getLogger(__name__)

BATCH = 100
MAX_OUTCOME_TEXT = 200
USER_GONE = "the account of the user who asked for it was deleted or deactivated"
BUSY = "another transaction holds its rows; ask again"


@dataclass(frozen=True, slots=True)
class CarriedOut:
    """How many letters got their outcome, and whether more are waiting."""

    letters: int = 0
    has_more: bool = False


def request_bulk_decision(
    verb: BulkDecisionVerb, letter_ids: Collection[int], *, by: Any, note: str, selection: str, now: datetime
) -> BulkDecision:
    """Ask for a decision about exactly these letters: the set is stored now, with the user and the reason."""
    with transact():
        bulk_decision = BulkDecision.objects.create(
            verb=verb, asked_by=by, note=note, selection=selection, total=len(letter_ids), created_at=now
        )
        for part in chunks(sorted(letter_ids)):
            bulk.insert(BulkDecisionItem, [{"bulk_decision": bulk_decision.id, "dead_letter": id_} for id_ in part])
        asked = f"{verb} {len(letter_ids)} dead letters"
        after = f"status {bulk_decision.status}"
        history.write(
            {history.describe("Asked for", asked, before="nothing", after=after, reason=note): [bulk_decision]}, user=by
        )
        wake(BULK_DECISIONS)
    logger.info("%s asked to %s %d dead letters: bulk decision %s.", by, verb, len(letter_ids), bulk_decision.id)
    return bulk_decision


def cancel_bulk_decision(bulk_decision_id: int, *, reason: str, now: datetime) -> bool:
    """Stop a bulk decision; decisions that were made stay. False if it was over."""
    with transact():
        is_stopped = bool(BulkDecision.objects.cancel(bulk_decision_id, reason=reason, now=now))
    if is_stopped:
        logger.info("Bulk decision %s was cancelled.", bulk_decision_id)
    return is_stopped


def carry_out(*, now: datetime, limit: int = BATCH) -> CarriedOut:
    """Decide about the next letters of the oldest bulk decision.

    A letter gets its decision, its outcome and its history entry in one commit, under the lock of the bulk decision: a
    scheduler that is killed leaves no letter half decided, and no letter is decided about twice.
    """
    bulk_decision = BulkDecision.objects.open().known().order_by("id").first()
    if bulk_decision is None:
        return CarriedOut()
    waiting = list(BulkDecisionItem.objects.waiting_of(bulk_decision.id).values_list("id", flat=True)[:limit])
    if not waiting:
        return CarriedOut(has_more=_close(bulk_decision.id, now=now))
    parts = in_parts(waiting, functools.partial(_decide, bulk_decision.id, now=now))
    unwritten = dict.fromkeys((id_ for id_, _ in parts.busy), BUSY) | {
        id_: _failure_text(error) for id_, error in parts.refused
    }
    decided = sum(parts.results) + (_skip_unwritable(bulk_decision.id, unwritten, now=now) if unwritten else 0)
    return CarriedOut(letters=decided, has_more=decided > 0)


def _close(bulk_decision_id: int, *, now: datetime) -> bool:
    """End a bulk decision that has no letters left, unless another scheduler holds its lock."""
    with transact():
        if (
            BulkDecision.objects.lock_open(bulk_decision_id) is None
            or BulkDecisionItem.objects.waiting_of(bulk_decision_id).exists()
        ):
            return False
        return bool(BulkDecision.objects.finish(bulk_decision_id, now=now))


def _decide(bulk_decision_id: int, ids: Sequence[int], *, now: datetime) -> int:
    """Decide about those of these letters that still wait; none if it is over or another scheduler holds its lock."""
    with transact():
        bulk_decision = BulkDecision.objects.lock_open(bulk_decision_id)
        if bulk_decision is None:
            return 0
        asker = _asker(bulk_decision)
        if asker is None:
            BulkDecision.objects.cancel(bulk_decision_id, reason=USER_GONE, now=now)
            return 0
        BulkDecision.objects.begin(bulk_decision_id, now=now)
        still = BulkDecisionItem.objects.waiting_of(bulk_decision_id).filter(id__in=ids)
        letter_ids = dict(still.values_list("dead_letter_id", "id"))
        verb = BulkDecisionVerb(bulk_decision.verb)
        decision = LetterDecision(by=asker, note=bulk_decision.note)
        details = f"bulk decision {bulk_decision.id}"
        resolved = decide(verb, list(letter_ids), decision=decision, now=now, details=details)
        _write_done(bulk_decision_id, {letter_ids[id_]: LETTER_VERBS[verb].outcome for id_ in resolved.done}, now=now)
        _write_skipped(bulk_decision_id, {letter_ids[id_]: why for id_, why in resolved.skipped.items()}, now=now)
    return len(letter_ids)


def _asker(bulk_decision: BulkDecision) -> Any:
    """The user who asked; None if the account was deleted or deactivated, so that no user answers for the decision."""
    if bulk_decision.asked_by_id is None:
        return None
    user = get_user_model()._default_manager.filter(pk=bulk_decision.asked_by_id).first()  # noqa: SLF001
    return user if user is not None and user.is_active else None


def _write_done(bulk_decision_id: int, texts: Mapping[int, str], *, now: datetime) -> None:
    written = _write_outcomes(texts, BulkDecisionOutcome.DONE, now=now)
    BulkDecision.objects.count_up(bulk_decision_id, done=written, skipped=0)


def _write_skipped(bulk_decision_id: int, texts: Mapping[int, str], *, now: datetime) -> int:
    written = _write_outcomes(texts, BulkDecisionOutcome.SKIPPED, now=now)
    BulkDecision.objects.count_up(bulk_decision_id, done=0, skipped=written)
    return written


def _write_outcomes(texts: Mapping[int, str], outcome: BulkDecisionOutcome, *, now: datetime) -> int:
    rows = [
        {"id": id_, "outcome": outcome, "explanation": text[:MAX_OUTCOME_TEXT], "decided_at": now}
        for id_, text in texts.items()
    ]
    return len(bulk.update(BulkDecisionItem, rows, where={"outcome": BulkDecisionOutcome.WAITING}))


def _skip_unwritable(bulk_decision_id: int, texts: Mapping[int, str], *, now: datetime) -> int:
    """Skip letters that could not be written, so that they do not keep the others waiting."""
    with transact():
        if BulkDecision.objects.lock_open(bulk_decision_id) is None:
            return 0
        return _write_skipped(bulk_decision_id, texts, now=now)


def _failure_text(error: Exception) -> str:
    logger.error("A dead letter of a bulk decision could not be written and is skipped.", exc_info=error)
    return f"it could not be written: {type(error).__name__}"
