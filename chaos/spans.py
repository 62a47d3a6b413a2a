"""Spans of time: which runs were at work at once, up to when, and how many."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from chaos.evidence import LOST, Evidence
from chaos.witness import Run

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

EVERYTHING = "all groups"
# A process that was frozen may begin jobs that it had claimed before it notices that its lease is over; on a busy
# machine other processes may be scheduled first.
WAKING_SECONDS = 5


def grouped(rows: Iterable[V], *, by: Callable[[V], K]) -> dict[K, list[V]]:
    """The rows by their key."""
    groups: dict[K, list[V]] = defaultdict(list)
    for row in rows:
        groups[by(row)].append(row)
    return groups


def overlaps(evidence: Evidence, *, is_fence_respected: bool) -> Iterator[tuple[Run, Run]]:
    """Runs of one manifest of which the later began before the earlier was over."""
    spans = zip(evidence.runs, ends_of(evidence, is_fence_respected=is_fence_respected), strict=True)
    # A run that was fenced before it began does not count.
    real = [(run, end) for run, end in spans if end > run.began or not is_fence_respected]
    for same in grouped(real, by=lambda span: span[0].manifest).values():
        latest, over = same[0]
        for run, end in same[1:]:
            if run.began < over:
                yield latest, run
            if end > over:
                latest, over = run, end


def ends_of(evidence: Evidence, *, is_fence_respected: bool) -> list[float]:
    """Up to when each run certainly went on or, where the fence counts, could still have recorded something."""
    recorded = recorded_runs(evidence)
    ends = []
    for run in evidence.runs:
        end = run.until(evidence.seen)
        if is_fence_respected and run not in recorded:
            end = max(run.began, min([end, *_frozen_since(run, evidence, until=end)]))
        ends.append(end)
    return ends


def recorded_runs(evidence: Evidence) -> set[Run]:
    """The runs with an end that was recorded by the process that held them.

    A process that lost its lease may claim an execution once more under the next; it recorded the last run.
    """
    written = {(row.id, row.pid): row for row in evidence.executions if row.ended_at and row.failure_type != LOST}
    recorded: dict[int, Run] = {}
    for run in evidence.runs:  # in their order
        row = written.get((run.execution, evidence.pids.get(run.member)))
        if row is not None and row.worker in (None, run.pid):
            recorded[row.id] = run
    return set(recorded.values())


def _frozen_since(run: Run, evidence: Evidence, *, until: float) -> list[float]:
    """When the process that held the run's lease was frozen during it, or just before it."""
    return [
        freeze.since
        for freeze in evidence.freezes
        if freeze.member == run.member and freeze.since <= until and freeze.until + WAKING_SECONDS >= run.began
    ]


def peaks(evidence: Evidence, spans: Sequence[tuple[str, Any, Any]]) -> dict[str, tuple[int, Any]]:
    """How many spans of each group, and of all together, covered one moment, and when that was."""
    groups = [*evidence.limits, EVERYTHING]
    return {group: _highest([span[1:] for span in spans if group in (EVERYTHING, span[0])]) for group in groups}


def _highest(spans: Sequence[tuple[Any, Any]]) -> tuple[int, Any]:
    """The largest number of spans that cover one moment, and that moment; an end comes before a beginning."""
    real = [(begin, end) for begin, end in spans if begin < end]
    steps = sorted([(begin, 1) for begin, _ in real] + [(end, -1) for _, end in real])
    highest, at, present = 0, None, 0
    for moment, step in steps:
        present += step
        if present > highest:
            highest, at = present, moment
    return highest, at


def at_work(evidence: Evidence) -> list[tuple[str, float, float]]:
    """From when to when each run was at work, with its group."""
    ends = ends_of(evidence, is_fence_respected=True)
    return [
        (evidence.expected[run.manifest].group, run.began, end) for run, end in zip(evidence.runs, ends, strict=True)
    ]


def limit_of(evidence: Evidence, group: str) -> int | None:
    """How many may be at work at once, of a group or of all together."""
    return evidence.max_active if group == EVERYTHING else evidence.limits[group]
