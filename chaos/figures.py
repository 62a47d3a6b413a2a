"""Figures that go with the verdicts: they judge nothing, and say whether there was anything to judge."""

from __future__ import annotations

from chaos.evidence import Evidence
from chaos.spans import WAKING_SECONDS, at_work, limit_of, overlaps, peaks, recorded_runs


def repeated_runs(evidence: Evidence) -> int:
    """How many runs came to their end and were not recorded: at least once, as promised, and sometimes more."""
    recorded = recorded_runs(evidence)
    return sum(run.is_whole and run not in recorded for run in evidence.runs)


def highest_attempt(evidence: Evidence) -> int:
    """How often the unluckiest job was tried of those that do not fail by themselves."""
    lucky = {item.manifest for item in evidence.expected.values() if not item.failures}
    return max((row.attempt for row in evidence.executions if row.manifest in lucky), default=0)


def fenced_overlaps(evidence: Evidence) -> int:
    """How many runs a frozen process went on with while they were done again elsewhere: allowed, and counted."""
    uncut = len(list(overlaps(evidence, is_fence_respected=False)))
    return uncut - len(list(overlaps(evidence, is_fence_respected=True)))


def begun_after_freezes(evidence: Evidence) -> int:
    """How many runs that were never recorded a process began when it had just come out of a freeze."""
    recorded = recorded_runs(evidence)
    return sum(
        freeze.member == run.member and 0 <= run.began - freeze.until <= WAKING_SECONDS and run not in recorded
        for freeze in evidence.freezes
        for run in evidence.runs
    )


def most_at_once(evidence: Evidence) -> dict[str, list[int | None]]:
    """How many runs of each group were at work at once, beside the limit: whether limits were reached at all."""
    highest = peaks(evidence, at_work(evidence))
    return {group: [number, limit_of(evidence, group)] for group, (number, _) in highest.items()}


def resumed_after(evidence: Evidence) -> list[float]:
    """How long after each return of the database the next job began, where there was still one to begin."""
    begun = sorted(run.began for run in evidence.runs)
    later = [[began - at for began in begun if began >= at] for at in evidence.returned_at]
    return [round(gaps[0], 2) for gaps in later if gaps]
