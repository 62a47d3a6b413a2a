"""The invariants of parents and children: dependents, dormant ones and continuations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from chaos.evidence import Evidence, Execution
from chaos.spans import grouped, recorded_runs
from chaos.workload import Expected


def dependents_are_not_lost(evidence: Evidence) -> Iterator[str]:
    """Every success of a parent is covered by a run of its dependent that began after it."""
    by_manifest = grouped(evidence.executions, by=lambda row: row.manifest)
    lettered = {letter.manifest for letter in evidence.letters}
    for item, parents in _edges(evidence, by_manifest):
        runs = [row for row in by_manifest[item.manifest] if row.is_completed or item.manifest in lettered]
        for parent in parents:
            if not any(_covers(run, parent) for run in runs):
                yield f"{item.manifest} has no run for {parent}"


def dependents_are_not_doubled(evidence: Evidence) -> Iterator[str]:
    """One completed run of a dependent for one execution of its parent, and none without a cause."""
    by_manifest = grouped(evidence.executions, by=lambda row: row.manifest)
    for item in evidence.expected.values():
        if item.parent is None:
            continue
        causes = {row.id for row in by_manifest[item.parent] if row.is_completed or item.is_activated}
        completed = [row for row in by_manifest[item.manifest] if row.is_completed]
        for parent, number in Counter(row.parent for row in completed).items():
            if number > 1:
                yield f"{item.manifest} completed {number} times for #{parent}"
            if parent not in causes:
                yield f"{item.manifest} ran for #{parent}, which is no success of {item.parent}"


def dependents_begin_after_their_parents(evidence: Evidence) -> Iterator[str]:
    """By the witness, no dependent began before the run of its parent that caused it had ended."""
    ended = {run.execution: run.ended for run in recorded_runs(evidence) if run.is_whole}
    parents = {row.id: row.parent for row in evidence.executions}
    for run in evidence.runs:
        if evidence.expected[run.manifest].is_activated:
            continue  # It is activated while its parent runs.
        parent = parents.get(run.execution)
        parent_ended = ended.get(parent) if parent is not None else None
        if parent_ended is not None and run.began < parent_ended:
            yield f"{run.manifest} #{run.execution} began before its parent #{parent} had ended"


def activations_are_kept(evidence: Evidence) -> Iterator[str]:
    """Every child with an activation that its parent's run recorded has run for it."""
    ran = {(row.manifest, row.parent) for row in evidence.executions if row.is_completed}
    for row in evidence.executions:
        for child in row.woken:
            if (child, row.id) not in ran:
                yield f"{child} was activated by {row} and has no run for it"


def continuations_wait_for_all_parts(evidence: Evidence) -> Iterator[str]:
    """A continuation was dispatched after all its siblings had done their part for the execution that caused it."""
    by_manifest = grouped(evidence.executions, by=lambda row: row.manifest)
    for item in evidence.expected.values():
        if not item.is_continuation:
            continue
        siblings = [
            other.manifest
            for other in evidence.expected.values()
            if other.parent == item.parent and not other.is_continuation and not other.is_activated
        ]
        for run in by_manifest[item.manifest]:
            for sibling in siblings:
                if not _part_is_done(evidence, by_manifest[sibling], sibling=sibling, run=run):
                    yield f"{run} was dispatched before {sibling} had done its part for #{run.parent}"


def _edges(
    evidence: Evidence, by_manifest: Mapping[str, list[Execution]]
) -> Iterator[tuple[Expected, list[Execution]]]:
    """Each dependent that fires by itself, with the successes of its parent."""
    for item in evidence.expected.values():
        if item.parent is not None and not item.is_activated:
            yield item, [row for row in by_manifest[item.parent] if row.is_completed]


def _covers(run: Execution, parent: Execution) -> bool:
    """Whether the run was caused by this success of its parent, or by a newer one."""
    is_later = parent.ended_at is not None and run.created_at >= parent.ended_at
    return is_later and run.parent is not None and run.parent >= parent.id


def _part_is_done(evidence: Evidence, rows: Sequence[Execution], *, sibling: str, run: Execution) -> bool:
    """Whether a sibling had completed for the run's parent, or a newer one, or had been dead-lettered."""
    if any(letter.manifest == sibling and letter.dead_lettered_at <= run.created_at for letter in evidence.letters):
        return True
    return any(
        row.is_completed
        and row.parent is not None
        and row.parent >= (run.parent or 0)
        and row.ended_at is not None
        and row.ended_at <= run.created_at
        for row in rows
    )
