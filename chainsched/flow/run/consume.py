"""Part of the manager's turn: dependents take the notes that outcomes left for them.

Reads:  DueNotes; the facts of the dependents, under the locks on their states.
Writes: rows that wait for their first attempt take newer outcomes over; through alarm, what dependents are due for.
Next:   evaluate queues the manifests that are due.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from chainsched.db import bulk
from chainsched.db.bulk import Columns
from chainsched.db.id_in import id_in
from chainsched.db.notify import MANAGER
from chainsched.domain.due import Facts, OpenItem, decide
from chainsched.domain.items import NO_ITEM, Item
from chainsched.domain.obstacles import find_obstacle, find_obstacle_to_row
from chainsched.domain.states import QueueStatus, Source
from chainsched.flow.announce import wake
from chainsched.flow.run.alarm import arm_known
from chainsched.flow.run.carried import item_columns
from chainsched.flow.run.enqueue import JOB_COLUMNS, enqueue
from chainsched.flow.run.requests import QueueRequest, lineages_of
from chainsched.flow.run.tokens import TokenLedger
from chainsched.flow.transactions import in_parts, is_own_transaction, transact
from chainsched.models import DueNote, ManifestState, WorkQueue
from chainsched.models.manifest_facts import load_facts_with
from chainsched.models.manifest_state import NOT_PUT_ASIDE

logger = logging.getLogger(__name__)

PAGE = 1000


@dataclass(frozen=True, slots=True)
class Due:
    """An outcome that a dependent is due for; without an execution only a sign to look at its obstacles again."""

    child_id: int
    parent_execution_id: int = 0
    item: Item = NO_ITEM


@dataclass(frozen=True, slots=True)
class Ends:
    """Manifests with open items that the caller has just ended, and that are armed with what is delivered.

    ``facts`` are those of the manifests that have nothing open now, and ``states`` what is written to their rows with
    the alarms; ``stopped`` are manifests with a dead letter.
    """

    facts: Sequence[Facts] = ()
    states: Sequence[Columns] = ()
    stopped: Collection[int] = frozenset()


NO_ENDS = Ends()


def deliver(
    dues: Sequence[Due], *, ledger: TokenLedger, now: datetime, ends: Ends = NO_ENDS, opens: bool = False
) -> None:
    """Let dependents become due at once if their states are free and no note waits for them; leave notes otherwise.

    Waits for no lock. In a caller's transaction, which may stay open for long, all get notes. The tokens of the items
    are taken here. With ``opens`` those that may run now are queued as well, as
    the manager would do it in its next turn.
    """
    free = _lock_receivers({due.child_id for due in dues})
    for due in dues:
        ledger.take(due.item.held)
    apply([due for due in dues if due.child_id in free], ledger=ledger, now=now, ends=ends, opens=opens)
    leave_notes([due for due in dues if due.child_id not in free])


def _lock_receivers(child_ids: Collection[int]) -> set[int]:
    """Lock the dependents that can become due at once; an older note of another comes first."""
    if not child_ids or not is_own_transaction():
        return set()
    free = set(ManifestState.objects.lock_free(child_ids))
    return free - DueNote.objects.waiting_for(free)


def leave_notes(dues: Sequence[Due]) -> None:
    """Leave notes for dependents, as the caller may not wait for their states; their tokens are taken already."""
    rows = [
        {
            "child_id": due.child_id,
            "run_id": due.item.run_id,
            "parent_execution_id": due.parent_execution_id,
            "tokens": list(due.item.tokens),
            "is_again": due.item.is_again,
        }
        for due in dues
    ]
    bulk.insert(DueNote, rows)
    if rows:
        wake(MANAGER)


def look_again(manifest_ids: Sequence[int], *, ledger: TokenLedger, now: datetime) -> None:
    """Let manifests notice that an obstacle came or went: at once where their states are free, else by a note."""
    deliver([Due(manifest_id) for manifest_id in manifest_ids], ledger=ledger, now=now)


def consume(*, now: datetime, limit: int = PAGE) -> int:
    """Take all notes to dependents with free states, page by page; returns how many."""
    taken, after = 0, 0
    while page := DueNote.objects.page(after=after, limit=limit):
        parts = in_parts(page, lambda part: _consume_part(part, now=now))
        for (note_id, child_id), error in parts.refused:
            logger.error("The note %d to manifest %d cannot be taken: %s", note_id, child_id, error)
        taken += sum(parts.results)
        after = page[-1][0]
    return taken


def _consume_part(page: Sequence[tuple[int, int]], *, now: datetime) -> int:
    ledger = TokenLedger()
    with transact():
        children = {child_id for _, child_id in page}
        locked = set(ManifestState.objects.lock_free(children))
        known = set(ManifestState.objects.filter(id_in(manifest=children)).values_list("manifest_id", flat=True))
        notes = DueNote.objects.take([id_ for id_, child_id in page if child_id in locked or child_id not in known])
        dues = [
            Due(child_id, execution_id, Item(run_id, tuple(tokens), bool(tokens), is_again))
            for child_id, run_id, execution_id, tokens, is_again in notes
        ]
        apply([due for due in dues if due.child_id in locked], ledger=ledger, now=now)
        for due in dues:
            # The manifest was removed: no item comes of the note.
            if due.child_id not in locked:
                ledger.give_back(due.item.held)
        ledger.write()
    return len(notes)


def apply(
    dues: Sequence[Due], *, ledger: TokenLedger, now: datetime, ends: Ends = NO_ENDS, opens: bool = False
) -> None:
    """Let dependents become due; the caller holds their states and has taken the tokens.

    A row that still waits for its first attempt takes the newer outcome over, and so does an item that is due already:
    it then stands for the runs of both. Otherwise the outcome is kept until the manifest is free. With ``opens``
    dependents that may run now are queued.
    """
    by_child: dict[int, list[Due]] = defaultdict(list)
    for due in dues:
        by_child[due.child_id].append(due)
    facts = {known.manifest_id: known for known in ends.facts}
    found, jobs = load_facts_with(JOB_COLUMNS if opens else (), {*by_child, *ends.stopped} - facts.keys())
    facts |= {known.manifest_id: known for known in found}
    if not facts:
        return
    # Left to a newer version, which knows all values of the dependent; the manager passes over such notes.
    strange = {id_ for id_ in by_child if id_ in facts and facts[id_].unknown}
    leave_notes([due for due in dues if due.child_id in strange])
    by_child = {id_: given for id_, given in by_child.items() if id_ not in strange}
    told = {id_: [due for due in given if due.parent_execution_id] for id_, given in by_child.items() if id_ in facts}
    news = {id_: outcomes for id_, outcomes in told.items() if outcomes}
    # An item that is due already takes a newer outcome over; else a row that waits does.
    waiting = [id_ for id_ in news if facts[id_].open_item is OpenItem.QUEUED and not facts[id_].is_behind_parent]
    rows = WorkQueue.objects.lock_for_newer_outcome(waiting)
    moved = [_into_row(rows[id_], facts[id_], news[id_], ledger=ledger) for id_ in news if id_ in rows]
    for row in moved:
        known = facts[row.manifest_id]
        facts[row.manifest_id] = known._replace(due_execution=row.execution_id, covered_execution=row.execution_id)
    for id_, outcomes in news.items():
        if id_ not in rows:
            facts[id_] = _into_due(facts[id_], outcomes, ledger=ledger)
    _write_rows(moved)
    looked = [id_ for id_, given in by_child.items() if len(given) > len(news.get(id_, ()))]
    requests = _requests([facts[id_] for id_ in news if opens and id_ not in rows], now=now)
    arm_known(
        list(facts.values()),
        ledger=ledger,
        now=now,
        of_rows={*looked, *ends.stopped},
        newly_due=news,
        states=ends.states,
        queued_next={request.manifest_id for request in requests},
    )
    queued = [request.manifest_id for request in requests if request.manifest_id in jobs]
    enqueue(requests, now=now, ledger=ledger, known={id_: jobs[id_] | _due_columns(facts[id_]) for id_ in queued})


def _due_columns(known: Facts) -> dict[str, Any]:
    """What is written of a due item, as enqueue reads it."""
    item = known.due_item
    return {
        "state__due_execution": known.due_execution,
        "state__covered_execution": known.covered_execution,
        "state__due_run": item.run_id,
        "state__due_tokens": item.tokens,
        "state__due_has_tokens": item.has_tokens,
        "state__due_is_again": item.is_again,
    }


def _requests(due: Sequence[Facts], *, now: datetime) -> list[QueueRequest]:
    """Requests for those that run for their parents' outcomes now; triggered ones are left to the manager."""
    decisions = {known.manifest_id: decide(known, now=now) for known in due}
    return [
        QueueRequest(manifest_id, Source.DEPENDENCY, decision.scheduled_for or now)
        for manifest_id, decision in decisions.items()
        if decision.source is Source.DEPENDENCY
    ]


@dataclass(frozen=True, slots=True)
class _Moved:
    """A waiting row that took outcomes over: the newest execution that it runs for, and its item."""

    row_id: int
    manifest_id: int
    execution_id: int
    item: Item


def _into_row(row: WorkQueue, known: Facts, dues: Sequence[Due], *, ledger: TokenLedger) -> _Moved:
    item, execution_id = Item.of(row), row.parent_execution_id or 0
    has_part = find_obstacle_to_row(known, Source(row.source)) is None
    for due in dues:
        joined = item.joined(due.item, has_tokens=has_part)
        ledger.replace([item, due.item], joined)
        item, execution_id = joined, max(execution_id, due.parent_execution_id)
    return _Moved(row.id, known.manifest_id, execution_id, item)


def _into_due(known: Facts, dues: Sequence[Due], *, ledger: TokenLedger) -> Facts:
    item, execution_id = known.due_item, known.due_execution if known.is_behind_parent else 0
    is_stopped = find_obstacle(known) is not None or known.open_item is OpenItem.DEAD_LETTER
    for due in dues:
        joined = item.joined(due.item, has_tokens=not is_stopped and bool(item.tokens or due.item.tokens))
        ledger.replace([item, due.item], joined)
        item, execution_id = joined, max(execution_id, due.parent_execution_id)
    # A join may fire for an older execution than the one it ran for last: two runs need not end in their order.
    covered = known.covered_execution if execution_id > known.covered_execution else 0
    return known._replace(due_execution=execution_id, covered_execution=covered, due_item=item)


def _write_rows(moved: Sequence[_Moved]) -> None:
    lineages = lineages_of(row.execution_id for row in moved)
    rows = [
        {
            "id": row.row_id,
            "parent_execution": row.execution_id,
            "root_execution": lineages[row.execution_id].root_execution_id,
            "causation_id": lineages[row.execution_id].causation_id,
            "root_correlation_id": lineages[row.execution_id].root_correlation_id,
            **item_columns(row.item),
            **NOT_PUT_ASIDE,
        }
        for row in moved
    ]
    bulk.update(WorkQueue, rows, where={"status": QueueStatus.QUEUED})
