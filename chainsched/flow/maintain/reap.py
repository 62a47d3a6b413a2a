"""Maintenance: close the executions of dead processes.

Reads:  executions in progress, and which processes are lost, stopped or missing.
Writes: ``lost_at`` of processes; through record the lost executions; claims that never began are returned.
Next:   record retries or dead-letters the lost executions.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from chainsched.domain import outcomes
from chainsched.domain.outcomes import FailureType, Finished
from chainsched.flow.run.record import record
from chainsched.flow.transactions import transact
from chainsched.models import Metadata, Process

logger = logging.getLogger(__name__)

BATCH = 500
MAX_CLAIMS = 10


@dataclass(frozen=True, slots=True)
class Reaped:
    """The numbers of processes declared lost, executions closed as lost, and claims returned."""

    processes: int = 0
    lost: int = 0
    released: int = 0
    has_more: bool = False


def reap(*, silent: Mapping[int, datetime] | None = None, now: datetime) -> Reaped:
    """Declare silent processes lost, and close or return the executions of processes that have ended.

    ``silent`` are the processes whose heartbeat the caller saw stand still for one expiry, with that heartbeat. A
    process that has sent another one since then keeps its lease; a caller that has not watched declares none lost.
    """
    lost = _declare_lost(silent or {}, now=now)
    orphans = _find_orphans()
    unbegun = [row for row in orphans if _never_began(row)]
    begun = [row for row in orphans if not _never_began(row)]
    released = _release(unbegun)
    recorded = record([_lost(row) for row in begun], now=now)
    return Reaped(processes=lost, lost=len(recorded.ended), released=released, has_more=len(orphans) == BATCH)


def _declare_lost(silent: Mapping[int, datetime], *, now: datetime) -> int:
    if not silent:
        return 0
    with transact():
        lost = Process.objects.declare_lost(silent, now=now)
    if lost:
        logger.warning("%d processes sent no heartbeat in time and are declared lost.", lost)
    return lost


def _find_orphans() -> list[Metadata]:
    """Executions in progress with a process that is lost, stopped or missing."""
    held = Metadata.objects.in_progress().known().exclude(process__in=Process.objects.trusted())
    return list(held.only("id", "process_id", "started_at", "claims").order_by("id")[:BATCH])


def _never_began(row: Metadata) -> bool:
    return row.started_at is None and row.claims < MAX_CLAIMS


def _release(rows: list[Metadata]) -> int:
    """Return claims that never began: they use no attempt."""
    if not rows:
        return 0
    holders = {row.process_id for row in rows if row.process_id is not None}
    with transact():
        return Metadata.objects.release([row.id for row in rows], process_ids=holders, is_counted=True)


def _lost(row: Metadata) -> Finished:
    if row.started_at is None:
        reason = f"It was claimed {row.claims} times, and each time its process ended before it began."
    else:
        reason = "The process that ran it ended or sent no heartbeat in time."
    return Finished(row.id, outcomes.failed(FailureType.LOST, reason))
