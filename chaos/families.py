"""The invariants of parents and children: dependents and dormant ones. Those of joins are in ``chaos.joins``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from chaos.evidence import Evidence, Execution
from chaos.spans import grouped, recorded_runs
from chaos.workload import Expected


def dependents_are_not_lost(evidence: Evidence) -> Iterator[str]:
    """Every outcome of a parent that its dependent follows is covered, in each run, by a run of that one after it."""
    by_manifest = grouped(evidence.executions, by=lambda row: row.manifest)
    lettered = {letter.manifest for letter in evidence.letters}
    for item, parents in _edges(evidence, by_manifest):
        rows = [row for row in by_manifest[item.manifest] if row.is_completed or item.manifest in lettered]
        for parent in parents:
            if not parent.runs:
                yield f"{parent} stands for no run"
            for run in sorted(parent.runs):
                if not any(_covers(row, parent, run) for row in rows):
                    yield f"{item.manifest} has no run for {parent} in run {run}"


def dependents_are_not_doubled(evidence: Evidence) -> Iterator[str]:
    """One completed run of a dependent for one execution of its parent and for one run, and none without a cause."""
    by_manifest = grouped(evidence.executions, by=lambda row: row.manifest)
    for item in evidence.expected.values():
        completed = [row for row in by_manifest[item.manifest] if row.is_completed]
        if item.is_join:
            yield from _without_cause(item, completed, causes=_arrivals(item, by_manifest))
        elif item.parent is not None:
            is_any = item.is_activated or item.follows_any_outcome
            causes = {row.id for row in by_manifest[item.parent] if row.is_completed or is_any}
            yield from _without_cause(item, completed, causes=causes)
            for parent, number in Counter(row.parent for row in completed).items():
                if number > 1:
                    yield f"{item.manifest} completed {number} times for #{parent}"
        if not item.is_head and not item.is_activated:
            yield from _doubled_in_a_run(item, completed)


def _arrivals(item: Expected, by_manifest: Mapping[str, list[Execution]]) -> set[int]:
    """The executions that a join may run after."""
    leading = [*item.members, *([] if item.parent is None else [item.parent])]
    return {row.id for manifest in leading for row in by_manifest[manifest]}


def _without_cause(item: Expected, completed: list[Execution], *, causes: set[int]) -> Iterator[str]:
    for row in completed:
        if row.parent not in causes:
            yield f"{item.manifest} ran for #{row.parent}, which is no outcome that it waits for"


def _doubled_in_a_run(item: Expected, completed: list[Execution]) -> Iterator[str]:
    for run, number in Counter(run for row in completed for run in row.runs).items():
        if number > 1:
            yield f"{item.manifest} completed {number} times in run {run}"


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


def _edges(
    evidence: Evidence, by_manifest: Mapping[str, list[Execution]]
) -> Iterator[tuple[Expected, list[Execution]]]:
    """Each plain dependent that fires by itself, with the outcomes of its parent that it follows."""
    given_up = {letter.execution for letter in evidence.letters}
    for item in evidence.expected.values():
        if item.parent is not None and not item.is_activated and not item.is_join:
            rows = by_manifest[item.parent]
            yield item, [row for row in rows if row.is_completed or (item.follows_any_outcome and row.id in given_up)]


def _covers(row: Execution, parent: Execution, run: int) -> bool:
    """Whether an execution stands for the run, and was caused by this outcome of its parent or by a newer one."""
    is_later = parent.ended_at is not None and row.created_at >= parent.ended_at
    return is_later and run in row.runs and row.parent is not None and row.parent >= parent.id
