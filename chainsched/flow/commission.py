"""Beside the stages: somebody decides about more dead letters than a request should; the engine takes it from there.

Reads:  nothing: the caller says which letters they may see and decide about.
Writes: an errand, the letters that it is about and an entry in its history; or that it is called off.
Next:   the clerk carries it out.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import datetime
from typing import Any

from chainsched.domain.states import ErrandVerb
from chainsched.domain.trail import entry
from chainsched.flow.announce import wake
from chainsched.flow.plan import chunks
from chainsched.flow.transact import transact
from chainsched.models import Errand, ErrandLetter, bulk, trail
from chainsched.models.notices import CLERK

logger = logging.getLogger(__name__)


def commission(
    verb: ErrandVerb, letter_ids: Collection[int], *, by: Any, note: str, selection: str, now: datetime
) -> Errand:
    """Ask for a decision about exactly these letters: the set is fixed now, with who asked and why."""
    with transact():
        errand = Errand.objects.create(
            verb=verb, asked_by=by, note=note, selection=selection, total=len(letter_ids), created_at=now
        )
        for part in chunks(sorted(letter_ids)):
            bulk.insert(ErrandLetter, [{"errand": errand.id, "dead_letter": id_} for id_ in part])
        asked = f"{verb} {len(letter_ids)} dead letters"
        after = f"status {errand.status}"
        trail.note({entry("Asked for", asked, before="nothing", after=after, reason=note): [errand]}, user=by)
        wake(CLERK)
    logger.info("%s asked to %s %d dead letters: errand %s.", by, verb, len(letter_ids), errand.id)
    return errand


def call_off(errand_id: int, *, reason: str, now: datetime) -> bool:
    """Let nothing more be done for an errand; what was decided stays. False if it was over."""
    with transact():
        is_stopped = bool(Errand.objects.cancel(errand_id, reason=reason, now=now))
    if is_stopped:
        logger.info("Errand %s was called off.", errand_id)
    return is_stopped
