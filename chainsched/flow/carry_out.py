"""Beside the stages: carry out errands, decisions about many dead letters, in batches.

Reads:  the oldest errand that is not over, and the next of its letters.
Writes: through resolve the decisions; the outcome of each letter, an entry in its history, and how far the errand is.
Next:   the dispatcher for retries, the manager for schedules that go on.
"""

from __future__ import annotations

import functools
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.auth import get_user_model

from chainsched.domain.answers import Resolved
from chainsched.domain.states import DeadLetterStatus, ErrandOutcome, ErrandVerb
from chainsched.domain.trail import entry
from chainsched.flow.resolve import Decision, acknowledge, retry
from chainsched.flow.transact import in_parts, transact
from chainsched.models import DeadLetter, Errand, ErrandLetter, bulk, trail

logger = logging.getLogger(__name__)

BATCH = 100
MAX_SAID = 200
ABANDONED = "the account of whoever asked for it is gone or closed"
BUSY = "the database was busy with it; ask again"


@dataclass(frozen=True, slots=True)
class Deed:
    """How a verb is done, and how it is told."""

    stage: Callable[..., Resolved]
    did: str
    said: str
    status: DeadLetterStatus


DEEDS: Mapping[str, Deed] = {
    ErrandVerb.RETRY: Deed(retry, "Retried", "queued once more", DeadLetterStatus.RETRIED),
    ErrandVerb.ACKNOWLEDGE: Deed(acknowledge, "Acknowledged", "acknowledged", DeadLetterStatus.ACKNOWLEDGED),
}


@dataclass(frozen=True, slots=True)
class Carried:
    """How many letters got their outcome, and whether there is more to do."""

    letters: int = 0
    has_more: bool = False


def carry_out(*, now: datetime, limit: int = BATCH) -> Carried:
    """Decide about the next letters of the oldest errand.

    A letter has its decision, its outcome and its entry in one commit, under the lock of the errand: whoever is
    killed leaves whole letters behind, and nobody decides about one twice.
    """
    errand = Errand.objects.open().order_by("id").first()
    if errand is None:
        return Carried()
    waiting = list(ErrandLetter.objects.waiting_of(errand.id).values_list("id", flat=True)[:limit])
    if not waiting:
        return Carried(has_more=_close(errand.id, now=now))
    parts = in_parts(waiting, functools.partial(_decide, errand.id, now=now))
    given_up = dict.fromkeys(parts.busy, BUSY) | {id_: _told(error) for id_, error in parts.refused}
    decided = sum(parts.results) + (_give_up(errand.id, given_up, now=now) if given_up else 0)
    return Carried(letters=decided, has_more=decided > 0)


def _close(errand_id: int, *, now: datetime) -> bool:
    """End an errand that has nothing left to do, unless somebody holds it."""
    with transact():
        if Errand.objects.lock_open(errand_id) is None or ErrandLetter.objects.waiting_of(errand_id).exists():
            return False
        return bool(Errand.objects.finish(errand_id, now=now))


def _decide(errand_id: int, ids: Sequence[int], *, now: datetime) -> int:
    """Decide about those of these letters that still wait; none if the errand is over or somebody else is at it."""
    with transact():
        errand = Errand.objects.lock_open(errand_id)
        if errand is None:
            return 0
        asker = _asker(errand)
        if asker is None:
            Errand.objects.cancel(errand_id, reason=ABANDONED, now=now)
            return 0
        Errand.objects.begin(errand_id, now=now)
        still = ErrandLetter.objects.waiting_of(errand_id).filter(id__in=ids)
        letter_ids = dict(still.values_list("dead_letter_id", "id"))
        before = DeadLetter.objects.in_bulk(letter_ids)
        deed = DEEDS[errand.verb]
        resolved = deed.stage(list(letter_ids), decision=Decision(by=asker, note=errand.note), now=now)
        _write_done(errand_id, {letter_ids[id_]: deed.said for id_ in resolved.done}, now=now)
        _write_skipped(errand_id, {letter_ids[id_]: why for id_, why in resolved.skipped.items()}, now=now)
        trail.note(_entries(before, resolved, deed=deed, errand=errand), user=asker)
    return len(letter_ids)


def _asker(errand: Errand) -> Any:
    """Who asked, as long as they have an account here; without one nobody stands for what is decided."""
    if errand.asked_by_id is None:
        return None
    user = get_user_model()._default_manager.filter(pk=errand.asked_by_id).first()  # noqa: SLF001
    return user if user is not None and user.is_active else None


def _write_done(errand_id: int, said: Mapping[int, str], *, now: datetime) -> None:
    written = _write_outcomes(said, ErrandOutcome.DONE, now=now)
    Errand.objects.count_up(errand_id, done=written, skipped=0)


def _write_skipped(errand_id: int, said: Mapping[int, str], *, now: datetime) -> int:
    written = _write_outcomes(said, ErrandOutcome.SKIPPED, now=now)
    Errand.objects.count_up(errand_id, done=0, skipped=written)
    return written


def _write_outcomes(said: Mapping[int, str], outcome: ErrandOutcome, *, now: datetime) -> int:
    rows = [{"id": id_, "outcome": outcome, "said": words[:MAX_SAID], "decided_at": now} for id_, words in said.items()]
    return len(bulk.update(ErrandLetter, rows, where={"outcome": ErrandOutcome.WAITING}))


def _entries(
    before: Mapping[int, DeadLetter], resolved: Resolved, *, deed: Deed, errand: Errand
) -> dict[str, list[DeadLetter]]:
    """What the histories of the letters say, by text; a letter that is gone has none."""
    entries: dict[str, list[DeadLetter]] = defaultdict(list)
    for id_, letter in before.items():
        after = letter.status if id_ in resolved.skipped else deed.status
        told = {"before": f"status {letter.status}", "after": f"status {after}", "told": f"errand {errand.id}"}
        said = resolved.skipped.get(id_, deed.said)
        entries[entry(deed.did, said, reason=errand.note, **told)].append(letter)
    return entries


def _give_up(errand_id: int, said: Mapping[int, str], *, now: datetime) -> int:
    """Leave out letters that could not be written, so that they do not keep the others waiting."""
    with transact():
        if Errand.objects.lock_open(errand_id) is None:
            return 0
        return _write_skipped(errand_id, said, now=now)


def _told(error: Exception) -> str:
    logger.error("A letter of an errand could not be decided about.", exc_info=error)
    return f"it could not be written: {type(error).__name__}"
