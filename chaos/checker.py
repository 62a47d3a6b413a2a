"""The judge: each invariant is a function of the evidence that names what broke it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from chaos.evidence import ACTIVATION, ACTIVE, AWAITING, LOST, Evidence, Execution
from chaos.witness import Run
from chaos.workload import Expected

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

SHOWN = 5
RESUME_SECONDS = 15
# What was frozen may begin what it had at hand before it notices that its time is over.
WAKING_SECONDS = 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """An invariant and what broke it."""

    invariant: str
    violations: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        """As it is printed; the evidence is cut short."""
        return {
            "invariant": self.invariant,
            "violations": len(self.violations),
            "evidence": list(self.violations[:SHOWN]),
        }


def judge(evidence: Evidence) -> list[Verdict]:
    """Every invariant with its violations."""
    return [Verdict(name, list(find(evidence))) for name, find in INVARIANTS.items()]


def nothing_is_lost(evidence: Evidence) -> Iterator[str]:
    """Every run that was to be has completed; of poison jobs, none has."""
    completed = Counter(execution.manifest for execution in evidence.executions if execution.is_completed)
    lettered = {letter.manifest for letter in evidence.letters}
    for item in evidence.expected.values():
        if item.is_poison:
            if item.manifest not in lettered:
                yield f"{item.manifest} has neither completed nor a dead letter"
        elif completed[item.manifest] < (item.runs if item.is_exact else 1):
            yield f"{item.manifest} completed {completed[item.manifest]} of {item.runs} times"


def completed_exactly_once(evidence: Evidence) -> Iterator[str]:
    """No occurrence completed twice, and no manifest completed more often than it was asked to."""
    completed = [execution for execution in evidence.executions if execution.is_completed]
    for key, alike in _grouped(completed, by=lambda row: (row.manifest, row.scheduled_for, row.parent)).items():
        if len(alike) > 1:
            yield f"{key[0]}, due {key[1]}, completed as " + " and ".join(f"#{row.id}" for row in alike)
    for manifest, number in Counter(row.manifest for row in completed).items():
        item = evidence.expected[manifest]
        if item.is_poison or (item.is_exact and number > item.runs):
            yield f"{manifest} completed {number} times"


def no_overlap_in_rows(evidence: Evidence) -> Iterator[str]:
    """A manifest's next execution was dispatched after the one before had ended."""
    for rows in _grouped(evidence.executions, by=lambda row: row.manifest).values():
        for before, after in pairwise(sorted(rows, key=lambda row: (row.created_at, row.id))):
            if before.ended_at is None or after.created_at < before.ended_at:
                yield f"{after} was dispatched before {before} had ended"


def no_overlap_in_witness(evidence: Evidence) -> Iterator[str]:
    """No two runs of a manifest were at work at once, but for what a freeze fenced off."""
    for before, after in _overlaps(evidence, is_fence_respected=True):
        yield (
            f"{after.manifest}: #{after.execution} began in {after.member} while #{before.execution} ran in "
            f"{before.member}"
        )


def fenced_overlaps(evidence: Evidence) -> int:
    """How many runs a frozen process went on with while they were done again elsewhere: allowed, and counted."""
    uncut = len(list(_overlaps(evidence, is_fence_respected=False)))
    return uncut - len(list(_overlaps(evidence, is_fence_respected=True)))


def begun_after_freezes(evidence: Evidence) -> int:
    """How many runs that were never recorded a process began when it had just come out of a freeze."""
    recorded = _recorded(evidence)
    return sum(
        freeze.member == run.member and 0 <= run.began - freeze.until <= WAKING_SECONDS and run not in recorded
        for freeze in evidence.freezes
        for run in evidence.runs
    )


def fenced_recorded_nothing(evidence: Evidence) -> Iterator[str]:
    """What a process went on with after its lease was taken has left no trace in the rows."""
    ended = {row.id: row.ended_at for row in evidence.executions}
    for row in evidence.queue:
        ended_at = ended.get(row.parent or 0)
        if row.source == ACTIVATION and ended_at is not None and row.created_at > ended_at:
            yield f"{row.manifest} was activated by #{row.parent} after that had ended"


def limits_hold_in_rows(evidence: Evidence) -> Iterator[str]:
    """Never more executions between dispatch and end than a group or the whole may have."""
    last = max((row.created_at for row in evidence.executions), default=None)
    spans = [(row.group, row.created_at, row.ended_at or last) for row in evidence.executions]
    yield from _exceeded(evidence, spans)


def limits_hold_in_witness(evidence: Evidence) -> Iterator[str]:
    """Never more runs at work at once than a group or the whole may have."""
    spans = [
        (evidence.expected[run.manifest].group, run.began, end)
        for run, end in zip(evidence.runs, _ends(evidence, is_fence_respected=True), strict=True)
    ]
    yield from _exceeded(evidence, spans)


def dependents_are_not_lost(evidence: Evidence) -> Iterator[str]:
    """Every success of a parent is covered by a run of its dependent that began after it."""
    by_manifest = _grouped(evidence.executions, by=lambda row: row.manifest)
    lettered = {letter.manifest for letter in evidence.letters}
    for item, parents in _edges(evidence, by_manifest):
        runs = [row for row in by_manifest[item.manifest] if row.is_completed or item.manifest in lettered]
        for parent in parents:
            if not any(_covers(run, parent) for run in runs):
                yield f"{item.manifest} has no run for {parent}"


def dependents_are_not_doubled(evidence: Evidence) -> Iterator[str]:
    """One completed run of a dependent for one execution of its parent, and none without a cause."""
    by_manifest = _grouped(evidence.executions, by=lambda row: row.manifest)
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
    """By the witness, no dependent began before the run of its parent that it stands for had ended."""
    ended = {run.execution: run.ended for run in evidence.runs if run.is_whole}
    parents = {row.id: row.parent for row in evidence.executions}
    for run in evidence.runs:
        if evidence.expected[run.manifest].is_activated:
            continue  # It is woken while its parent runs.
        parent = parents.get(run.execution)
        parent_ended = ended.get(parent) if parent is not None else None
        if parent_ended is not None and run.began < parent_ended:
            yield f"{run.manifest} #{run.execution} began before its parent #{parent} had ended"


def continuations_wait_for_all_parts(evidence: Evidence) -> Iterator[str]:
    """A continuation was dispatched after every sibling's part in the execution that it stands for was done."""
    by_manifest = _grouped(evidence.executions, by=lambda row: row.manifest)
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


def letters_are_for_poison(evidence: Evidence) -> Iterator[str]:
    """Every poison job has one dead letter, and no innocent one has any."""
    awaiting = Counter(letter.manifest for letter in evidence.letters if letter.status == AWAITING)
    for item in evidence.expected.values():
        if awaiting[item.manifest] != int(item.is_poison):
            what = "poison" if item.is_poison else "innocent"
            yield f"{item.manifest} is {what} and has {awaiting[item.manifest]} dead letters"


def nothing_is_left_open(evidence: Evidence) -> Iterator[str]:
    """All came to its end within the time given for it."""
    if not evidence.is_quiet:
        yield "it did not become quiet in time"
    for row in evidence.executions:
        if row.state in ACTIVE:
            yield f"{row} has not ended"
    for waiting in evidence.queue:
        if waiting.status == "queued":
            yield f"{waiting.manifest} still waits in the queue"


def terminal_rows_are_final(evidence: Evidence) -> Iterator[str]:
    """An execution that has ended is the same ever after."""
    yield from evidence.changed


def fsck_finds_nothing(evidence: Evidence) -> Iterator[str]:
    """The rows prove to be in order."""
    yield from evidence.findings


def nothing_was_mended(evidence: Evidence) -> Iterator[str]:
    """The reconciler, the net below the loops, caught nothing."""
    yield from evidence.mended


def processes_survive(evidence: Evidence) -> Iterator[str]:
    """A process ends when it is killed or told to; it outlives the database's troubles and its own freezes."""
    for end in evidence.exits:
        if not (end.was_killed or (end.was_stopped and end.code == 0)):
            when = "when it was told to end" if end.was_stopped else "although nobody had killed it"
            frozen = "; it had been frozen" if end.was_frozen else ""
            yield f"{end.member} ended with {end.code} {when}{frozen}"


def nobody_is_left_behind(evidence: Evidence) -> Iterator[str]:
    """When all supervisors have ended, so have their children."""
    yield from evidence.left_behind


def work_resumes(evidence: Evidence) -> Iterator[str]:
    """After the database was back, a job began soon."""
    for seconds in resumed_after(evidence):
        if seconds > RESUME_SECONDS:
            yield f"the first job began {seconds:.1f} s after the database was back"


def resumed_after(evidence: Evidence) -> list[float]:
    """How long after each return of the database the next job began, where there was still one to begin."""
    begun = sorted(run.began for run in evidence.runs)
    later = [[began - at for began in begun if began >= at] for at in evidence.returned_at]
    return [round(gaps[0], 2) for gaps in later if gaps]


INVARIANTS: dict[str, Callable[[Evidence], Iterator[str]]] = {
    "nothing is lost": nothing_is_lost,
    "completed exactly once": completed_exactly_once,
    "no overlap of a manifest with itself, by rows": no_overlap_in_rows,
    "no overlap of a manifest with itself, by witness": no_overlap_in_witness,
    "fenced runs recorded nothing": fenced_recorded_nothing,
    "limits hold, by rows": limits_hold_in_rows,
    "limits hold, by witness": limits_hold_in_witness,
    "dependents are not lost": dependents_are_not_lost,
    "dependents are not doubled": dependents_are_not_doubled,
    "dependents begin after their parents": dependents_begin_after_their_parents,
    "continuations wait for all parts": continuations_wait_for_all_parts,
    "dead letters are for poison": letters_are_for_poison,
    "terminal rows are final": terminal_rows_are_final,
    "nothing is left open": nothing_is_left_open,
    "fsck finds nothing": fsck_finds_nothing,
    "nothing was mended": nothing_was_mended,
    "processes survive": processes_survive,
    "nobody is left behind": nobody_is_left_behind,
    "work resumes": work_resumes,
}


def _grouped(rows: Iterable[V], *, by: Callable[[V], K]) -> dict[K, list[V]]:
    groups: dict[K, list[V]] = defaultdict(list)
    for row in rows:
        groups[by(row)].append(row)
    return groups


def _overlaps(evidence: Evidence, *, is_fence_respected: bool) -> Iterator[tuple[Run, Run]]:
    """Runs of one manifest of which the later began before the earlier was over."""
    spans = zip(evidence.runs, _ends(evidence, is_fence_respected=is_fence_respected), strict=True)
    # A run that was fenced before it began counts for nothing.
    real = [(run, end) for run, end in spans if end > run.began or not is_fence_respected]
    for alike in _grouped(real, by=lambda span: span[0].manifest).values():
        latest, over = alike[0]
        for run, end in alike[1:]:
            if run.began < over:
                yield latest, run
            if end > over:
                latest, over = run, end


def _ends(evidence: Evidence, *, is_fence_respected: bool) -> list[float]:
    """Up to when each run certainly went on or, where the fence counts, could still have recorded something."""
    recorded = _recorded(evidence)
    ends = []
    for run in evidence.runs:
        end = run.until(evidence.seen)
        if is_fence_respected and run not in recorded:
            end = max(run.began, min([end, *_frozen_since(run, evidence, until=end)]))
        ends.append(end)
    return ends


def _recorded(evidence: Evidence) -> set[Run]:
    """The runs whose end was written by the process that held them.

    A process that lost its lease may claim an execution once more under the next; what it recorded is the last run.
    """
    written = {(row.id, row.pid) for row in evidence.executions if row.ended_at and row.failure_type != LOST}
    holders = {(run.execution, evidence.pids.get(run.member)): run for run in evidence.runs}  # in their order
    return {run for holder, run in holders.items() if holder in written}


def _frozen_since(run: Run, evidence: Evidence, *, until: float) -> list[float]:
    """When the process that held the run's lease stood still during it, or just before it."""
    return [
        freeze.since
        for freeze in evidence.freezes
        if freeze.member == run.member and freeze.since <= until and freeze.until + WAKING_SECONDS >= run.began
    ]


def _exceeded(evidence: Evidence, spans: Sequence[tuple[str, Any, Any]]) -> Iterator[str]:
    for group, limit in {**evidence.limits, "": evidence.max_active}.items():
        mine = [(begin, end) for name, begin, end in spans if group in ("", name) and begin < end]
        highest, at = _highest(mine)
        if limit is not None and highest > limit:
            yield f"{group or 'all groups'}: {highest} at once at {at}; the limit is {limit}"


def _highest(spans: Sequence[tuple[Any, Any]]) -> tuple[int, Any]:
    """The largest number of spans that cover one moment, and that moment; an end comes before a beginning."""
    steps = sorted([(begin, 1) for begin, end in spans] + [(end, -1) for begin, end in spans])
    highest, at, present = 0, None, 0
    for moment, step in steps:
        present += step
        if present > highest:
            highest, at = present, moment
    return highest, at


def _edges(
    evidence: Evidence, by_manifest: Mapping[str, list[Execution]]
) -> Iterator[tuple[Expected, list[Execution]]]:
    """Each dependent that fires by itself, with the successes of its parent."""
    for item in evidence.expected.values():
        if item.parent is not None and not item.is_activated:
            yield item, [row for row in by_manifest[item.parent] if row.is_completed]


def _covers(run: Execution, parent: Execution) -> bool:
    """Whether the run stands for this success of its parent, or for a newer one."""
    is_later = parent.ended_at is not None and run.created_at >= parent.ended_at
    return is_later and run.parent is not None and run.parent >= parent.id


def _part_is_done(evidence: Evidence, rows: Sequence[Execution], *, sibling: str, run: Execution) -> bool:
    """Whether a sibling had completed for the run's parent, or a newer one, or had been given up."""
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
