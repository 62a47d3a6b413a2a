"""Used by the stages: set the alarm. No other module writes ``next_run_at``.

Reads:  the facts of manifests; the caller has locked their states.
Writes: ``next_run_at`` and ``occurrence_at``; with them the items that manifests became due for and, with ``clear``,
        the executions that a new queue row covers; whether joins wait for items that are due or queued.
Next:   the manager evaluates a manifest when its alarm is due.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from chainsched.conf import get_config
from chainsched.db import bulk
from chainsched.db.bulk import Columns
from chainsched.db.notify import MANAGER
from chainsched.domain import due
from chainsched.domain.due import Alarm, Facts, OpenItem
from chainsched.domain.items import Item
from chainsched.domain.obstacles import find_obstacle_to_row
from chainsched.domain.states import Source
from chainsched.domain.triggers import Answered
from chainsched.exceptions import InvalidSchedule
from chainsched.flow.announce import wake
from chainsched.flow.run.tokens import TokenLedger
from chainsched.models import ManifestState, WorkQueue
from chainsched.models.manifest_facts import load_facts
from chainsched.models.manifest_state import NOT_PUT_ASIDE

logger = logging.getLogger(__name__)


def arm(
    manifest_ids: Collection[int],
    *,
    now: datetime,
    is_fresh: bool = False,
    idle: Collection[int] = frozenset(),
    ledger: TokenLedger | None = None,
) -> int:
    """Give each manifest the alarm that its facts call for; returns how many alarms changed.

    Called by each stage that ends an open item, or lets an obstacle come or go; with it the part of items that wait
    comes and goes. ``is_fresh``: see ``due.alarm``. ``idle`` are the manifests with an open item that the caller has
    just ended, so that none needs to be looked for. Without a ``ledger`` of the caller's the notes are written here.
    """
    if not manifest_ids:
        return 0
    notes = TokenLedger() if ledger is None else ledger
    facts = load_facts(manifest_ids, idle=idle)
    changed = arm_known(facts, ledger=notes, now=now, is_fresh=is_fresh, of_rows=manifest_ids)
    if ledger is None:
        notes.write()
    return changed


def arm_known(
    known_facts: Sequence[Facts],
    *,
    ledger: TokenLedger,
    now: datetime,
    is_fresh: bool = False,
    of_rows: Collection[int] = frozenset(),
    newly_due: Collection[int] = frozenset(),
    queued_next: Collection[int] = frozenset(),
    states: Sequence[Columns] = (),
) -> int:
    """The same with facts that the caller has read under its locks.

    ``of_rows`` are the manifests with an obstacle that may have come or gone for a row that waits. ``newly_due`` are
    those that are due for another item by their facts than by their rows: both are written together. For
    ``queued_next``, which the caller queues in the same transaction, no manager is woken. ``states`` are further
    columns for the rows of some of them.
    """
    balance_parts(known_facts, of_rows=of_rows, ledger=ledger)
    facts = {known.manifest_id: known for known in known_facts}
    alarms = {manifest_id: _alarm(known, now=now, is_fresh=is_fresh) for manifest_id, known in facts.items()}
    changed = {id_: alarm for id_, alarm in alarms.items() if _is_changed(facts[id_], alarm)}
    moved = {id_: alarm for id_, alarm in alarms.items() if alarm.occurrence_at != facts[id_].occurrence_at}
    # The manager finds later alarms by itself at its next turn.
    soon = now + timedelta(seconds=get_config().manager_interval)
    is_soon = {id_ for id_, alarm in changed.items() if alarm.next_run_at is not None and alarm.next_run_at <= soon}
    if not is_soon <= {*queued_next}:
        wake(MANAGER)
    written = {id_ for rows in states for id_ in _write_states(rows, alarms)}
    left = changed | moved
    set_alarms({id_: left[id_] for id_ in left.keys() - written - {*newly_due}})
    _write_due({id_: (facts[id_], alarms[id_]) for id_ in newly_due})
    return len(changed)


def _is_changed(known: Facts, alarm: Alarm) -> bool:
    """Whether the alarm is another one; a manifest that is put aside is so no more when its alarm is set anew."""
    return alarm.next_run_at != known.next_run_at or known.is_put_aside


def balance_parts(facts: Sequence[Facts], *, of_rows: Collection[int], ledger: TokenLedger) -> None:
    """Let joins wait for exactly the items that may run: due ones and queued ones; active ones are always counted."""
    due = [
        (known, not known.is_stopped)
        for known in facts
        if known.due_item.tokens and not known.unknown and known.due_item.has_tokens is known.is_stopped
    ]
    for known, has_part in due:
        ledger.replace([known.due_item], replace(known.due_item, has_tokens=has_part))
    bulk.update(
        ManifestState,
        [{"manifest": known.manifest_id, "due_has_tokens": has_part} for known, has_part in due],
        key="manifest",
    )
    queued = {known.manifest_id: known for known in facts if known.open_item is OpenItem.QUEUED}
    rows = WorkQueue.objects.lock_items([id_ for id_ in of_rows if id_ in queued])
    changed = [(row, has_part) for row in rows if row.has_tokens is not (has_part := _has_part(row, queued))]
    for row, has_part in changed:
        ledger.replace([Item.of(row)], replace(Item.of(row), has_tokens=has_part))
    bulk.update(WorkQueue, [{"id": row.id, "has_tokens": has_part} for row, has_part in changed])


def _has_part(row: WorkQueue, facts: Mapping[int, Facts]) -> bool:
    return find_obstacle_to_row(facts[row.manifest_id or 0], Source(row.source)) is None


def set_alarms(alarms: Mapping[int, Alarm]) -> int:
    """Write these alarms; an empty one clears the alarm of its manifest."""
    rows = [
        {
            "manifest": manifest_id,
            "next_run_at": alarm.next_run_at,
            "occurrence_at": alarm.occurrence_at,
            **NOT_PUT_ASIDE,
        }
        for manifest_id, alarm in sorted(alarms.items())
    ]
    return len(bulk.update(ManifestState, rows, key="manifest"))


def _write_states(rows: Columns, alarms: Mapping[int, Alarm]) -> list[int]:
    """Write further columns to rows with their alarms; returns the manifests."""
    found = [alarms[manifest_id] for manifest_id in rows.listed["manifest"]]
    times = {
        "next_run_at": [alarm.next_run_at for alarm in found],
        "occurrence_at": [alarm.occurrence_at for alarm in found],
    }
    columns = Columns({**rows.listed, **times}, same={**rows.same, **NOT_PUT_ASIDE})
    return bulk.update_columns(ManifestState, columns, key="manifest")


def _write_due(due: Mapping[int, tuple[Facts, Alarm]]) -> None:
    """Write the items that manifests are due for, with their alarms."""
    rows = [
        {
            "manifest": manifest_id,
            "next_run_at": alarm.next_run_at,
            "occurrence_at": alarm.occurrence_at,
            "due_execution": known.due_execution,
            "covered_execution": known.covered_execution,
            "due_run": known.due_item.run_id,
            "due_tokens": list(known.due_item.tokens),
            "due_has_tokens": known.due_item.has_tokens,
            "due_is_again": known.due_item.is_again,
            **NOT_PUT_ASIDE,
        }
        for manifest_id, (known, alarm) in due.items()
    ]
    bulk.update(ManifestState, rows, key="manifest")


def put_aside(reasons: Mapping[int, str], *, now: datetime) -> int:
    """Clear the alarms of manifests that cannot be queued, with the reasons, so that no turn finds them again.

    The next change of an alarm lifts that: by a declaration, a trigger, an outcome, ``enable`` or ``try_again``.
    """
    return ManifestState.objects.put_aside(reasons, now=now)


def clear(manifest_ids: Collection[int], *, now: datetime, is_covering: bool, answered: Answered) -> None:
    """Clear the alarm of manifests that got a queue row; a covering row counts for all their due executions."""
    if manifest_ids:
        ManifestState.objects.note_queued(manifest_ids, now=now, is_covering=is_covering, answered=answered)


def _alarm(facts: Facts, *, now: datetime, is_fresh: bool) -> Alarm:
    try:
        return due.alarm(facts, now=now, is_fresh=is_fresh)
    except InvalidSchedule as error:
        logger.error("Manifest %s gets no alarm: its schedule cannot be computed. %s", facts.external_id, error)
        return Alarm()
