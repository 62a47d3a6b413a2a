"""The checker: each invariant is a function of the evidence that yields its violations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from chaos import families, joins
from chaos.evidence import ACTIVATION, ACTIVE, AWAITING, KILLED, LOST, Evidence
from chaos.faults import BYSTANDERS
from chaos.figures import resumed_after
from chaos.receivers import ONCE
from chaos.settings import KILL_GRACE
from chaos.spans import EVERYTHING, at_work, ends_of, grouped, limit_of, overlaps, peaks
from chaos.workload import MARATHON_SECONDS, OVERSTAY_TIMEOUT

SHOWN = 5
RESUME_SECONDS = 15
# The longest other job in the same process may finish first; the rest is for a busy machine.
OVERLONG_SECONDS = OVERSTAY_TIMEOUT + KILL_GRACE + MARATHON_SECONDS + 15


@dataclass(frozen=True, slots=True)
class Verdict:
    """An invariant and its violations."""

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
    """Every expected run has completed, and every poison job left a letter."""
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
    for key, same in grouped(completed, by=lambda row: (row.manifest, row.scheduled_for, row.parent)).items():
        if len(same) > 1:
            yield f"{key[0]}, due {key[1]}, completed as " + " and ".join(f"#{row.id}" for row in same)
    for manifest, number in Counter(row.manifest for row in completed).items():
        item = evidence.expected[manifest]
        if item.is_poison or (item.is_exact and number > item.runs):
            yield f"{manifest} completed {number} times"


def completions_are_witnessed(evidence: Evidence) -> Iterator[str]:
    """Every execution that is recorded as completed came to its end in the process that recorded it."""
    whole = {(run.execution, run.pid, evidence.pids.get(run.member)) for run in evidence.runs if run.is_whole}
    for row in evidence.executions:
        if row.is_completed and (row.id, row.worker, row.pid) not in whole:
            yield f"{row} completed, but no run of it in its process came to its end"


def failures_have_a_cause(evidence: Evidence) -> Iterator[str]:
    """A job fails as it is meant to, or because its process was killed or lost; for no other reason."""
    for row in evidence.executions:
        if row.failure_type and row.failure_type not in (LOST, KILLED, *evidence.expected[row.manifest].failures):
            yield f"{row} failed with {row.failure_type}"


def runs_have_rows(evidence: Evidence) -> Iterator[str]:
    """Every run that began in a process has its row, regardless of what became of the process."""
    known = {row.id for row in evidence.executions}
    for run in evidence.runs:
        if run.execution not in known:
            yield f"{run.manifest} began in {run.member} as #{run.execution}, which no row tells of"


def overlong_runs_are_ended(evidence: Evidence) -> Iterator[str]:
    """A job that runs too long is asked to stop, interrupted and killed; other jobs of its process may finish first."""
    for run, end in zip(evidence.runs, ends_of(evidence, is_fence_respected=False), strict=True):
        stood_still = sum(freeze.until - freeze.since for freeze in evidence.freezes if freeze.member == run.member)
        if evidence.expected[run.manifest].is_too_long and end - run.began > OVERLONG_SECONDS + stood_still:
            yield f"{run.manifest} #{run.execution} went on for {end - run.began:.1f} s"


def no_overlap_in_rows(evidence: Evidence) -> Iterator[str]:
    """A manifest's next execution was dispatched after the one before had ended."""
    for rows in grouped(evidence.executions, by=lambda row: row.manifest).values():
        for before, after in pairwise(sorted(rows, key=lambda row: (row.created_at, row.id))):
            if before.ended_at is None or after.created_at < before.ended_at:
                yield f"{after} was dispatched before {before} had ended"


def no_overlap_in_witness(evidence: Evidence) -> Iterator[str]:
    """No two runs of a manifest were at work at once, except for runs that a freeze fenced off."""
    for before, after in overlaps(evidence, is_fence_respected=True):
        yield (
            f"{after.manifest}: #{after.execution} began in {after.member} while #{before.execution} ran in "
            f"{before.member}"
        )


def fenced_recorded_nothing(evidence: Evidence) -> Iterator[str]:
    """Runs that went on after the lease of their process was taken have changed no row."""
    ended = {row.id: row.ended_at for row in evidence.executions}
    for row in evidence.queue:
        ended_at = ended.get(row.parent or 0)
        if row.source == ACTIVATION and ended_at is not None and row.created_at > ended_at:
            yield f"{row.manifest} was activated by #{row.parent} after that had ended"


def limits_hold_in_rows(evidence: Evidence) -> Iterator[str]:
    """Never more executions of a group between dispatch and end than its limit allows.

    Of all groups more may be dispatched than run at once: short jobs wait in the children that will run them.
    """
    last = max((row.created_at for row in evidence.executions), default=None)
    spans = [(row.group, row.created_at, row.ended_at or last) for row in evidence.executions]
    yield from _exceeded(evidence, spans, groups=list(evidence.limits))


def limits_hold_in_witness(evidence: Evidence) -> Iterator[str]:
    """Never more runs at work at once than the limits of a group and of all groups allow."""
    yield from _exceeded(evidence, at_work(evidence), groups=[*evidence.limits, EVERYTHING])


def letters_are_for_poison(evidence: Evidence) -> Iterator[str]:
    """Every poison job has one dead letter, and no other job has any."""
    awaiting = Counter(letter.manifest for letter in evidence.letters if letter.status == AWAITING)
    for item in evidence.expected.values():
        if awaiting[item.manifest] != int(item.is_poison):
            kind = "poison" if item.is_poison else "not poison"
            yield f"{item.manifest} is {kind} and has {awaiting[item.manifest]} dead letters"


def nothing_is_left_open(evidence: Evidence) -> Iterator[str]:
    """All jobs came to their end in time."""
    if not evidence.is_quiet:
        yield "it did not become quiet in time"
    for row in evidence.executions:
        if row.state in ACTIVE:
            yield f"{row} has not ended"
    for waiting in evidence.queue:
        if waiting.status == "queued":
            yield f"{waiting.manifest} still waits in the queue"


def terminal_rows_are_final(evidence: Evidence) -> Iterator[str]:
    """An execution that has ended does not change."""
    yield from evidence.changed


def fsck_finds_nothing(evidence: Evidence) -> Iterator[str]:
    """``chainsched fsck`` finds no violation in the rows."""
    yield from evidence.findings


def reconciler_repaired_nothing(evidence: Evidence) -> Iterator[str]:
    """The reconciler, which repairs omissions of the loops, found nothing."""
    yield from evidence.repaired


def processes_survive(evidence: Evidence) -> Iterator[str]:
    """A process ends only when it is killed or stopped; faults of the database and freezes do not end it."""
    for end in evidence.exits:
        if not (end.was_killed or (end.was_stopped and end.code == 0)):
            when = "when it was stopped" if end.was_stopped else "although it was neither killed nor stopped"
            frozen = "; it had been frozen" if end.was_frozen else ""
            yield f"{end.member} ended with {end.code} {when}{frozen}"


def no_process_is_idle(evidence: Evidence) -> Iterator[str]:
    """Every process that lived at the end had a heartbeat and turned its loops."""
    yield from evidence.idle_processes


def nobody_is_held_up(evidence: Evidence) -> Iterator[str]:
    """Other jobs went on while receivers blocked or a user's transaction held manifests."""
    yield from evidence.held_up
    lasted = sum(evidence.happened.get(kind, 0) for kind in BYSTANDERS)
    if lasted and not evidence.looked:
        yield f"{lasted} faults that hold up no job happened, and at the end of none the database could be asked"


def signals_are_sent_once(evidence: Evidence) -> Iterator[str]:
    """No receiver was called twice for one event of a row."""
    for (signal, row), number in Counter((heard.signal, heard.row) for heard in evidence.heard).items():
        if number > 1 and signal in ONCE:
            yield f"{signal} was sent {number} times for #{row}"


def all_faults_happened(evidence: Evidence) -> Iterator[str]:
    """Each kind of fault happened as often as the options say."""
    for kind, number in evidence.requested.items():
        if evidence.happened.get(kind, 0) != number:
            yield f"{kind}: {evidence.happened.get(kind, 0)} of {number}"


def no_process_is_left_over(evidence: Evidence) -> Iterator[str]:
    """When all supervisors have ended, their children have ended too."""
    yield from evidence.left_over


def work_resumes(evidence: Evidence) -> Iterator[str]:
    """After the database was back, a job began soon."""
    for seconds in resumed_after(evidence):
        if seconds > RESUME_SECONDS:
            yield f"the first job began {seconds:.1f} s after the database was back"
    last = max((run.began for run in evidence.runs), default=0.0)
    if not evidence.is_quiet and any(at > last for at in evidence.returned_at):
        yield "no job began after the database was back, although jobs were left"


INVARIANTS: dict[str, Callable[[Evidence], Iterator[str]]] = {
    "nothing is lost": nothing_is_lost,
    "completed exactly once": completed_exactly_once,
    "completions are witnessed": completions_are_witnessed,
    "failures have a cause": failures_have_a_cause,
    "runs have their rows": runs_have_rows,
    "overlong runs are ended": overlong_runs_are_ended,
    "no overlap of a manifest with itself, by rows": no_overlap_in_rows,
    "no overlap of a manifest with itself, by witness": no_overlap_in_witness,
    "fenced runs recorded nothing": fenced_recorded_nothing,
    "limits hold, by rows": limits_hold_in_rows,
    "limits hold, by witness": limits_hold_in_witness,
    "dependents are not lost": families.dependents_are_not_lost,
    "dependents are not doubled": families.dependents_are_not_doubled,
    "dependents begin after their parents": families.dependents_begin_after_their_parents,
    "activations are kept": families.activations_are_kept,
    "joins wait for all parts": joins.joins_wait_for_all_parts,
    "joins run with enough": joins.joins_run_with_enough,
    "joins cover every run": joins.joins_cover_every_run,
    "runs come to their end": joins.runs_come_to_their_end,
    "dead letters are for poison": letters_are_for_poison,
    "terminal rows are final": terminal_rows_are_final,
    "nothing is left open": nothing_is_left_open,
    "fsck finds nothing": fsck_finds_nothing,
    "reconciler repaired nothing": reconciler_repaired_nothing,
    "processes survive": processes_survive,
    "no process is idle": no_process_is_idle,
    "no process is left over": no_process_is_left_over,
    "work resumes": work_resumes,
    "work goes on": nobody_is_held_up,
    "signals are sent once": signals_are_sent_once,
    "all faults happened": all_faults_happened,
}


def _exceeded(evidence: Evidence, spans: Sequence[tuple[str, Any, Any]], *, groups: Collection[str]) -> Iterator[str]:
    for group, (highest, at) in peaks(evidence, spans).items():
        limit = limit_of(evidence, group) if group in groups else None
        if limit is not None and highest > limit:
            yield f"{group}: {highest} at once at {at}; the limit is {limit}"
