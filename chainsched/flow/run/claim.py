"""Before execute: a worker claims pending executions, stores their progress, and returns those that it cannot run.

Reads:  pending executions that this process can run.
Writes: the claim, the time at which its code begins, progress, and the return of claims.
Next:   execute.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from chainsched.conf import get_config
from chainsched.domain.inputs import Unreadable
from chainsched.flow.announce import announce_executions
from chainsched.flow.transactions import in_parts, transact
from chainsched.models import Metadata, Process
from chainsched.models.metadata_claims import ClaimedRow
from chainsched.signals import execution_started

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Claim:
    """A claimed execution as plain values, so that it can be passed to another thread or process."""

    execution_id: int
    process_id: int
    manifest_id: int | None
    external_id: str
    correlation_id: UUID
    workflow: str
    input: Any
    scheduled_for: datetime
    attempt: int
    cron_expression: str
    timeout_seconds: int
    parent_manifest_id: int | None
    parent_execution_id: int | None
    root_execution_id: int | None
    causation_id: str
    root_correlation_id: str
    # Why there is no input, if the stored one cannot be read.
    problem: str = ""


def claim(
    *, process: Process, workflows: Collection[str], limit: int, is_begun: bool = True, now: datetime | None = None
) -> list[Claim]:
    """Claim up to ``limit`` pending executions; none once this process was declared lost.

    The time is read after the rows are locked, unless it is given, so that no execution starts before its dispatch.
    """
    if limit < 1:
        return []
    with transact():
        rows = Metadata.objects.claim(process=process, workflows=workflows, limit=limit, is_begun=is_begun, now=now)
        announce_executions(execution_started, [row.id for row in rows])
    return [_claim_of(row, process=process) for row in rows]


def hand_back(*, process: Process, known: Collection[int]) -> int:
    """Return the claims of this process in the database that it does not know of itself."""
    with transact():
        return Metadata.objects.hand_back(process=process, known=known)


def begin(delays: Mapping[int, float], *, process: Process) -> int:
    """Record that the code of claims runs: if the process dies from now on, an attempt is used."""
    with transact():
        return Metadata.objects.begin(delays, process=process)


def note_progress(progress: Mapping[int, Any], *, process: Process) -> dict[int, Any]:
    """Store the progress that jobs report; returns the progress of rows that another transaction holds, for later.

    Progress that the database refuses is dropped, so that no results wait for it.
    """

    def write(part: Sequence[tuple[int, Any]]) -> set[int]:
        with transact():
            return Metadata.objects.note_progress(dict(part), process=process)

    parts = in_parts(list(progress.items()), write)
    for (execution_id, _), error in parts.refused:
        logger.warning("The progress of execution %d cannot be written and is dropped: %s", execution_id, error)
    return {id_: progress[id_] for held in parts.results for id_ in held}


def find_cancelled(*, process: Process) -> set[int]:
    """The executions of a process with a request to stop."""
    asked = Metadata.objects.in_progress().filter(process=process, cancel_requested=True)
    return set(asked.values_list("id", flat=True))


def release(execution_ids: Collection[int], *, process: Process) -> set[int]:
    """Return claims that never began; the result are those with rows that another transaction holds, for later.

    Returned claims use no attempt, regardless of how often that happens.
    """
    with transact():
        given_back = Metadata.objects.release(execution_ids, process_ids=[process.pk], is_counted=False)
        if given_back == len(execution_ids):
            return set()
        return Metadata.objects.unstarted(execution_ids, process=process)


def _claim_of(row: ClaimedRow, *, process: Process) -> Claim:
    is_readable = not isinstance(row.input, Unreadable)
    return Claim(
        execution_id=row.id,
        process_id=process.pk,
        manifest_id=row.manifest_id,
        external_id=row.manifest_external_id,
        correlation_id=row.external_id,
        workflow=row.workflow,
        input=row.input if is_readable else None,
        scheduled_for=row.scheduled_for,
        attempt=row.attempt,
        cron_expression=row.manifest__cron_expression or "",
        timeout_seconds=row.timeout_seconds or get_config().job_timeout,
        parent_manifest_id=row.manifest__depends_on_id,
        parent_execution_id=row.parent_execution_id,
        root_execution_id=row.root_execution_id,
        causation_id=row.causation_id,
        root_correlation_id=row.root_correlation_id,
        problem="" if is_readable else str(row.input),
    )
