"""Part of fsck: queue rows that are parked for a reason that is gone.

Reads:  parked rows, their manifests and groups, and the live processes.
Writes: with ``repair`` their places in the line.
Next:   dispatch.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from chainsched.conf import get_config
from chainsched.db.locks import Patience
from chainsched.db.notify import DISPATCHER
from chainsched.domain.parking import ParkedFor
from chainsched.domain.results import Finding
from chainsched.flow.announce import wake
from chainsched.flow.transactions import transact
from chainsched.models import Metadata, Process, WorkQueue, parked_rows

# So many turns of a dispatcher may pass before it must have let a row into line.
PATIENT_TURNS = 2


def parked_rows_have_a_reason(check: str, *, now: datetime, repair: bool) -> Iterator[Finding]:
    """No queue row is kept out of the line by a reason that does not hold any more."""
    before = now - timedelta(seconds=PATIENT_TURNS * get_config().dispatcher_interval)
    pools = Process.objects.alive(beaten_since=now - timedelta(seconds=get_config().process_expiry)).filter(
        started_at__lte=before
    )
    without_reason = {
        ParkedFor.TIME: parked_rows.due(before),
        ParkedFor.DISABLED: parked_rows.without_obstacle(),
        ParkedFor.GROUP_FULL: parked_rows.of_groups_with_room(Metadata.objects.active_by_group()),
    }
    found = {row: reason for reason, rows in without_reason.items() for row in _shown(rows)}
    found |= {row: ParkedFor.NO_WORKER for pool in pools.pools() for row in _shown(parked_rows.taken_by(pool))}
    repaired = _release([row.id for row in found]) if repair and found else 0
    for row, reason in sorted(found.items(), key=lambda each: each[0].id):
        evidence = f"it is parked ({reason.name.lower().replace('_', ' ')}), and the reason is gone"
        yield Finding(check, f"queue row {row.id} of {row.name}", evidence, is_repaired=repaired > 0)


def _shown(rows: parked_rows.Rows) -> list[WorkQueue]:
    return list(rows.only("manifest_external_id", "workflow")[: parked_rows.PAGE])


def _release(row_ids: list[int]) -> int:
    with transact(Patience.SHORT):
        released = parked_rows.release(parked_rows.named(row_ids), limit=len(row_ids))
        wake(DISPATCHER)
    return released
