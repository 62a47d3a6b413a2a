"""Part of record: decide for each ended execution whether it is retried, dead-lettered or final.

Reads:  the manifests' facts, and the retry policies of those that failed, under the lock that record holds.
Writes: nothing.
Next:   record writes the verdicts.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple

from chainsched.conf import get_config
from chainsched.db.compiled import CompiledQuery, Ids
from chainsched.db.id_in import id_in
from chainsched.domain.due import Facts
from chainsched.domain.outcomes import Finished
from chainsched.domain.retry import RetryPolicy, StopRetrying, TryAgain, after_failure
from chainsched.domain.states import ExecutionState
from chainsched.models import Manifest
from chainsched.models.manifest_facts import load_facts
from chainsched.models.metadata import Attempt

POLICY_COLUMNS = ("max_retries", "retry_delay_seconds", "retry_multiplier", "max_retry_delay_seconds")
_POLICIES = CompiledQuery(lambda: Manifest.objects.filter(id_in(id=Ids())).values_list("id", *POLICY_COLUMNS))


class Verdict(NamedTuple):
    """One execution, how it ended, and its follow-up; a manifest that is gone has no facts.

    ``began_at`` is when its code began: as its worker reports at its end, else when its process took it.
    """

    execution: Attempt
    finished: Finished
    facts: Facts | None
    failures: int
    follow_up: TryAgain | StopRetrying | None
    began_at: datetime | None

    @property
    def state(self) -> ExecutionState:
        return self.finished.outcome.state

    @property
    def is_final(self) -> bool:
        """Whether this is an outcome of the run; an attempt with retries left is none."""
        return not isinstance(self.follow_up, TryAgain)


def decide_verdicts(executions: Sequence[Attempt], finished: Mapping[int, Finished]) -> list[Verdict]:
    """A verdict for each execution; the caller has locked the manifests' states.

    By their facts nothing is open: what was open are these executions.
    """
    manifest_ids = {row.manifest_id for row in executions if row.manifest_id is not None}
    facts = {known.manifest_id: known for known in load_facts(manifest_ids, idle=manifest_ids)}
    ended = [(row, _as_it_counts(row, finished[row.id])) for row in executions]
    failed = [row.manifest_id for row, item in ended if item.outcome.state is ExecutionState.FAILED]
    policies = {id_: _policy(*stated) for id_, *stated in _POLICIES.rows(ids=[id_ for id_ in failed if id_ in facts])}
    return [_verdict(row, item, facts.get(row.manifest_id or 0), policies) for row, item in ended]


def _as_it_counts(execution: Attempt, finished: Finished) -> Finished:
    """A run that was asked to stop and failed counts as cancelled: an operator wanted it to end."""
    if not execution.cancel_requested or finished.outcome.state is not ExecutionState.FAILED:
        return finished
    return replace(finished, outcome=replace(finished.outcome, state=ExecutionState.CANCELLED))


def _verdict(
    execution: Attempt, finished: Finished, facts: Facts | None, policies: Mapping[int, RetryPolicy]
) -> Verdict:
    """Decide the follow-up. A run of a manifest that was removed since it began ends without retry or letter."""
    outcome, began_at = finished.outcome, _began_at(execution, finished)
    failures = 0 if facts is None else facts.consecutive_failures
    if facts is None or outcome.state is not ExecutionState.FAILED:
        return Verdict(execution, finished, facts, failures, None, began_at)
    failures += 1
    follow_up = after_failure(
        policies[facts.manifest_id],
        failures=failures,
        is_permanent=outcome.is_permanent,
        was_lost=outcome.was_lost,
        spread=random.uniform(-1, 1),  # noqa: S311 - spreads load, guards nothing
    )
    return Verdict(execution, finished, facts, failures, follow_up, began_at)


def _began_at(execution: Attempt, finished: Finished) -> datetime | None:
    if execution.claimed_at is None or finished.began_after is None:
        return execution.started_at
    return execution.claimed_at + timedelta(seconds=finished.began_after)


def _policy(
    max_retries: int | None, delay: float | None, multiplier: float | None, max_delay: float | None
) -> RetryPolicy:
    """The policy that a manifest states, with the project's defaults."""
    config = get_config()
    return RetryPolicy(
        max_retries=config.max_retries if max_retries is None else max_retries,
        delay=timedelta(seconds=config.retry_delay if delay is None else delay),
        multiplier=config.retry_multiplier if multiplier is None else multiplier,
        max_delay=timedelta(seconds=config.max_retry_delay if max_delay is None else max_delay),
    )
