"""Beside the stages: set the alarm. Nothing else writes ``next_run_at``.

Reads:  the facts of manifests whose states the caller has locked.
Writes: ``next_run_at``, and with ``spend`` what an opened queue row covers.
Next:   the manager looks at a manifest when its alarm comes.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from datetime import datetime

from chainsched.domain import due
from chainsched.domain.due import Facts
from chainsched.exceptions import InvalidSchedule
from chainsched.models import ManifestState, bulk
from chainsched.models.facts import load_facts

logger = logging.getLogger(__name__)


def arm(manifest_ids: Collection[int], *, now: datetime, is_fresh: bool = False) -> int:
    """Give each manifest the alarm that its facts call for; returns how many alarms changed.

    Called by whatever ends an open item or lifts an obstacle. ``is_fresh``: see ``due.alarm``.
    """
    if not manifest_ids:
        return 0
    facts = load_facts(manifest_ids)
    alarms = {known.manifest_id: _alarm(known, now=now, is_fresh=is_fresh) for known in facts}
    changed = {known.manifest_id for known in facts if alarms[known.manifest_id] != known.next_run_at}
    return set_alarms({manifest_id: alarms[manifest_id] for manifest_id in changed})


def set_alarms(alarms: Mapping[int, datetime | None]) -> int:
    """Write the alarms that a decision named; None disarms."""
    rows = [{"manifest": manifest_id, "next_run_at": at} for manifest_id, at in sorted(alarms.items())]
    return len(bulk.update(ManifestState, rows, key="manifest"))


def spend(manifest_ids: Collection[int], *, now: datetime, is_covering: bool) -> None:
    """Turn the alarm off for manifests that got a queue row; a covering one counts for what they were due for."""
    if manifest_ids:
        ManifestState.objects.spend(manifest_ids, now=now, is_covering=is_covering)


def _alarm(facts: Facts, *, now: datetime, is_fresh: bool) -> datetime | None:
    try:
        return due.alarm(facts, now=now, is_fresh=is_fresh)
    except InvalidSchedule as error:
        logger.error("Manifest %s gets no alarm: its schedule cannot be computed. %s", facts.external_id, error)
        return None
