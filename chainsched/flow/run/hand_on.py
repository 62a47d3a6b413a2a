"""Stage 8 of 8: outcomes make dependents due, and arrive at joins. An item counts runs, not minutes.

Reads:  the edges that leave the manifests that ended, and the runs that their items stood for.
Writes: JoinNotes to joins.
Next:   consume delivers what dependents become due for; fold_notes, in the manager's turn.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from chainsched.domain.items import Item
from chainsched.domain.known import is_known
from chainsched.domain.outcomes import matches
from chainsched.domain.states import ExecutionState, RunCondition, ScheduleType
from chainsched.flow.run.consume import Due
from chainsched.flow.run.tokens import TokenLedger
from chainsched.models import DeadLetter, Dependency, JoinState, Metadata, TakenOver
from chainsched.models.dependency import FiringEdge
from chainsched.models.join_state import Place

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ended:
    """An outcome of a manifest's item; no manifest if that was removed while it ran."""

    manifest_id: int | None
    execution_id: int
    state: ExecutionState
    is_dead_lettered: bool
    item: Item
    # The items that it would lead to were cancelled with it: joins count it, no dependent runs for it.
    is_tree_cancelled: bool = False

    def matches(self, condition: int) -> bool:
        return matches(RunCondition(condition), state=self.state, is_dead_lettered=self.is_dead_lettered)


Edges = Mapping[int, Sequence[FiringEdge]]


def load_edges(manifest_ids: Collection[int]) -> Edges:
    """The edges over which outcomes of these manifests fire, by parent; a manifest that none leaves has no entry."""
    edges: dict[int, list[FiringEdge]] = defaultdict(list)
    for edge in Dependency.objects.leaving(manifest_ids) if manifest_ids else ():
        if edge.child_type == ScheduleType.DEPENDENT and is_known(RunCondition, edge.condition):
            edges[edge.parent_id].append(edge)
        else:
            logger.warning(
                "An outcome of manifest %d does not reach manifest %d: only a newer version knows the schedule type %r "
                "and the condition %r. Run it again from there with that version, if it should.",
                *(edge.parent_id, edge.child_id, edge.child_type, edge.condition),
            )
    return dict(edges)


def hand_on(ended: Sequence[Ended], edges: Edges, *, ledger: TokenLedger) -> list[Due]:
    """Let joins count in all runs that these items stood for, give their tokens back, and return what becomes due.

    The caller delivers that in the same transaction, so that no reader sees an item ended before its successors are
    open. It holds the states of the manifests that ended, and of no others.
    """
    places = JoinState.objects.places(
        token for outcome in ended if outcome.manifest_id in edges for token in outcome.item.tokens
    )
    live = {outcome.execution_id: _live_runs(outcome.item, places) for outcome in ended if outcome.manifest_id in edges}
    firing = [
        (outcome, edge)
        for outcome in ended
        for edge in edges.get(outcome.manifest_id or 0, ())
        if live[outcome.execution_id] and outcome.matches(edge.condition)
    ]
    _arrive([pair for pair in firing if pair[1].is_to_join], live, ledger=ledger)
    dues = _dues([pair for pair in firing if not pair[1].is_to_join and not pair[0].is_tree_cancelled], live)
    for outcome in ended:
        ledger.give_back(outcome.item.held)
    return dues


def _live_runs(item: Item, places: Mapping[int, Place]) -> dict[int, int]:
    """The runs that an item stands for and that were not cancelled, with the version of the graph of each."""
    known = (places[token] for token in item.tokens if token in places)
    return {place.run_id: place.version for place in known if not place.is_cancelled}


def _arrive(
    firing: Sequence[tuple[Ended, FiringEdge]], live: Mapping[int, Mapping[int, int]], *, ledger: TokenLedger
) -> None:
    """Count an arrival once for each edge and run, over edges that are older than the run."""
    arrivals = [
        (outcome, edge, run_id)
        for outcome, edge in firing
        for run_id, version in live[outcome.execution_id].items()
        if edge.since <= version
    ]
    states = JoinState.objects.of_joins([(edge.child_id, run_id) for _, edge, run_id in arrivals])
    earlier = _earlier_outcomes([(outcome, run_id) for outcome, _, run_id in arrivals if outcome.item.is_again])
    for outcome, edge, run_id in arrivals:
        state_id = states.get((edge.child_id, run_id))
        before = earlier.get((outcome.manifest_id or 0, run_id), ())
        # A gate that has matched stays so; and its condition may be another one than when an earlier outcome ended.
        if state_id is not None and (edge.is_gate or not any(old.matches(edge.condition) for old in before)):
            ledger.arrive(state_id, execution_id=outcome.execution_id, is_gate=edge.is_gate)


def _earlier_outcomes(again: Iterable[tuple[Ended, int]]) -> dict[tuple[int, int], list[Ended]]:
    """The outcomes that the same manifests had in these runs before; only items that are there again have any."""
    wanted = {(outcome.manifest_id or 0, run_id): outcome.execution_id for outcome, run_id in again}
    if not wanted:
        return {}
    manifest_ids, run_ids = {pair[0] for pair in wanted}, {pair[1] for pair in wanted}
    over = TakenOver.objects.filter(run_id__in=run_ids).values_list("execution_id", "run_id")
    taken_over: dict[int, set[int]] = defaultdict(set)
    for execution_id, run_id in over:
        taken_over[execution_id].add(run_id)
    known = Metadata.objects.known().filter(manifest__in=manifest_ids, ended_at__isnull=False)
    named = known.filter(run__in=run_ids).values_list("id", "manifest_id", "run_id", "state")
    also = known.filter(id__in=taken_over).values_list("id", "manifest_id", "run_id", "state")
    rows = {row[0]: row for row in (*named, *also)}
    dead = set(DeadLetter.objects.filter(execution__in=rows).values_list("execution_id", flat=True))
    found: dict[tuple[int, int], list[Ended]] = defaultdict(list)
    for execution_id, manifest_id, own_run_id, state in rows.values():
        outcome = Ended(manifest_id, execution_id, ExecutionState(state), execution_id in dead, Item())
        for run_id in {own_run_id or 0, *taken_over[execution_id]}:
            if execution_id < wanted.get((manifest_id or 0, run_id), 0):
                found[manifest_id or 0, run_id].append(outcome)
    return found


def _dues(firing: Sequence[tuple[Ended, FiringEdge]], live: Mapping[int, Mapping[int, int]]) -> list[Due]:
    """What plain dependents are due for, with the tokens of their items."""
    pairs = {(edge.child_id, run_id) for outcome, edge in firing for run_id in live[outcome.execution_id]}
    tokens = JoinState.objects.tokens_for(pairs)
    return [
        Due(
            child_id=edge.child_id,
            parent_execution_id=outcome.execution_id,
            item=Item(
                run_id=max(live[outcome.execution_id]),
                tokens=tuple(
                    sorted(
                        {
                            token
                            for run_id in live[outcome.execution_id]
                            for token in tokens.get((edge.child_id, run_id), ())
                        }
                    )
                ),
                has_tokens=True,
                is_again=outcome.item.is_again,
            ),
        )
        for outcome, edge in firing
    ]
