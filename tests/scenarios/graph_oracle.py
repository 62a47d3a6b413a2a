"""A second opinion about the engine's rows: what may come to a join, what arrived at it, and what has to have run.

It looks at edges, at open items and at the runs that rows stand for; it reads no counter, and a token only for its run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import NamedTuple

from django.db.models import F

from chainsched.models import (
    DeadLetter,
    Dependency,
    DueNote,
    GraphRun,
    JoinNote,
    JoinState,
    Manifest,
    ManifestState,
    Metadata,
    TakenOver,
    WorkQueue,
)

END = 0
WAITING, FIRED, SHORT, CANCELLED, CLOSED = "waiting", "fired", "short", "cancelled", "closed"
ON_SUCCESS, ON_FAILURE, ON_COMPLETION = 1, 2, 3
MEETS = {
    "completed": {ON_SUCCESS, ON_COMPLETION},
    "dead": {ON_FAILURE, ON_COMPLETION},
    "cancelled": {ON_COMPLETION},
}
BY_AN_OPERATOR = ("trigger", "dead_letter")


class Edge(NamedTuple):
    """A stored edge."""

    parent: int
    child: int
    condition: int
    is_gate: bool
    since: int


class OpenItem(NamedTuple):
    """What a manifest has to do, in these runs."""

    manifest: int
    runs: frozenset[int]
    place: str
    id: int
    is_left_out: bool = False


class Stand(NamedTuple):
    """How a join stands in a run."""

    id: int
    outcome: str
    deadline_at: datetime | None
    firings: int


@dataclass(frozen=True)
class Graph:
    """The edges and manifests as they are stored; they change by edits and by switching only."""

    edges: list[Edge]
    manifests: dict[int, Manifest]

    @classmethod
    def load(cls) -> Graph:
        rows = Dependency.objects.values_list("parent_id", "child_id", "condition", "is_gate", "since")
        manifests = Manifest.objects.select_related("group", "depends_on")
        return cls([Edge(*row) for row in rows.order_by("id")], {manifest.pk: manifest for manifest in manifests})

    @cached_property
    def below(self) -> dict[int, list[Edge]]:
        found: dict[int, list[Edge]] = defaultdict(list)
        for edge in self.edges:
            found[edge.parent].append(edge)
        return found

    def is_join(self, manifest_id: int) -> bool:
        return self.manifests[manifest_id].is_join

    def descendants(self, manifest_id: int) -> set[int]:
        found: set[int] = set()
        waiting = [manifest_id]
        while waiting:
            for edge in self.below.get(waiting.pop(), ()):
                if edge.child not in found:
                    found.add(edge.child)
                    waiting.append(edge.child)
        return found

    def is_stopped(self, manifest_id: int) -> bool:
        """Whether it may not begin by itself."""
        manifest = self.manifests[manifest_id]
        parent = manifest.depends_on
        is_plain = manifest.run_condition and not manifest.is_join
        return (
            not manifest.is_enabled
            or not manifest.group.is_enabled
            or bool(is_plain and (parent is None or not parent.is_enabled))
        )

    def is_held(self, manifest_id: int, source: str) -> bool:
        """Whether a row that waits may not begin."""
        manifest = self.manifests[manifest_id]
        return not manifest.group.is_enabled or not (manifest.is_enabled or source in BY_AN_OPERATOR)


class Rows:
    """What is open, and how each join stands, at one time."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        rows = JoinState.objects.values_list("join_id", "run_id", "id", "outcome", "deadline_at", "firings")
        self.states = {(join_id, run_id): Stand(*columns) for join_id, run_id, *columns in rows}
        self.run_of = {state.id: run_id for (_, run_id), state in self.states.items()}

    @cached_property
    def versions(self) -> dict[int, int]:
        return dict(GraphRun.objects.values_list("id", "version"))

    @cached_property
    def items(self) -> list[OpenItem]:
        return [*self._queued(), *self._active(), *self._due(), *self._noted()]

    def _runs(self, run_id: int | None, tokens: Iterable[int]) -> frozenset[int]:
        found = {self.run_of[token] for token in tokens}
        return frozenset(found | ({run_id} if run_id is not None else set()))

    def _queued(self) -> Iterator[OpenItem]:
        rows = WorkQueue.objects.queued().filter(manifest__isnull=False)
        for id_, manifest_id, run_id, tokens, source in rows.values_list(
            "id", "manifest_id", "run_id", "tokens", "source"
        ):
            is_held = self.graph.is_held(manifest_id, source)
            yield OpenItem(manifest_id, self._runs(run_id, tokens), "queued", id_, is_held)

    def _active(self) -> Iterator[OpenItem]:
        rows = list(Metadata.objects.active().values_list("id", "manifest_id", "run_id", "tokens"))
        further = runs_taken_over([row[0] for row in rows])
        for id_, manifest_id, run_id, tokens in rows:
            yield OpenItem(manifest_id, self._runs(run_id, tokens) | further[id_], "active", id_)

    def _due(self) -> Iterator[OpenItem]:
        rows = ManifestState.objects.filter(due_execution__gt=F("covered_execution"))
        letters = set(DeadLetter.objects.awaiting().values_list("manifest_id", flat=True))
        # One whose obstacle was lifted has its part again as soon as it takes the sign to look.
        signs = set(DueNote.objects.filter(parent_execution_id=0).values_list("child_id", flat=True))
        for manifest_id, run_id, tokens in rows.values_list("manifest_id", "due_run", "due_tokens"):
            is_left_out = manifest_id in letters | signs or self.graph.is_stopped(manifest_id)
            yield OpenItem(manifest_id, self._runs(run_id, tokens), "due", manifest_id, is_left_out)

    def _noted(self) -> Iterator[OpenItem]:
        rows = DueNote.objects.exclude(parent_execution_id=0).values_list("id", "child_id", "run_id", "tokens")
        for id_, manifest_id, run_id, tokens in rows:
            yield OpenItem(manifest_id, self._runs(run_id, tokens), "noted", id_)

    def leads(self, manifest_id: int, join_id: int, run_id: int) -> bool:
        """Whether what a manifest does in a run can come to a join.

        Through edges that are as old as the run, and joins that are undecided in it.
        """
        for edge in self.graph.below.get(manifest_id, ()):
            if edge.since > self.versions[run_id]:
                continue
            if edge.child == join_id:
                return True
            if self.graph.is_join(edge.child):
                beyond = self.states.get((edge.child, run_id))
                is_open = beyond is not None and beyond.outcome == WAITING
            else:
                is_open = True
            if is_open and self.leads(edge.child, join_id, run_id):
                return True
        return False

    def decided_too_early(self, before: Rows, *, now: datetime) -> str:
        """What still comes to a join that was decided since ``before``, in words; empty if nothing does.

        A join that is eager, or past its deadline, decides by what has arrived.
        """
        for key, state in self.states.items():
            old = before.states.get(key)
            is_new = state.outcome in (FIRED, SHORT) and old is not None and old.outcome == WAITING
            manifest = self.graph.manifests.get(key[0])
            if not is_new or manifest is None or (manifest.is_eager and state.outcome == FIRED):
                continue
            if state.deadline_at is not None and state.deadline_at <= now:
                continue
            for problem in self._what_comes(*key, before):
                return f"{manifest} was decided ({state.outcome}) in run {key[1]} although {problem}"
        return ""

    def fired_too_early(self, before: Rows) -> str:
        """A join that fired since ``before`` although too few of its present parents came, in words; or nothing."""
        fired = [
            key
            for key, state in self.states.items()
            if key in before.states and state.firings > before.states[key].firings
        ]
        history = History(self.graph) if fired else None
        for join_id, run_id in fired:
            join = self.graph.manifests.get(join_id)
            if history is None or join is None:
                continue
            edges = history.edges_to(join_id, run_id)
            came = [edge for edge in edges if not edge.is_gate and history.has_come(edge, run_id)]
            need = needed(join, sum(not edge.is_gate for edge in edges))
            if len(came) < need:
                return f"{join} fired in run {run_id}, where {came} came of {need} that it needs"
        return ""

    def closed_too_early(self) -> str:
        """What is open in a run that counts as closed, in words; not asked of runs with notes that are not added up."""
        noted = {self.run_of[id_] for id_ in JoinNote.objects.values_list("state_id", flat=True) if id_ in self.run_of}
        signs = set(DueNote.objects.filter(parent_execution_id=0).values_list("child_id", flat=True))
        closed = {
            run_id for (join_id, run_id), state in self.states.items() if (join_id, state.outcome) == (END, CLOSED)
        }
        for item in self.items:
            if not item.is_left_out and item.manifest not in signs and (runs := item.runs & closed - noted):
                return f"{self.graph.manifests[item.manifest]} is {item.place} in {sorted(runs)}, which count as closed"
        return ""

    def _what_comes(self, join_id: int, run_id: int, before: Rows) -> Iterator[str]:
        for item in self.items:
            if item.is_left_out or run_id not in item.runs or self._is_late_firing(item, run_id, before):
                continue
            if self.leads(item.manifest, join_id, run_id):
                yield f"{self.graph.manifests[item.manifest]} is {item.place} in it"
        for (other, run), state in self.states.items():
            if run != run_id or other in (END, join_id) or state.outcome != WAITING:
                continue
            if other in self.graph.manifests and self.leads(other, join_id, run_id):
                yield f"join {self.graph.manifests[other]} is undecided in it"

    def _is_late_firing(self, item: OpenItem, run_id: int, before: Rows) -> bool:
        """Whether it comes of a join that had been decided before: late for all that comes after it.

        It is the note of the join, or what became of the note since then.
        """
        old = before.states.get((item.manifest, run_id))
        if old is None or old.outcome == WAITING:
            return False
        was_there = any(other.manifest == item.manifest and run_id in other.runs for other in before.items)
        return item.place == "noted" or not was_there


def runs_taken_over(execution_ids: Collection[int]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = defaultdict(set)
    for run_id, execution_id in TakenOver.objects.filter(execution_id__in=execution_ids).values_list(
        "run_id", "execution_id"
    ):
        found[execution_id].add(run_id)
    return found


def find_unsettled() -> list[str]:
    """What is not over although nothing is under way any more: joins, runs, notes."""
    states = [f"{state} counts {state.open} open" for state in JoinState.objects.exclude(open=0)]
    states += [f"{state} is never decided" for state in JoinState.objects.waiting()]
    runs = [f"{run} is not closed" for run in GraphRun.objects.open()]
    notes = [f"{note} is left" for model in (DueNote, JoinNote) for note in model.objects.all()]
    return states + runs + notes


class History:
    """How everything that is over ended, and in which runs."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.executions = list(Metadata.objects.order_by("id"))
        dead = set(DeadLetter.objects.values_list("execution_id", flat=True))
        further = runs_taken_over([row.pk for row in self.executions])
        self.runs = {row.pk: further[row.pk] | ({row.run_id} - {None}) for row in self.executions}
        self.outcomes = {
            row.pk: "dead" if row.state == "failed" else row.state
            for row in self.executions
            if row.ended_at is not None and (row.state != "failed" or row.pk in dead)
        }
        self.cancelled = set(GraphRun.objects.filter(cancelled_at__isnull=False).values_list("id", flat=True))
        self.versions = dict(GraphRun.objects.values_list("id", "version"))

    def problems(self, *, is_edited: bool, cancelled: Collection[int]) -> Iterator[str]:
        """Everything that is wrong. ``cancelled`` are manifests of which work was cancelled by hand."""
        for state in JoinState.objects.exclude(join_id=END).order_by("id"):
            if state.run_id not in self.cancelled and state.join_id in self.graph.manifests:
                yield from self._problems_of_join(state, is_edited=is_edited, cancelled=cancelled)
        for edge in self.graph.edges:
            if not self.graph.is_join(edge.child) and edge.child not in cancelled:
                yield from self._problems_of_dependent(edge)

    def _problems_of_join(self, state: JoinState, *, is_edited: bool, cancelled: Collection[int]) -> Iterator[str]:
        join = self.graph.manifests[state.join_id]
        edges = self.edges_to(join.pk, state.run_id)
        came = [edge for edge in edges if self.has_come(edge, state.run_id)]
        arrived = sum(not edge.is_gate for edge in came)
        is_gated = any(edge.is_gate for edge in came)
        where = f"{join} in run {state.run_id} ({state.outcome}, fired {state.firings} times)"
        if not is_edited:
            if (state.arrived, state.is_gated) != (arrived, is_gated):
                yield f"{where}: {state.arrived} arrivals are counted, gate {state.is_gated}; {came} came"
            need = needed(join, sum(not edge.is_gate for edge in edges))
            is_enough = bool(came) and arrived >= need and (is_gated or not join.fan_in)
            if is_enough != bool(state.firings):
                yield f"{where}: {arrived} of {need} came, gate {is_gated}"
        if state.firings > 1 and not join.runs_again_on_late:
            yield f"{where}: it does not ask to run again"
        if state.firings and join.pk not in cancelled and not self._ran(join.pk, state.run_id, after=0):
            yield f"{where}: it never ran for that run"

    def edges_to(self, join_id: int, run_id: int) -> list[Edge]:
        """The edges to a join that are as old as the run."""
        return [edge for edge in self.graph.edges if edge.child == join_id and edge.since <= self.versions[run_id]]

    def has_come(self, edge: Edge, run_id: int) -> bool:
        """Whether an outcome of the parent in the run matched."""
        return any(
            row.manifest_id == edge.parent
            and run_id in self.runs[row.pk]
            and row.pk in self.outcomes
            and edge.condition in MEETS[self.outcomes[row.pk]]
            for row in self.executions
        )

    def _problems_of_dependent(self, edge: Edge) -> Iterator[str]:
        """Each outcome that a plain dependent runs after has a run of it that stands for the same runs."""
        for row in self.executions:
            if row.manifest_id != edge.parent or row.is_tree_cancelled or row.pk not in self.outcomes:
                continue
            if edge.condition not in MEETS[self.outcomes[row.pk]]:
                continue
            for run_id in self.runs[row.pk] - self.cancelled:
                if not self._ran(edge.child, run_id, after=row.pk):
                    yield f"{self.graph.manifests[edge.child]} never ran after {row} in run {run_id}"

    def _ran(self, manifest_id: int, run_id: int, *, after: int) -> bool:
        return any(
            row.manifest_id == manifest_id and run_id in self.runs[row.pk] and row.pk > after for row in self.executions
        )


def needed(join: Manifest, edges: int) -> int:
    """How many of so many parents have to arrive."""
    if join.at_least_percent is not None:
        return -(-edges * join.at_least_percent // 100)
    if join.at_least is not None:
        return min(join.at_least, edges)
    return 0 if join.fan_in else edges
