"""Part of record: build the rows that the end of an execution writes.

Reads:  the verdict on an execution, and the facts of its manifest that record loaded.
Writes: nothing.
Next:   record writes the rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from chainsched.db.bulk import Columns
from chainsched.domain.due import Facts
from chainsched.domain.retry import StopRetrying
from chainsched.domain.states import ExecutionState, Source
from chainsched.domain.statistics import NO_GROUP, Share, hour_of
from chainsched.flow.run.verdicts import Verdict

FAILURE = ("failure_type", "failure_reason", "failure_traceback", "failure_fingerprint")


def failed_state(verdict: Verdict) -> dict[str, Any]:
    """The changed columns of a manifest's state after a failure; execution numbers only grow."""
    row = {"manifest": verdict.execution.manifest_id, "consecutive_failures": verdict.failures}
    if isinstance(verdict.follow_up, StopRetrying):
        row |= {"dead_lettered_execution": verdict.execution.id}
    if verdict.is_final:
        row |= {"finished_execution": verdict.execution.id}
    return row


def ended_states(verdicts: Sequence[Verdict], *, now: datetime) -> list[Columns]:
    """The same for manifests that did not fail, but for their alarms, which are set with them: nothing of them is open.

    The facts for these alarms come from ``facts_after``.
    """
    completed = [verdict for verdict in verdicts if verdict.state is ExecutionState.COMPLETED]
    cancelled = [verdict for verdict in verdicts if verdict.state is ExecutionState.CANCELLED]
    succeeded = [verdict.execution.id for verdict in completed]
    return [
        Columns(
            {
                "manifest": [verdict.execution.manifest_id for verdict in completed],
                "succeeded_execution": succeeded,
                "finished_execution": succeeded,
            },
            same={"consecutive_failures": 0, "last_successful_run": now, "last_finished_run": now},
        ),
        Columns(
            {
                "manifest": [verdict.execution.manifest_id for verdict in cancelled],
                "consecutive_failures": [verdict.failures for verdict in cancelled],
                "finished_execution": [verdict.execution.id for verdict in cancelled],
            },
            same={"last_finished_run": now},
        ),
    ]


def facts_after(verdict: Verdict, known: Facts, *, now: datetime) -> Facts:
    """The facts of a manifest that did not fail when ``ended_states`` are written, and it is marked as done if so."""
    return known.ended(at=now, is_done=had_its_run(verdict, known, now=now))


def had_its_run(verdict: Verdict, known: Facts, *, now: datetime) -> bool:
    """Whether a one-time manifest is done after this run. Only a trigger runs one before its time.

    Any other run that ends before ``once_at`` was for an earlier time, and the manifest has got a new time since then.
    """
    if known.once_at is None:
        return known.is_one_time
    return known.once_at <= now or verdict.execution.source == Source.TRIGGER


def closed_rows(verdicts: Sequence[Verdict], *, now: datetime) -> list[Columns]:
    """The executions in their terminal states; only an outcome that is no success writes texts about a failure."""
    alike: dict[ExecutionState, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        alike[verdict.state].append(verdict)
    return [_closed(found, state=state, now=now) for state, found in alike.items()]


def _closed(verdicts: Sequence[Verdict], *, state: ExecutionState, now: datetime) -> Columns:
    outcomes = [verdict.finished.outcome for verdict in verdicts]
    listed: dict[str, list[Any]] = {
        "id": [verdict.execution.id for verdict in verdicts],
        "output": [outcome.output for outcome in outcomes],
        "started_at": [verdict.began_at for verdict in verdicts],
    }
    if state is not ExecutionState.COMPLETED:
        listed |= {name: [getattr(outcome, name) for outcome in outcomes] for name in FAILURE}
    return Columns(listed, same={"state": state, "ended_at": now})


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


def shares_of(verdicts: Sequence[Verdict], *, now: datetime) -> list[Share]:
    """The contribution of these ends to the statistics of their hour, one for each kind."""
    kinds: dict[tuple[int, str, ExecutionState], list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        execution = verdict.execution
        kinds[execution.group_id or NO_GROUP, execution.workflow, verdict.state].append(verdict)
    return [_share(alike, group, workflow, state, now=now) for (group, workflow, state), alike in kinds.items()]


def _share(verdicts: Sequence[Verdict], group: int, workflow: str, state: ExecutionState, *, now: datetime) -> Share:
    # The clocks of hosts may differ slightly from the database's.
    seconds = [
        0.0 if verdict.began_at is None else max(0.0, (now - verdict.began_at).total_seconds()) for verdict in verdicts
    ]
    slowest = max(seconds)
    return Share(
        hour=hour_of(now),
        group=group,
        workflow=workflow,
        state=state,
        executions=len(verdicts),
        seconds=sum(seconds),
        slowest_seconds=slowest,
        slowest_execution=verdicts[seconds.index(slowest)].execution.id,
    )
