"""Used by the stages: set the alarm. No other module writes ``next_run_at``.

Reads:  the facts of manifests; the caller has locked their states.
Writes: ``next_run_at`` and ``occurrence_at``, and with ``clear`` the executions that a new queue row covers.
Next:   the manager evaluates a manifest when its alarm is due.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from chainsched.conf import get_config
from chainsched.db import bulk
from chainsched.db.notify import MANAGER
from chainsched.domain import due
from chainsched.domain.due import Facts
from chainsched.exceptions import InvalidSchedule
from chainsched.flow.announce import wake
from chainsched.models import ManifestState
from chainsched.models.manifest_facts import load_facts

logger = logging.getLogger(__name__)


def arm(
    manifest_ids: Collection[int], *, now: datetime, is_fresh: bool = False, idle: Collection[int] = frozenset()
) -> int:
    """Give each manifest the alarm that its facts call for; returns how many alarms changed.

    Called by each stage that ends an open item or removes an obstacle. ``is_fresh``: see ``due.alarm``. ``idle`` are
    the manifests with an open item that the caller has just ended, so that none needs to be looked for.
    """
    if not manifest_ids:
        return 0
    facts = {known.manifest_id: known for known in load_facts(manifest_ids, idle=idle)}
    alarms = {manifest_id: _alarm(known, now=now, is_fresh=is_fresh) for manifest_id, known in facts.items()}
    changed = {id_: alarm for id_, alarm in alarms.items() if alarm.next_run_at != facts[id_].next_run_at}
    moved = {id_: alarm for id_, alarm in alarms.items() if alarm.occurrence_at != facts[id_].occurrence_at}
    # The manager finds later alarms by itself at its next turn.
    soon = now + timedelta(seconds=get_config().manager_interval)
    if any(alarm.next_run_at is not None and alarm.next_run_at <= soon for alarm in changed.values()):
        wake(MANAGER)
    set_alarms(changed | moved)
    return len(changed)


class Alarm(NamedTuple):
    """When the manager evaluates the manifest next, and the time of the schedule's own next occurrence."""

    next_run_at: datetime | None = None
    occurrence_at: datetime | None = None


def set_alarms(alarms: Mapping[int, Alarm]) -> int:
    """Write these alarms; an empty one clears the alarm of its manifest."""
    rows = [
        {"manifest": manifest_id, "next_run_at": alarm.next_run_at, "occurrence_at": alarm.occurrence_at}
        for manifest_id, alarm in sorted(alarms.items())
    ]
    return len(bulk.update(ManifestState, rows, key="manifest"))


def clear(manifest_ids: Collection[int], *, now: datetime, is_covering: bool) -> None:
    """Clear the alarm of manifests that got a queue row; a covering row counts for all their due executions."""
    if manifest_ids:
        ManifestState.objects.note_queued(manifest_ids, now=now, is_covering=is_covering)


def _alarm(facts: Facts, *, now: datetime, is_fresh: bool) -> Alarm:
    try:
        next_run_at = due.alarm(facts, now=now, is_fresh=is_fresh)
    except InvalidSchedule as error:
        logger.error("Manifest %s gets no alarm: its schedule cannot be computed. %s", facts.external_id, error)
        return Alarm()
    with contextlib.suppress(InvalidSchedule):
        return Alarm(next_run_at, due.occurrence(facts, now=now, is_fresh=is_fresh))
    return Alarm(next_run_at)
