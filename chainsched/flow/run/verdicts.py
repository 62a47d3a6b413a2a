"""Part of record: decide for each ended execution whether it is retried, dead-lettered or final.

Reads:  the manifests' retry policies and failure counts, under the lock that record holds.
Writes: nothing.
Next:   record writes the verdicts.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from chainsched.conf import get_config
from chainsched.db.compiled import CompiledQuery, Ids
from chainsched.db.id_in import id_in
from chainsched.domain.outcomes import Finished
from chainsched.domain.retry import RetryPolicy, StopRetrying, TryAgain, after_failure
from chainsched.domain.states import ExecutionState
from chainsched.models import Manifest
from chainsched.models.metadata import Attempt

COLUMNS = (
    "id",
    "external_id",
    "schedule_type",
    "is_one_time",
    "once_at",
    "max_retries",
    "retry_delay_seconds",
    "retry_multiplier",
    "max_retry_delay_seconds",
    "state__consecutive_failures",
)
# Both tables by their ids: PostgreSQL reads a whole one to join it to hundreds of rows of the other.
_MANIFESTS = CompiledQuery(
    lambda: Manifest.objects.filter(id_in(id=Ids()), id_in(state=Ids())).order_by("id").values_list(*COLUMNS)
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One execution, how it ended, and its follow-up."""

    execution: Attempt
    finished: Finished
    manifest: dict[str, Any] | None
    failures: int
    follow_up: TryAgain | StopRetrying | None

    @property
    def state(self) -> ExecutionState:
        return self.finished.outcome.state

    @property
    def is_final(self) -> bool:
        """Whether this is an outcome of the run; an attempt with retries left is none."""
        return not isinstance(self.follow_up, TryAgain)


def decide_verdicts(executions: Sequence[Attempt], finished: Mapping[int, Finished]) -> list[Verdict]:
    """A verdict for each execution; the caller has locked the manifests' states."""
    manifests = _load_manifests([row.manifest_id for row in executions if row.manifest_id is not None])
    return [_verdict(row, finished[row.id], manifests.get(row.manifest_id or 0)) for row in executions]


def _load_manifests(manifest_ids: Collection[int]) -> dict[int, dict[str, Any]]:
    return {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in _MANIFESTS.rows(ids=manifest_ids)}


def _verdict(execution: Attempt, finished: Finished, manifest: dict[str, Any] | None) -> Verdict:
    """Decide the follow-up. A run of a manifest that was removed since it began ends without retry or letter.

    So does a run that was asked to stop and failed: an operator wanted it to end, so it counts as cancelled.
    """
    if execution.cancel_requested and finished.outcome.state is ExecutionState.FAILED:
        finished = replace(finished, outcome=replace(finished.outcome, state=ExecutionState.CANCELLED))
    outcome = finished.outcome
    if manifest is None or outcome.state is not ExecutionState.FAILED:
        failures = 0 if manifest is None else manifest["state__consecutive_failures"]
        return Verdict(execution, finished, manifest, failures, follow_up=None)
    failures = manifest["state__consecutive_failures"] + 1
    follow_up = after_failure(
        _policy(manifest),
        failures=failures,
        is_permanent=outcome.is_permanent,
        was_lost=outcome.was_lost,
        spread=random.uniform(-1, 1),  # noqa: S311 - spreads load, guards nothing
    )
    return Verdict(execution, finished, manifest, failures, follow_up)


def _policy(manifest: dict[str, Any]) -> RetryPolicy:
    config = get_config()

    def stated(column: str, default: float) -> float:
        return default if manifest[column] is None else manifest[column]

    return RetryPolicy(
        max_retries=int(stated("max_retries", config.max_retries)),
        delay=timedelta(seconds=stated("retry_delay_seconds", config.retry_delay)),
        multiplier=stated("retry_multiplier", config.retry_multiplier),
        max_delay=timedelta(seconds=stated("max_retry_delay_seconds", config.max_retry_delay)),
    )
