"""Which members of joins have arrived in a run, read from the executions: without the numbers that notes add up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from django.db.models import Exists, OuterRef

from chainsched.db.id_in import id_in
from chainsched.domain.known import is_known
from chainsched.domain.outcomes import matches
from chainsched.domain.states import ACTIVE_STATES, ExecutionState, RunCondition
from chainsched.models.dead_letter import DeadLetter
from chainsched.models.dependency import Dependency
from chainsched.models.graph_run import GraphRun
from chainsched.models.metadata import Metadata


class Member(NamedTuple):
    """A manifest that a join waits for."""

    join_id: int
    manifest_id: int
    name: str
    condition: int


class MemberRun(NamedTuple):
    """An execution of the run; whether it ended in a dead letter."""

    pk: int
    manifest_id: int
    state: ExecutionState
    is_dead: bool

    @property
    def is_outcome(self) -> bool:
        """A failure without a letter is none: an attempt follows."""
        return self.state not in ACTIVE_STATES and (self.state is not ExecutionState.FAILED or self.is_dead)


def load_members(run: GraphRun, join_ids: Collection[int], *, limit: int | None = None) -> list[Member]:
    """The members of these joins over edges that are older than the run, by name; one more than the limit, if so many.

    Retired ones, and one-time children that are done, are left out, as they are where edges are counted.
    """
    counted = Dependency.objects.of_present_members(join_ids).filter(since__lte=run.version)
    return _as_members(counted, limit=limit)


def load_runs(run: GraphRun, members: Iterable[Member]) -> list[MemberRun]:
    """The executions of these members in the run, the oldest first."""
    letters = DeadLetter.objects.filter(manifest=OuterRef("manifest"), execution=OuterRef("pk"))
    of_run = Metadata.objects.of_run(run.id).known()
    of_members = of_run.filter(id_in(manifest={member.manifest_id for member in members}))
    rows: Any = of_members.annotate(is_dead=Exists(letters)).values_list("pk", "manifest_id", "state", "is_dead")
    return [MemberRun(pk, manifest_id, ExecutionState(state), is_dead) for pk, manifest_id, state, is_dead in rows]


def find_arrived(executions: Iterable[MemberRun], members: Sequence[Member]) -> dict[tuple[int, int], int]:
    """The newest execution of each member that arrived at a join; one that failed later has arrived all the same."""
    outcomes: dict[int, list[MemberRun]] = defaultdict(list)
    for execution in executions:
        if execution.is_outcome:
            outcomes[execution.manifest_id].append(execution)
    return {
        (member.join_id, member.manifest_id): execution.pk
        for member in members
        for execution in outcomes[member.manifest_id]
        if is_known(RunCondition, member.condition)
        and matches(RunCondition(member.condition), state=execution.state, is_dead_lettered=execution.is_dead)
    }


def arrived_at(join_id: int, run: GraphRun) -> list[int]:
    """The executions of a run that arrived at a join, the newest of each parent."""
    edges = Dependency.objects.filter(child=join_id, is_gate=False, since__lte=run.version)
    members = _as_members(edges)
    return sorted(find_arrived(load_runs(run, members), members).values())


def count_present(join_id: int, run: GraphRun) -> int:
    """How many of the members that a join still has have arrived in a run."""
    members = load_members(run, [join_id])
    return len(find_arrived(load_runs(run, members), members)) if members else 0


def _as_members(edges: Any, *, limit: int | None = None) -> list[Member]:
    columns = ("child_id", "parent_id", "parent__external_id", "condition")
    rows = edges.order_by("parent__external_id").values_list(*columns)
    return [Member(*row) for row in (rows if limit is None else rows[: limit + 1])]
