"""Around execute: claim executions that were submitted to a task server, store progress, read requests to stop.

Reads:  pending executions that this process can run; requests to stop.
Writes: the claims; progress.
Next:   execute. Executions that a worker takes for itself come from ``flow.operate.take`` instead.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from chainsched.conf import get_config
from chainsched.domain.run_context import Claim
from chainsched.flow.announce import announce_executions
from chainsched.flow.transactions import in_parts, transact
from chainsched.models import Metadata, Process
from chainsched.signals import execution_started

logger = logging.getLogger(__name__)


def claim(
    *,
    process: Process,
    workflows: Collection[str],
    limit: int,
    execution_ids: Collection[int] | None = None,
    now: datetime | None = None,
) -> list[Claim]:
    """Claim up to ``limit`` pending executions, if given only of these ids; none once this process was declared lost.

    For task servers that executions are submitted to. The time is read after the rows are locked, unless it is given,
    so that no execution starts before its dispatch.
    """
    if limit < 1:
        return []
    with transact():
        rows = Metadata.objects.claim(
            process=process, workflows=workflows, limit=limit, execution_ids=execution_ids, now=now
        )
        job_timeout = get_config().job_timeout
        claims = [Claim.of_row(values, job_timeout=job_timeout) for values in rows]
        announce_executions(execution_started, [item.execution_id for item in claims])
    return claims


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
