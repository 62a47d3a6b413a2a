"""The invariants of joins, and of runs of the graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from chaos.evidence import Evidence, Execution, Letter, Waiting
from chaos.spans import grouped
from chaos.workload import Expected

WAITING = "waiting"
FIRED = "fired"
SHORT = "short"
CANCELLED = "cancelled"


def joins_wait_for_all_parts(evidence: Evidence) -> Iterator[str]:
    """A join was dispatched after everything that leads to it had ended in each run that it stands for.

    Those with a deadline, and eager ones, need not wait for all.
    """
    facts = _Facts(evidence)
    for item, execution in facts.runs_of_joins():
        if item.is_early:
            continue
        for run in sorted(execution.runs):
            for member in item.members:
                if not facts.has_done_its_part(member, run=run, by=execution.created_at):
                    yield f"{execution} was dispatched before {member} had done its part in run {run}"


def joins_run_with_enough(evidence: Evidence) -> Iterator[str]:
    """A join was dispatched with as many arrivals as it needs, and after its gate, in each run that it stands for."""
    facts = _Facts(evidence)
    for item, execution in facts.runs_of_joins():
        if not execution.runs:
            yield f"{execution} stands for no run"
        for run in sorted(execution.runs):
            if (lack := facts.lack_of(item, run=run, by=execution.created_at)) is not None:
                yield f"{execution} was dispatched in run {run} although {lack}"


def joins_cover_every_run(evidence: Evidence) -> Iterator[str]:
    """Every run of a head is covered by exactly one run of each join of it, or was cancelled, or has too little for it.

    What has arrived is read from the executions; the row of the join has to agree.
    """
    facts = _Facts(evidence)
    joins = grouped((item for item in evidence.expected.values() if item.is_join), by=lambda item: item.head)
    for passage in evidence.passages:
        for item in joins.get(passage.head, ()):
            row = facts.waiting.get((passage.id, item.manifest))
            covered = facts.coverings(item.manifest, passage.id)
            if row is None:
                yield f"{item.manifest} has no row in run {passage.id}"
            elif passage.cancelled_at is not None:
                continue
            elif (lack := facts.lack_of(item, run=passage.id)) is not None:
                if row.outcome != SHORT:
                    yield f"{row} is not short although {lack}"
            elif row.outcome != FIRED or covered != 1:
                yield f"{row} is covered by {covered} runs"


def runs_come_to_their_end(evidence: Evidence) -> Iterator[str]:
    """Every run is closed with nothing open in it, and no note is left."""
    for passage in evidence.passages:
        if passage.closed_at is None:
            yield f"run {passage.id} of {passage.head} is open"
    for row in evidence.waiting:
        if row.open or row.outcome == WAITING:
            yield f"{row} has not come to its end"
    yield from evidence.notes


@dataclass(slots=True)
class _Facts:
    """The rows of a run by the keys that the invariants ask for."""

    evidence: Evidence
    waiting: dict[tuple[int, str], Waiting] = field(init=False)
    _executions: dict[tuple[str, int], list[Execution]] = field(init=False)
    _by_manifest: dict[str, list[Execution]] = field(init=False)
    _letters: dict[str, list[Letter]] = field(init=False)

    def __post_init__(self) -> None:
        self.waiting = {(row.run, row.join): row for row in self.evidence.waiting}
        standing = [(row, run) for row in self.evidence.executions for run in row.runs]
        pairs = grouped(standing, by=lambda pair: (pair[0].manifest, pair[1]))
        self._executions = {key: [row for row, _ in found] for key, found in pairs.items()}
        self._by_manifest = grouped(self.evidence.executions, by=lambda row: row.manifest)
        self._letters = grouped(self.evidence.letters, by=lambda letter: letter.manifest)

    def runs_of_joins(self) -> Iterator[tuple[Expected, Execution]]:
        """Every execution of a join."""
        for item in self.evidence.expected.values():
            if item.is_join:
                for execution in self._by_manifest.get(item.manifest, ()):
                    yield item, execution

    def coverings(self, manifest: str, run: int) -> int:
        """How many completed or dead-lettered executions of a manifest stand for a run."""
        lettered = {letter.execution for letter in self._letters.get(manifest, ())}
        return sum(row.is_completed or row.id in lettered for row in self._of(manifest, run))

    def lack_of(self, item: Expected, *, run: int, by: datetime | None = None) -> str | None:
        """What a join lacks to run in a run, by a time or at the end; None if nothing."""
        if item.parent is not None and not self._has_completed(item.parent, run=run, by=by):
            return f"{item.parent} had not completed"
        arrived = [member for member in item.members if self._has_arrived(item, member, run=run, by=by)]
        return None if len(arrived) >= item.need else f"only {len(arrived)} of {item.need} had arrived"

    def has_done_its_part(self, manifest: str, *, run: int, by: datetime) -> bool:
        """Whether a manifest had ended in a run by a time, or could not be reached in it."""
        item = self.evidence.expected[manifest]
        if self._has_completed(manifest, run=run, by=by) or self._is_given_up(manifest, by=by):
            return True
        if (row := self.waiting.get((run, manifest))) is not None:
            is_decided = row.decided_at is not None and row.decided_at <= by
            return row.outcome in (SHORT, CANCELLED) and is_decided
        # It was not reached if what leads to it did not complete.
        return item.parent is not None and (
            not self._has_completed(item.parent, run=run) and self.has_done_its_part(item.parent, run=run, by=by)
        )

    def _has_arrived(self, item: Expected, member: str, *, run: int, by: datetime | None) -> bool:
        """Every outcome of a member of a fan-in is an arrival; of a declared parent only its success."""
        if self._has_completed(member, run=run, by=by):
            return True
        ran = bool(self._of(member, run))
        return item.is_fan_in and ran and self._is_given_up(member, by=by)

    def _has_completed(self, manifest: str, *, run: int, by: datetime | None = None) -> bool:
        return any(row.is_completed and _is_by(row.ended_at, by) for row in self._of(manifest, run))

    def _is_given_up(self, manifest: str, *, by: datetime | None) -> bool:
        return any(_is_by(letter.dead_lettered_at, by) for letter in self._letters.get(manifest, ()))

    def _of(self, manifest: str, run: int) -> Sequence[Execution]:
        return self._executions.get((manifest, run), ())


def _is_by(at: datetime | None, by: datetime | None) -> bool:
    return at is not None and (by is None or at <= by)


def counts(evidence: Evidence) -> dict[str, int]:
    """How many runs of the graph there were, and what became of the joins in them."""
    outcomes = Counter(row.outcome for row in evidence.waiting if row.join)
    return {
        "graph_runs": len(evidence.passages),
        "joins_run": outcomes[FIRED],
        "joins_short": outcomes[SHORT],
        "taken_over": sum(len(row.taken_over) for row in evidence.executions),
    }
