"""Part of the manager's turn: add up the notes to joins, and decide those that have waited long enough.

Reads:  JoinNotes; JoinStates that are free, under their locks; the options and edges of the joins.
Writes: JoinStates; the end of runs; DueNotes to joins that run; JoinNotes to JoinStates that they no longer hold open.
Next:   consume lets the joins that run become due; ``settle`` takes both by turns, and evaluate queues due manifests.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from chainsched.db import bulk
from chainsched.db.id_in import id_in
from chainsched.domain.items import Item
from chainsched.domain.joins import Decision, FanIn, Join, JoinOutcome, Standing, decide, may_decide
from chainsched.flow.run.consume import Due, consume, leave_notes
from chainsched.flow.run.tokens import TokenLedger
from chainsched.flow.transactions import in_parts, transact
from chainsched.models import Dependency, GraphRun, JoinNote, JoinState, Manifest, NamedLock
from chainsched.models.arrivals import count_present
from chainsched.models.dependency import Counted
from chainsched.models.near import RUN_END

logger = logging.getLogger(__name__)

PAGE = 1000
# A decision may let another join decide, over as many levels as a graph has; the rest waits for the next turn.
MAX_ROUNDS = 100
GONE = Join(is_gone=True)


def settle(*, now: datetime) -> int:
    """Consume and fold until nothing is left that is free; returns how many rows were dealt with."""
    settled = 0
    for _ in range(MAX_ROUNDS):
        # Dependents first: an item that has a part again keeps the joins behind it waiting.
        done = consume(now=now) + fold_notes(now=now)
        if not done:
            break
        settled += done
    return settled


def fold_notes(*, now: datetime, limit: int = PAGE) -> int:
    """Add up and decide, page by page, until no free JoinState has a note; returns how many rows were changed.

    A note that comes while its JoinState is held here is found by the next look, which follows the commit.
    """
    folded = _fold_pages(now=now, limit=limit)
    while late := JoinState.objects.past_deadline(now, limit=limit):
        decided = _fold_in_parts(late, now=now)
        folded += decided
        if not decided:
            break
    return folded


def _fold_pages(*, now: datetime, limit: int) -> int:
    folded, after = 0, 0
    while page := JoinNote.objects.states(after=after, limit=limit):
        folded += _fold_in_parts(page, now=now)
        after = page[-1]
    return folded


def _fold_in_parts(state_ids: Sequence[int], *, now: datetime) -> int:
    """Fold these; one that cannot be written, after a change by hand, keeps no other from being decided."""

    def fold_part(part: Sequence[int]) -> int:
        with transact():
            return _fold(part, now=now)

    parts = in_parts(state_ids, fold_part)
    for state_id, error in parts.refused:
        logger.error("The notes to JoinState %d cannot be added up; `chainsched fsck` tells more: %s", state_id, error)
    return sum(parts.results)


def _fold(state_ids: Sequence[int], *, now: datetime) -> int:
    states = _lock(state_ids)
    was_open = {state.id for state in states.values() if state.open}
    _add_notes(states)
    runs = GraphRun.objects.in_bulk({state.run_id for state in states.values()})
    ledger = TokenLedger()
    ends = [state for state in states.values() if state.join_id == RUN_END]
    joins = [state for state in states.values() if state.join_id != RUN_END]
    fired = _decide_joins(joins, runs, ledger=ledger, now=now)
    _write(joins)
    _tell_ends([state for state in joins if (state.id in was_open) is not (state.open > 0)], ledger=ledger)
    closed = _close_or_reopen(ends, runs, now=now)
    _write(ends)
    bulk.update(GraphRun, [{"id": id_, "closed_at": closed_at} for id_, closed_at in closed.items()])
    leave_notes(fired)
    ledger.write()
    _drop_notes_of_missing(state_ids, states)
    return len(states)


def _lock(state_ids: Sequence[int]) -> dict[int, JoinState]:
    """Lock JoinStates without waiting; the end of a run only together with the run, which a cancel may hold."""
    states = {state.id: state for state in JoinState.objects.lock_free(state_ids)}
    ends = [state.run_id for state in states.values() if state.join_id == RUN_END]
    if not ends:
        return states
    free = GraphRun.objects.lock_free(ends)
    return {id_: state for id_, state in states.items() if state.join_id != RUN_END or state.run_id in free}


def _add_notes(states: Mapping[int, JoinState]) -> None:
    """Take all notes of these rows away, and add them up."""
    for state_id, open_, arrived, gated, newest in JoinNote.objects.take(list(states)):
        state = states[state_id]
        state.open += open_
        state.arrived += arrived
        state.is_gated = state.is_gated or gated > 0
        state.newest = max(state.newest, newest)


def _close_or_reopen(
    ends: Sequence[JoinState], runs: Mapping[int, GraphRun], *, now: datetime
) -> dict[int, datetime | None]:
    """Close runs of which nothing is open; one with an item that came late is open again. Returns the changed ones.

    An item that is open before a join that was decided early, or that comes late, holds no token of the run's end:
    therefore the joins of the run are asked as well.
    """
    changed: dict[int, datetime | None] = {}
    busy = JoinState.objects.busy_runs([state.run_id for state in ends if state.open == 0])
    for state in ends:
        is_closed = state.open == 0 and state.run_id not in busy
        state.outcome = JoinOutcome.CLOSED if is_closed else JoinOutcome.WAITING
        state.decided_at = (state.decided_at or now) if is_closed else None
        run = runs.get(state.run_id)
        if run is not None and (run.closed_at is not None) is not is_closed:
            changed[run.id] = now if is_closed else None
    return changed


def _decide_joins(
    states: Sequence[JoinState], runs: Mapping[int, GraphRun], *, ledger: TokenLedger, now: datetime
) -> list[Due]:
    """Decide the joins that may be decided; returns what those that run become due for."""
    joins = _load_joins({state.join_id for state in states})
    standings = {state.id: _standing(state, runs.get(state.run_id), now=now) for state in states}
    ripe = [state for state in states if may_decide(standings[state.id], joins.get(state.join_id, GONE))]
    counting = [state.join_id for state in ripe if _counts_edges(joins.get(state.join_id))]
    counts = Dependency.objects.counted(counting)
    version = NamedLock.objects.present_version() if counting else 0
    fired: list[Due] = []
    again: list[JoinState] = []
    for state in ripe:
        run, join = runs.get(state.run_id), joins.get(state.join_id, GONE)
        edges = _older_edges(counts.get(state.join_id, {}), run)
        decision = decide(standings[state.id], join, edges=edges.present)
        is_changed = run is not None and (run.version < version or edges.present < edges.stored)
        is_counted = (decision is not None and decision.fires) or not join.fan_in
        if decision is not None and is_counted and is_changed and _counts_edges(join):
            decision = _decide_by_present(standings[state.id], join, state, edges=edges.present)
        if decision is None:
            continue
        _write_decision(decision, state, now=now)
        if decision.gives_back:
            ledger.give_back(state.tokens)
        # The first firing passes on the tokens that the join held; a late one takes new ones.
        if decision.fires and decision.is_new:
            fired.append(_due(state, state.tokens, is_again=False))
        elif decision.fires:
            again.append(state)
    return fired + _fire_again(again, ledger=ledger)


def _decide_by_present(standing: Standing, join: Join, state: JoinState, *, edges: int) -> Decision | None:
    """Decide by who has arrived over the edges that there are now, with the conditions that they have now."""
    arrived, expected = join.judged_by(
        arrived=standing.arrived,
        present_arrived=count_present(state.join_id, state.run),
        present=edges,
        is_open=standing.open > 0,
    )
    judged = standing.judged - (standing.arrived - arrived)
    return decide(replace(standing, arrived=arrived, judged=judged), join, edges=expected)


def _older_edges(counts: Mapping[int, Counted], run: GraphRun | None) -> Counted:
    """How many edges are older than the run."""
    older = [] if run is None else [number for since, number in counts.items() if since <= run.version]
    return Counted(sum(number.present for number in older), sum(number.stored for number in older))


def _write_decision(decision: Decision, state: JoinState, *, now: datetime) -> None:
    state.outcome = decision.outcome
    state.judged = state.arrived + state.is_gated
    state.decided_at = state.decided_at or now
    state.firings += decision.fires


def _counts_edges(join: Join | None) -> bool:
    return join is not None and (not join.fan_in or join.at_least is not None or join.at_least_percent is not None)


def _load_joins(join_ids: Collection[int]) -> dict[int, Join]:
    columns = ("at_least", "at_least_percent", "is_eager", "runs_again_on_late", "fan_in")
    rows = Manifest.objects.filter(id_in(id=join_ids), is_join=True).values_list("id", *columns) if join_ids else ()
    return {
        id_: Join(at_least, percent, is_eager, again, FanIn(fan_in))
        for id_, at_least, percent, is_eager, again, fan_in in rows
    }


def _standing(state: JoinState, run: GraphRun | None, *, now: datetime) -> Standing:
    return Standing(
        open=state.open,
        arrived=state.arrived,
        is_gated=state.is_gated,
        judged=state.judged,
        firings=state.firings,
        outcome=JoinOutcome(state.outcome),
        is_past_deadline=state.deadline_at is not None and state.deadline_at <= now,
        is_run_cancelled=run is None or run.cancelled_at is not None,
    )


def _fire_again(states: Sequence[JoinState], *, ledger: TokenLedger) -> list[Due]:
    """Let joins run in runs in which they were decided before, with tokens of their own."""
    tokens = JoinState.objects.tokens_for([(state.join_id, state.run_id) for state in states])
    for taken in tokens.values():
        ledger.take(taken)
    return [_due(state, tokens.get((state.join_id, state.run_id), []), is_again=True) for state in states]


def _due(state: JoinState, tokens: Sequence[int], *, is_again: bool) -> Due:
    return Due(state.join_id, state.newest, Item(state.run_id, tuple(tokens), has_tokens=True, is_again=is_again))


def _tell_ends(states: Sequence[JoinState], *, ledger: TokenLedger) -> None:
    """Let runs look at their end again if their decided joins have something open before them, or nothing any more."""
    decided = {state.run_id for state in states if state.outcome != JoinOutcome.WAITING}
    ends = JoinState.objects.filter(id_in(run=decided), join_id=RUN_END)
    ledger.tell(ends.values_list("id", flat=True) if decided else ())


def _write(states: Iterable[JoinState]) -> None:
    columns = ("open", "arrived", "is_gated", "newest", "judged", "firings", "outcome", "decided_at")
    bulk.update(
        JoinState, [{"id": state.id, **{column: getattr(state, column) for column in columns}} for state in states]
    )


def _drop_notes_of_missing(state_ids: Sequence[int], locked: Mapping[int, JoinState]) -> None:
    """Take away notes to JoinStates that were removed with their run."""
    unlocked = [id_ for id_ in state_ids if id_ not in locked]
    if unlocked:
        known = set(JoinState.objects.filter(id_in(id=unlocked)).values_list("id", flat=True))
        JoinNote.objects.take([id_ for id_ in unlocked if id_ not in known])
