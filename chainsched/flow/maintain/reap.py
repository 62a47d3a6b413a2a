"""Maintenance: close the executions of dead processes.

Reads:  executions in progress, and which processes are lost, stopped or missing.
Writes: ``lost_at`` of processes; through record the lost executions.
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

LOST = outcomes.failed(FailureType.LOST, "The process that ran it ended or sent no heartbeat in time.")


@dataclass(frozen=True, slots=True)
class Reaped:
    """The numbers of processes declared lost and of executions closed as lost."""

    processes: int = 0
    lost: int = 0
    has_more: bool = False


def reap(*, silent: Mapping[int, datetime] | None = None, now: datetime) -> Reaped:
    """Declare silent processes lost, and close the executions of processes that have ended.

    Whether their code had begun is not known: a process hands each over when it takes it. Each has used an attempt.

    ``silent`` are processes, each with the heartbeat that the caller saw stand still for one expiry. A process that
    has sent another one since then keeps its lease; a caller that has not watched declares none lost.
    """
    lost = _declare_lost(silent or {}, now=now)
    orphans = _find_orphans()
    recorded = record([Finished(id_, LOST) for id_ in orphans], now=now)
    return Reaped(processes=lost, lost=len(recorded.ended), has_more=len(orphans) == BATCH)


def _declare_lost(silent: Mapping[int, datetime], *, now: datetime) -> int:
    if not silent:
        return 0
    with transact():
        lost = Process.objects.declare_lost(silent, now=now)
    if lost:
        logger.warning("%d processes sent no heartbeat in time and are declared lost.", lost)
    return lost


def _find_orphans() -> list[int]:
    """Executions in progress with a process that is lost, stopped or missing."""
    held = Metadata.objects.in_progress().known().exclude(process__in=Process.objects.trusted())
    return list(held.order_by("id").values_list("id", flat=True)[:BATCH])
