"""Figures that go with the verdicts: they show whether the run had enough jobs and faults to check."""

from __future__ import annotations

from chaos.evidence import Evidence
from chaos.spans import WAKING_SECONDS, at_work, limit_of, overlaps, peaks, recorded_runs


def repeated_runs(evidence: Evidence) -> int:
    """How many runs came to their end and were not recorded: jobs run at least once, and sometimes more often."""
    recorded = recorded_runs(evidence)
    return sum(run.is_whole and run not in recorded for run in evidence.runs)


def highest_attempt(evidence: Evidence) -> int:
    """The largest number of attempts of a job that does not fail by itself."""
    sound = {item.manifest for item in evidence.expected.values() if not item.failures}
    return max((row.attempt for row in evidence.executions if row.manifest in sound), default=0)


def fenced_overlaps(evidence: Evidence) -> int:
    """How many runs a frozen process continued while they were repeated elsewhere: allowed, and counted."""
    uncut = len(list(overlaps(evidence, is_fence_respected=False)))
    return uncut - len(list(overlaps(evidence, is_fence_respected=True)))


def begun_after_freezes(evidence: Evidence) -> int:
    """How many runs began just after a freeze of their process and were never recorded."""
    recorded = recorded_runs(evidence)
    return sum(
        freeze.member == run.member and 0 <= run.began - freeze.until <= WAKING_SECONDS and run not in recorded
        for freeze in evidence.freezes
        for run in evidence.runs
    )


def most_at_once(evidence: Evidence) -> dict[str, list[int | None]]:
    """How many runs of each group were at work at once, with its limit: whether limits were reached at all."""
    highest = peaks(evidence, at_work(evidence))
    return {group: [number, limit_of(evidence, group)] for group, (number, _) in highest.items()}


def resumed_after(evidence: Evidence) -> list[float]:
    """How long after each return of the database the next job began, if one did before the database was away again."""
    begun, returns = sorted(run.began for run in evidence.runs), sorted(evidence.returned_at)
    resumed = {at: next((began for began in begun if began >= at), None) for at in returns}
    return [
        round(began - at, 2)
        for at, began in resumed.items()
        if began is not None and not any(at < later <= began for later in returns)
    ]
