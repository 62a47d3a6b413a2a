"""Beside dispatch: keep rows that may not start out of the line, and let them in when they may.

Reads:  the head of the line, the parked rows, the processes that take rows, and the limits of full groups.
Writes: whether queue rows are parked, and why.
Next:   dispatch, which looks at the line only.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import connections
from django.db.models import QuerySet

from chainsched.conf import get_config
from chainsched.db import locks
from chainsched.db.chunks import chunks
from chainsched.db.locks import Patience
from chainsched.db.notify import DISPATCHER, WORKER
from chainsched.domain.parking import ParkedFor, Waiting, find_parkable, places_in
from chainsched.domain.routing import Pool
from chainsched.flow.announce import wake
from chainsched.flow.run.dispatch import TurnIsHeld, hold_turn
from chainsched.flow.transactions import index_reads, transact
from chainsched.models import ManifestState, Metadata, parked_rows
from chainsched.models.parked_rows import HEAD, PAGE

logger = logging.getLogger(__name__)


def park(pools: Collection[Pool], *, now: datetime) -> int:
    """Park the rows at the head of the line that may not start; returns how many. The next page follows in a new call.

    ``pools`` are those who take rows for themselves at present. Without any nobody looks at the line.
    """
    if not pools:
        return 0
    blocked = _find_blocked(pools, now=now)
    # Rows of groups that have room are among them: for these no lock is taken.
    if not blocked or not _find_parkable(blocked, pools, now=now):
        return 0
    try:
        return _park(blocked, pools, now=now)
    except TurnIsHeld as error:
        logger.debug("No rows are parked for now: %s.", error)
        return 0


def _find_blocked(pools: Collection[Pool], *, now: datetime) -> list[Waiting]:
    """The rows of the first page that may be unable to start; none if those at the head are all free."""
    with index_reads():
        locks.read_in_index_order(connections[get_config().database])
        if not parked_rows.find_blocked(pools, now=now, limit=HEAD):
            return []
        return parked_rows.find_blocked(pools, now=now)


def _park(blocked: Sequence[Waiting], pools: Collection[Pool], *, now: datetime) -> int:
    """Look again under the locks, and park.

    The lock of dispatch keeps still what is active. The states of their manifests are locked by all that changes
    whether they may run: an operator who enables one comes before this, or waits and finds its row parked.
    """
    with transact(Patience.SHORT):
        hold_turn(now)
        owners = {row.manifest_id for row in blocked if row.manifest_id is not None}
        free = set(ManifestState.objects.lock_free(sorted(owners)))
        ids = [row.row_id for row in blocked if row.manifest_id is None or row.manifest_id in free]
        line = parked_rows.find_blocked(pools, now=now, only=ids)
        reasons = _find_parkable(line, pools, now=now)
        parked = parked_rows.park(reasons)
    _report_unknown([row for row in line if reasons.get(row.row_id) is ParkedFor.NO_WORKER])
    return parked


def _find_parkable(line: Sequence[Waiting], pools: Collection[Pool], *, now: datetime) -> dict[int, ParkedFor]:
    return find_parkable(line, pools=pools, active=Metadata.objects.active_by_group(), now=now)


def _report_unknown(rows: Sequence[Waiting]) -> None:
    for (workflow, queue), number in Counter((row.workflow, row.queue) for row in rows).items():
        logger.warning(
            "No live process takes jobs of workflow %s from queue %s: %d queue rows wait until one does.",
            workflow,
            queue,
            number,
        )


def release(pools: Collection[Pool], *, now: datetime) -> int:
    """Let parked rows into line: those due, those that one of these takes, those whose group has room; how many."""
    gone = parked_rows.find_releasable(pools, now=now)
    released = release_due(now=now) if ParkedFor.TIME in gone else 0
    if ParkedFor.NO_WORKER in gone:
        released += sum(release_for(pool) for pool in pools)
    if ParkedFor.GROUP_FULL in gone:
        limits = parked_rows.limits_of_parked()
        places = places_in(limits, active=Metadata.objects.active_by_group(), page=PAGE)
        # The rows that each of them takes: others of the group may come first and wait for a busy process.
        released += sum(_let_in(places, pool) for pool in pools) if places else 0
    return released


def release_due(*, now: datetime) -> int:
    """Let rows into line that were parked until a time that has come."""
    return _release(parked_rows.due(now))


def release_for(pool: Pool) -> int:
    """Let rows into line that were parked because no process took them, and that this pool takes, all pages of them."""
    released = 0
    while page := _release(parked_rows.taken_by(pool)):
        released += page
    return released


def release_enabled(manifest_ids: Sequence[int]) -> int:
    """In the caller's transaction, let rows of these manifests into line that no obstacle holds any more."""
    released = sum(parked_rows.release(parked_rows.enabled_again(part)) for part in chunks(manifest_ids, size=PAGE))
    if released:
        wake(DISPATCHER)
    return released


def _let_in(numbers: Mapping[int, int], pool: Pool) -> int:
    """Let so many rows of each of these groups into line that the pool takes and that were parked while it was full."""
    with transact(Patience.SHORT):
        return parked_rows.let_in(numbers, pool=pool)


def _release(rows: QuerySet[Any, Any]) -> int:
    with transact(Patience.SHORT):
        released = parked_rows.release(rows)
        if released:
            wake(WORKER)
    return released
