"""Part of record: build the rows that the end of an execution writes.

Reads:  the verdict on an execution, and the facts of its manifest that record loaded.
Writes: nothing.
Next:   record writes the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from chainsched.domain.retry import StopRetrying
from chainsched.domain.states import ExecutionState, ScheduleType, Source
from chainsched.domain.statistics import NO_GROUP, Share, hour_of
from chainsched.flow.run.verdicts import Verdict


def state_row(verdict: Verdict, known: Mapping[str, Any], *, now: datetime) -> dict[str, Any]:
    """The changed columns of a manifest's state; execution numbers only grow."""
    execution_id = verdict.execution.id
    is_letter = isinstance(verdict.follow_up, StopRetrying)
    is_success = verdict.state is ExecutionState.COMPLETED
    row = {"manifest": known["id"], "consecutive_failures": 0 if is_success else verdict.failures}
    if is_success:
        row |= {"last_successful_run": now, "succeeded_execution": execution_id}
    if verdict.state is not ExecutionState.FAILED:
        row |= {"last_finished_run": now}
    if is_letter:
        row |= {"dead_lettered_execution": execution_id}
    if verdict.is_final:
        row |= {"finished_execution": execution_id}
    return row


def had_its_run(verdict: Verdict, *, now: datetime) -> bool:
    """Whether a one-time manifest is done after this run. Only a trigger runs one before its time.

    Any other run that ends before ``once_at`` was for an earlier time, and the manifest has got a new time since then.
    """
    known = verdict.manifest or {}
    if known["schedule_type"] != ScheduleType.ONCE:
        return bool(known["is_one_time"])
    return known["once_at"] <= now or verdict.execution.source == Source.TRIGGER


def closed_row(verdict: Verdict, *, now: datetime) -> dict[str, Any]:
    """The execution in its terminal state."""
    outcome = verdict.finished.outcome
    return {
        "id": verdict.execution.id,
        "state": verdict.state,
        "output": outcome.output,
        "started_at": _began_at(verdict),
        "ended_at": now,
        "failure_type": outcome.failure_type,
        "failure_reason": outcome.failure_reason,
        "failure_traceback": outcome.failure_traceback,
        "failure_fingerprint": outcome.failure_fingerprint,
    }


def letter_row(verdict: Verdict, stop_retrying: StopRetrying, *, now: datetime) -> dict[str, Any]:
    """The dead letter of an execution that gets no further attempt."""
    return {
        "manifest": verdict.execution.manifest_id,
        "execution": verdict.execution.id,
        "reason": f"{stop_retrying.reason}: {verdict.finished.outcome.failure_reason}",
        "failure_count": verdict.failures,
        "fingerprint": verdict.finished.outcome.failure_fingerprint,
        "dead_lettered_at": now,
    }


def share_of(verdict: Verdict, *, now: datetime) -> Share:
    """The contribution of this end to the statistics of its hour."""
    execution, began_at = verdict.execution, _began_at(verdict)
    # The clocks of hosts may differ slightly from the database's.
    seconds = 0.0 if began_at is None else max(0.0, (now - began_at).total_seconds())
    return Share(
        hour=hour_of(now),
        group=execution.group_id or NO_GROUP,
        workflow=execution.workflow,
        state=verdict.state,
        executions=1,
        seconds=seconds,
        slowest_seconds=seconds,
        slowest_execution=execution.id,
    )


def _began_at(verdict: Verdict) -> datetime | None:
    """When its code began: as its worker reports at its end, else when its process took it."""
    execution, delay = verdict.execution, verdict.finished.began_after
    if execution.claimed_at is None or delay is None:
        return execution.started_at
    return execution.claimed_at + timedelta(seconds=delay)
