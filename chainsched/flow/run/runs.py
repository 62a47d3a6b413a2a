"""Part of enqueue and record: give birth to runs of the graph, or let a head ride with an open one.

Reads:  the joins ahead of heads, and the version of the graph; how many runs of each head are open.
Writes: GraphRun and JoinState rows; JoinNotes of a head that rides.
Next:   the items of the run take and give back tokens of its JoinStates.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from chainsched.conf import get_config
from chainsched.db import bulk
from chainsched.domain.items import Item
from chainsched.flow.run.tokens import TokenLedger
from chainsched.models import GraphRun, JoinState, Metadata, Near
from chainsched.models.near import RUN_END, Reach

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Head:
    """A manifest that begins a run; ``may_ride`` if too many open runs may take it in instead."""

    manifest_id: int
    external_id: str
    scheduled_for: datetime
    may_ride: bool = False


def begin_runs(heads: Sequence[Head], *, ledger: TokenLedger, now: datetime) -> dict[int, Item]:
    """Open a run for each head that leads somewhere, and return the items of these heads by manifest.

    All JoinStates of a run are born with it, and count the head and the joins between them as open already.
    """
    reach = defaultdict(list)
    for step in Near.objects.reach_of([head.manifest_id for head in heads]):
        reach[step.head_id].append(step)
    leading = [head for head in heads if head.manifest_id in reach]
    items = _ride([head for head in leading if head.may_ride], ledger=ledger)
    return items | _give_birth([head for head in leading if head.manifest_id not in items], reach, now=now)


def rejoin_runs(executions: Mapping[int, Metadata], *, ledger: TokenLedger) -> dict[int, Item]:
    """Items that go on where executions ended, in those of their runs that were not cancelled; by the caller's keys.

    They are there again: joins that were decided before get them as late arrivals. No item for an execution without a
    run that is left.
    """
    known = {key: execution for key, execution in executions.items() if execution.run_id is not None}
    places = JoinState.objects.places(token for execution in known.values() for token in execution.tokens)
    runs = {
        key: {places[token].run_id for token in execution.tokens if token in places and not places[token].is_cancelled}
        for key, execution in known.items()
    }
    pairs = {(known[key].manifest_id or 0, run_id) for key, found in runs.items() for run_id in found}
    tokens = JoinState.objects.tokens_for(pairs)
    items = {}
    for key, found in runs.items():
        taken = {token for run_id in found for token in tokens.get((known[key].manifest_id or 0, run_id), ())}
        if taken:
            items[key] = Item(max(found), tuple(sorted(taken)), has_tokens=True, is_again=True)
            ledger.take(taken)
    return items


def forget_runs(run_ids: Collection[int]) -> None:
    """Remove runs whose head was not queued after all; nothing refers to them."""
    if not run_ids:
        return
    JoinState.objects.filter(run__in=run_ids).delete()
    GraphRun.objects.filter(id__in=run_ids).delete()


def _give_birth(heads: Sequence[Head], reach: Mapping[int, Sequence[Reach]], *, now: datetime) -> dict[int, Item]:
    if not heads:
        return {}
    rows = [
        {
            "head": head.manifest_id,
            "head_external_id": head.external_id,
            "version": reach[head.manifest_id][0].version,
            "scheduled_for": head.scheduled_for,
            "created_at": now,
        }
        for head in heads
    ]
    runs = {row["head"]: row["id"] for row in bulk.insert(GraphRun, rows, returning=("id", "head"))}
    states = _insert_states(runs, reach, now=now)
    return {
        head_id: Item(
            run_id,
            tuple(sorted(states[run_id][step.join_id] for step in reach[head_id] if step.source_id == head_id)),
            has_tokens=True,
        )
        for head_id, run_id in runs.items()
    }


def _insert_states(
    runs: Mapping[int, int], reach: Mapping[int, Sequence[Reach]], *, now: datetime
) -> dict[int, dict[int, int]]:
    """Insert the JoinStates of new runs; returns their ids by run and join."""
    rows = [row for head_id, run_id in runs.items() for row in _state_rows(run_id, reach[head_id], now=now)]
    states: dict[int, dict[int, int]] = defaultdict(dict)
    for row in bulk.insert(JoinState, rows, returning=("id", "run", "join_id")):
        states[row["run"]][row["join_id"]] = row["id"]
    # The ids of the rows behind a join are known only now; most runs have no join.
    tokens = [
        {"id": states[run_id][join_id], "tokens": sorted(states[run_id][step] for step in ahead)}
        for head_id, run_id in runs.items()
        for join_id, ahead in _ahead_of_joins(reach[head_id]).items()
    ]
    bulk.update(JoinState, tokens)
    return states


def _state_rows(run_id: int, steps: Sequence[Reach], *, now: datetime) -> list[dict[str, Any]]:
    """A row for each join on the way, and for the end; each source of a step counts as open before its target."""
    counted = Counter(step.join_id for step in steps)
    deadlines = {step.join_id: step.deadline_seconds for step in steps}
    return [
        {
            "run": run_id,
            "join_id": join_id,
            "open": counted[join_id],
            "deadline_at": None if deadlines[join_id] is None else now + timedelta(seconds=deadlines[join_id] or 0),
        }
        for join_id in sorted(counted)
    ]


def _ahead_of_joins(steps: Sequence[Reach]) -> dict[int, list[int]]:
    ahead: dict[int, list[int]] = defaultdict(list)
    reached = {step.join_id for step in steps}
    for step in steps:
        if step.source_id in reached:
            ahead[step.source_id].append(step.join_id)
    return ahead


def _ride(heads: Sequence[Head], *, ledger: TokenLedger) -> dict[int, Item]:
    """Let heads with too many open runs go on in their newest one of which nothing is decided.

    Never in the oldest: that one would be put off for ever. Its JoinStates are locked, so that none is decided now.
    """
    limit = get_config().max_open_runs
    if limit is None or not heads:
        return {}
    open_runs = GraphRun.objects.open_of([head.manifest_id for head in heads])
    full = {head_id: run_ids for head_id, run_ids in open_runs.items() if len(run_ids) >= limit}
    undecided = JoinState.objects.undecided_runs([id_ for run_ids in full.values() for id_ in run_ids[1:]])
    items = {}
    for head_id, run_ids in full.items():
        newest = max((id_ for id_ in run_ids[1:] if id_ in undecided), default=None)
        if newest is not None and _is_held_undecided(newest):
            tokens = tuple(JoinState.objects.tokens_for([(head_id, newest)]).get((head_id, newest), ()))
            items[head_id] = Item(newest, tokens, has_tokens=True, is_again=True)
            ledger.take(tokens)
    if items:
        logger.info("%d heads have %d open runs and go on in the newest of them.", len(items), limit)
    return items


def _is_held_undecided(run_id: int) -> bool:
    """Whether all JoinStates of a run could be locked and none of them is decided."""
    ids = list(JoinState.objects.filter(run=run_id).values_list("id", flat=True))
    held = JoinState.objects.lock_free(ids)
    is_waiting = all(state.outcome == "waiting" for state in held)
    return len(held) == len(ids) and is_waiting and any(state.join_id == RUN_END for state in held)
