"""Operator action: decide about dead letters.

Reads:  the letters, and their failed executions.
Writes: the decisions; through enqueue the retries; the manifests' failure counts and alarms.
Next:   dispatch for a retry, the manager for the next occurrence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from chainsched import history
from chainsched.db.fields import with_users
from chainsched.domain.inputs import Unreadable
from chainsched.domain.items import Item
from chainsched.domain.results import Resolved
from chainsched.domain.states import BulkDecisionVerb, DeadLetterStatus, Source
from chainsched.flow.announce import announce_letters
from chainsched.flow.run.alarm import arm
from chainsched.flow.run.carried import find_cancelled
from chainsched.flow.run.enqueue import enqueue
from chainsched.flow.run.requests import Lineage, QueueRequest
from chainsched.flow.run.runs import rejoin_runs
from chainsched.flow.run.tokens import TokenLedger
from chainsched.flow.transactions import transact
from chainsched.models import DeadLetter, Manifest, ManifestState, Metadata
from chainsched.signals import dead_letter_resolved

GONE = "its manifest was removed; acknowledge it"
UNREADABLE = "its input cannot be read; acknowledge it, and trigger the manifest with an input that can"
RUN_CANCELLED = "its run was cancelled; acknowledge it, and trigger the manifest if it should run all the same"


@dataclass(frozen=True, slots=True)
class LetterDecision:
    """The user who decided, and the note that goes with it."""

    by: Any = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class LetterVerb:
    """How a verb is carried out, and its words in the history of a letter."""

    stage: Callable[..., Resolved]
    did: str
    outcome: str


def decide(
    verb: BulkDecisionVerb, letter_ids: Collection[int], *, decision: LetterDecision, now: datetime, details: str = ""
) -> Resolved:
    """Retry or acknowledge these letters and write their history; single and bulk decisions both come here."""
    letter_verb = LETTER_VERBS[verb]
    if decision.by is None:
        return letter_verb.stage(letter_ids, decision=decision, now=now)
    with transact():
        resolved = letter_verb.stage(letter_ids, decision=decision, now=now)
        # Read under the locks of the stage: another user may have decided about some of them first.
        letters = DeadLetter.objects.in_bulk(letter_ids)
        entries = _entries(letters, resolved, letter_verb=letter_verb, reason=decision.note, details=details)
        history.write(entries, user=decision.by)
    return resolved


def _entries(
    letters: Mapping[int, DeadLetter], resolved: Resolved, *, letter_verb: LetterVerb, reason: str, details: str
) -> dict[str, list[DeadLetter]]:
    """The letters of each history text; one that was skipped or deleted has no entry, as nothing was done to it."""
    entries: dict[str, list[DeadLetter]] = defaultdict(list)
    for letter in (letters[id_] for id_ in resolved.done if id_ in letters):
        entry = history.describe(
            letter_verb.did,
            letter_verb.outcome,
            before=f"status {DeadLetterStatus.AWAITING_INTERVENTION}",
            after=f"status {letter.status}",
            reason=reason,
            details=details,
        )
        entries[entry].append(letter)
    return entries


def retry(letter_ids: Collection[int], *, decision: LetterDecision, now: datetime) -> Resolved:
    """Queue another run for each letter, with the input, parent and root of the run that failed.

    The failure count starts at 0. A letter that is resolved already is skipped, and the result names the user.
    """
    with transact():
        letters, skipped, locked = _take(letter_ids)
        failed = Metadata.objects.in_bulk([letter.execution_id for letter in letters if letter.execution_id])
        refused = {letter.id: GONE for letter in letters if letter.manifest_id not in locked}
        refused |= _without_input(letters, failed)
        repeatable = {
            letter.id: failed[letter.execution_id or 0]
            for letter in letters
            if letter.id not in refused and letter.execution_id in failed
        }
        ledger = TokenLedger()
        items = rejoin_runs(repeatable, ledger=ledger)
        # After that: a run that is cancelled just now is seen as cancelled here, too, and no new run begins for it.
        refused |= _of_cancelled_runs({id_: run for id_, run in repeatable.items() if id_ not in items})
        known = {letter.id: letter for letter in letters if letter.id not in refused}
        requests = [
            _queue_request(letter, failed.get(letter.execution_id or 0), items.get(letter.id), now)
            for letter in known.values()
        ]
        opened = enqueue(requests, now=now, ledger=ledger)
        # A run that is cancelled in this moment opens no row, and its letter goes on waiting.
        unopened = {
            id_: items[id_] for id_, letter in known.items() if letter.manifest_id not in opened and id_ in items
        }
        refused |= dict.fromkeys(find_cancelled(unopened), RUN_CANCELLED)
        known = {id_: letter for id_, letter in known.items() if id_ not in refused}
        _decide(known, DeadLetterStatus.RETRIED, decision, now=now)
        # The letter no longer blocks the manifest: outcomes of its parents since then are its part again.
        arm(sorted({letter.manifest_id for letter in known.values() if letter.manifest_id}), now=now, ledger=ledger)
        ledger.write()
    return Resolved(tuple(known), {**skipped, **refused})


def acknowledge(letter_ids: Collection[int], *, decision: LetterDecision, now: datetime) -> Resolved:
    """Close letters without another run; the occurrence is consumed, and the schedule continues from now."""
    with transact():
        letters, skipped, locked = _take(letter_ids)
        found = {letter.id: letter for letter in letters}
        _decide(found, DeadLetterStatus.ACKNOWLEDGED, decision, now=now)
        manifest_ids = sorted({letter.manifest_id for letter in letters if letter.manifest_id in locked})
        ManifestState.objects.filter(manifest__in=manifest_ids).update(last_finished_run=now)
        Manifest.objects.mark_done(manifest_ids, now=now)
        arm(manifest_ids, now=now)
    return Resolved(tuple(found), skipped)


def _of_cancelled_runs(failed: Mapping[int, Metadata]) -> dict[int, str]:
    """The letters of executions that stood for cancelled runs alone: no rows are made for these any more."""
    return dict.fromkeys(find_cancelled({id_: Item.of(run) for id_, run in failed.items()}), RUN_CANCELLED)


def _without_input(letters: Sequence[DeadLetter], failed: Mapping[int, Metadata]) -> dict[int, str]:
    """The letters of runs that cannot be repeated, because their stored input cannot be read."""
    unreadable = {run.id for run in failed.values() if isinstance(run.input, Unreadable)}
    return {letter.id: UNREADABLE for letter in letters if letter.execution_id in unreadable}


def _take(letter_ids: Collection[int]) -> tuple[list[DeadLetter], dict[int, str], set[int]]:
    """Lock the manifests of the letters, then read: the letters that still wait, and why the others are skipped."""
    rows = DeadLetter.objects.filter(id__in=letter_ids)
    manifest_ids = {id_ for id_ in rows.values_list("manifest_id", flat=True) if id_ is not None}
    locked = set(ManifestState.objects.lock(manifest_ids))
    letters = list(rows.prefetch_related(with_users("resolved_by")).order_by("id"))
    awaiting = [letter for letter in letters if letter.status == DeadLetterStatus.AWAITING_INTERVENTION]
    skipped = dict.fromkeys(letter_ids, "there is no such dead letter")
    skipped |= {letter.id: _decided(letter) for letter in letters}
    for letter in awaiting:
        del skipped[letter.id]
    return awaiting, skipped, locked


def _decided(letter: DeadLetter) -> str:
    user = letter.resolved_by or "the system"
    at = f" at {letter.resolved_at:%Y-%m-%d %H:%M:%S %Z}" if letter.resolved_at else ""
    return f"already {letter.status} by {user}{at}"


def _decide(
    letters: Mapping[int, DeadLetter], status: DeadLetterStatus, decision: LetterDecision, *, now: datetime
) -> None:
    awaiting = DeadLetter.objects.awaiting().filter(id__in=list(letters))
    awaiting.update(status=status, resolved_at=now, resolved_by=decision.by, note=decision.note)
    manifest_ids = [letter.manifest_id for letter in letters.values()]
    ManifestState.objects.filter(manifest__in=manifest_ids).update(consecutive_failures=0)
    announce_letters(dead_letter_resolved, list(letters))


def _queue_request(letter: DeadLetter, failed: Metadata | None, item: Item | None, now: datetime) -> QueueRequest:
    """A repeat of the failed run; if retention removed that execution, a run with the manifest's own input."""
    manifest_id = letter.manifest_id or 0
    if failed is None:
        return QueueRequest(manifest_id, Source.DEAD_LETTER, now, lineage=Lineage(), dead_letter_id=letter.id)
    return QueueRequest(
        manifest_id,
        Source.DEAD_LETTER,
        failed.scheduled_for,
        input=failed.input,
        lineage=Lineage.of(failed),
        dead_letter_id=letter.id,
        item=item,
    )


LETTER_VERBS: Mapping[str, LetterVerb] = {
    BulkDecisionVerb.RETRY: LetterVerb(retry, "Retried", "queued once more"),
    BulkDecisionVerb.ACKNOWLEDGE: LetterVerb(acknowledge, "Acknowledged", "acknowledged"),
}
