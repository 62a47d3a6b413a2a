"""Stage 7 of 8: write down how executions ended. Terminal states are written here only.

Reads:  rows in progress, and their outcomes.
Writes: the manifests' states; retries; terminal states; statistics; dead letters; through hand_on notes; alarms.
Next:   hand_on, in the same transaction; then the manager queues due manifests.
"""

from __future__ import annotations

import functools
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from chainsched.db import bulk, locks
from chainsched.db.id_in import id_in
from chainsched.db.locks import Patience
from chainsched.db.notify import DISPATCHER
from chainsched.domain import outcomes
from chainsched.domain.inputs import readable
from chainsched.domain.items import Item
from chainsched.domain.known import is_known
from chainsched.domain.outcomes import FailureType, Finished
from chainsched.domain.retry import StopRetrying, TryAgain
from chainsched.domain.states import ACTIVE_STATES, SOURCES_PAST_DISABLED, ExecutionState, Source, may_become
from chainsched.exceptions import InvalidInput
from chainsched.flow.announce import announce_executions, announce_letters, report_failures, wake
from chainsched.flow.run.carried import item_columns
from chainsched.flow.run.consume import Ends, deliver
from chainsched.flow.run.end_rows import (
    closed_rows,
    ended_states,
    facts_after,
    failed_state,
    had_its_run,
    letter_row,
    shares_of,
)
from chainsched.flow.run.enqueue import enqueue
from chainsched.flow.run.hand_on import Edges, Ended, hand_on, load_edges
from chainsched.flow.run.requests import Lineage, QueueRequest
from chainsched.flow.run.runs import Head, begin_runs
from chainsched.flow.run.tokens import TokenLedger
from chainsched.flow.run.verdicts import Verdict, decide_verdicts
from chainsched.flow.transactions import in_parts, is_about_rows, transact
from chainsched.models import (
    DeadLetter,
    HourlyStatistic,
    Manifest,
    ManifestState,
    Metadata,
    Process,
    queue_looks,
)
from chainsched.models.metadata import Attempt
from chainsched.signals import dead_letter_created, execution_ended

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Recorded:
    """The answer of ``record``: the executions that ended, and of these the retried and dead-lettered.

    ``late`` are those that had ended already or belong to another process by now; ``unwritten`` those that could
    not be closed and that the caller should bring again.
    """

    ended: list[int] = field(default_factory=list)
    retried: list[int] = field(default_factory=list)
    dead_lettered: list[int] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    unwritten: list[int] = field(default_factory=list)

    def add(self, other: Recorded) -> None:
        self.ended += other.ended
        self.retried += other.retried
        self.dead_lettered += other.dead_lettered
        self.late += other.late
        self.unwritten += other.unwritten


def record(
    finished: Sequence[Finished],
    *,
    now: datetime,
    by: Process | None = None,
    is_waiting: bool = True,
    opens: bool = False,
) -> Recorded:
    """Close the executions; those that another process closed first are named in the result as late.

    ``by`` is the process that ran them: only executions that it still holds are written, and none once it was declared
    lost. Without it the caller acts for a process that is gone. A row that another transaction holds is waited for for
    a moment or, without ``is_waiting``, not at all, and is then unwritten. With ``opens`` dependents that became due
    are queued at once where their states are free; the manager queues the others.
    """
    recorded = Recorded()
    parts = in_parts(finished, lambda part: _record_part(part, by=by, now=now, is_waiting=is_waiting, opens=opens))
    for item, error in parts.refused:
        parts.results.append(_record_unwritable(item, error, by=by, now=now))
    for part in parts.results:
        recorded.add(part)
    recorded.unwritten += [item.execution_id for item, _ in parts.busy]
    for execution_id in recorded.late:
        logger.warning("The result of execution %d came too late: it has ended already or is not ours.", execution_id)
    return recorded


def _record_part(
    finished: Sequence[Finished], *, by: Process | None, now: datetime, is_waiting: bool = True, opens: bool = False
) -> Recorded:
    try:
        with transact(Patience.SHORT):
            recorded = _record_once(finished, by=by, now=now, is_waiting=is_waiting, opens=opens)
    except Exception as error:
        if is_waiting and locks.is_lock_timeout(error):
            return _record_part(finished, by=by, now=now, is_waiting=False, opens=opens)
        if opens and is_about_rows(error):
            # Perhaps a dependent cannot be queued: that is the manager's concern, and no fault of these executions.
            return _record_part(finished, by=by, now=now, is_waiting=is_waiting, opens=False)
        raise
    report_failures(finished, retried=recorded.retried, dead_lettered=recorded.dead_lettered)
    return recorded


def _record_once(
    finished: Sequence[Finished], *, by: Process | None, now: datetime, is_waiting: bool, opens: bool
) -> Recorded:
    by_id = {item.execution_id: item for item in finished}
    unwritten = _lock(by_id, is_waiting=is_waiting)
    attempts = _attempts([id_ for id_ in by_id if id_ not in unwritten], by=by)
    unwritten |= {row.id for row in attempts if _is_strange(row)}
    executions = [row for row in attempts if row.id not in unwritten and _may_close(row, by_id[row.id], by=by)]
    verdicts, held = _without_held(decide_verdicts(executions, by_id), now=now)
    unwritten |= held
    final = [verdict for verdict in verdicts if verdict.is_final]
    ledger = TokenLedger()
    _write_failures(verdicts)
    _mark_done(verdicts, now=now)
    _retry(verdicts, ledger=ledger, now=now)
    edges = load_edges([verdict.facts.manifest_id for verdict in final if verdict.facts])
    items = _begin_late_runs([verdict for verdict in final if _is_in(edges, verdict)], ledger=ledger, now=now)
    _close(verdicts, now=now)
    HourlyStatistic.objects.append(shares_of(verdicts, now=now))
    _write_letters(verdicts, now=now)
    # After the letters: a dependent that one of them stops has no part to do.
    dues = hand_on([_ended(verdict, items) for verdict in final if _leads_on(edges, verdict)], edges, ledger=ledger)
    deliver(dues, ledger=ledger, now=now, ends=_ends(final, now=now), opens=opens)
    ledger.write()
    closed = {verdict.execution.id for verdict in verdicts}
    announce_executions(execution_ended, sorted(closed))
    if closed:
        # Asked after the commit: a row that is queued at the same time is seen then, or its notice comes after it.
        wake(DISPATCHER, only_if=lambda: queue_looks.has_any_ready(now))
    return Recorded(
        ended=sorted(closed),
        retried=[verdict.execution.id for verdict in verdicts if not verdict.is_final],
        dead_lettered=[verdict.execution.id for verdict in verdicts if isinstance(verdict.follow_up, StopRetrying)],
        late=[execution_id for execution_id in by_id if execution_id not in {*closed, *unwritten}],
        unwritten=sorted(unwritten),
    )


def _lock(finished: Mapping[int, Finished], *, is_waiting: bool) -> set[int]:
    """Lock the states of the manifests that ran, and no other; returns the executions that have to wait.

    The executions themselves are locked after the states, as everywhere.
    """
    if is_waiting:
        ManifestState.objects.lock_of(finished)
        return set()
    manifest_ids = Metadata.objects.manifests_of(list(finished))
    locked = ManifestState.objects.lock_free(manifest_ids)
    free = {row.id for row in Metadata.objects.lock_attempts(list(finished), is_waiting=False)}
    held = Metadata.objects.filter(id_in(id=[id_ for id_ in finished if id_ not in free]))
    known = set(ManifestState.objects.filter(id_in(manifest=manifest_ids)).values_list("manifest_id", flat=True))
    of_held = Metadata.objects.filter(id_in(id=free), id_in(manifest=known.difference(locked)))
    return {*held.values_list("id", flat=True), *of_held.values_list("id", flat=True)}


def _is_in(edges: Edges, verdict: Verdict) -> bool:
    return verdict.execution.manifest_id in edges


def _leads_on(edges: Edges, verdict: Verdict) -> bool:
    """Whether something follows from it, or waits for it."""
    return bool(verdict.execution.tokens) or _is_in(edges, verdict)


def _begin_late_runs(final: Sequence[Verdict], *, ledger: TokenLedger, now: datetime) -> dict[int, Item]:
    """Open runs for executions that got children only while they ran; returns their items by execution.

    Written before the end of the execution, which never changes afterwards.
    """
    alone = [(verdict.execution, verdict.facts) for verdict in final if verdict.execution.run_id is None]
    heads = [Head(known.manifest_id, known.external_id, row.scheduled_for) for row, known in alone if known]
    begun = begin_runs(heads, ledger=ledger, now=now)
    items = {row.id: begun[known.manifest_id] for row, known in alone if known and known.manifest_id in begun}
    bulk.update(Metadata, [{"id": id_, **item_columns(item)} for id_, item in items.items()])
    return items


def _record_unwritable(item: Finished, error: Exception, *, by: Process | None, now: datetime) -> Recorded:
    """Close an execution after the database refused its result, with that refusal as its failure.

    If its input cannot be handed on to the next attempt, it has a bad input, and no next attempt.
    """
    logger.error("The result of execution %d cannot be written: %s", item.execution_id, error)
    if isinstance(error, InvalidInput):
        outcome = outcomes.failed(FailureType.BAD_INPUT, str(error))
    else:
        outcome = outcomes.failed(FailureType.BAD_OUTPUT, f"The result could not be stored: {error}")
    substitute = Finished(item.execution_id, outcome)
    parts = in_parts([substitute], lambda part: _record_part(part, by=by, now=now))
    for _, again in parts.refused:
        logger.error("Execution %d cannot be closed: %s", item.execution_id, again)
    return parts.results[0] if parts.results else Recorded(unwritten=[item.execution_id])


def _attempts(execution_ids: Collection[int], *, by: Process | None) -> list[Attempt]:
    """Lock the executions; none, if a process speaks that was declared lost: the fence."""
    if by is None:
        return Metadata.objects.lock_attempts(execution_ids)
    return Metadata.objects.lock_attempts_of(by, execution_ids)


def _may_close(row: Attempt, finished: Finished, *, by: Process | None) -> bool:
    """Whether it may still end this way and, if a process speaks, is still its own."""
    return (by is None or row.process_id == by.pk) and _may_become(row.state, finished.outcome.state)


@functools.lru_cache
def _may_become(stored: str, target: ExecutionState) -> bool:
    return is_known(ExecutionState, stored) and may_become(ExecutionState(stored), target=target)


def _is_strange(row: Attempt) -> bool:
    """Whether a newer version put it into a state that this one does not know; its result is kept until it is over."""
    return row.ended_at is None and not is_known(ExecutionState, row.state)


def _write_failures(verdicts: Sequence[Verdict]) -> None:
    """Count the failures; the states of those that did not fail are written with their alarms."""
    rows = [failed_state(verdict) for verdict in verdicts if verdict.facts and verdict.follow_up]
    for alike in _by_columns(rows):
        bulk.update(ManifestState, alike, key="manifest")


def _by_columns(rows: Iterable[dict[str, Any]]) -> Iterable[list[dict[str, Any]]]:
    """The rows in parts that name the same columns."""
    parts = defaultdict(list)
    for row in rows:
        parts[tuple(row)].append(row)
    return parts.values()


def _ends(final: Sequence[Verdict], *, now: datetime) -> Ends:
    """What is known of the manifests whose item is over: all of those that have no dead letter now."""
    idle = [verdict for verdict in final if not verdict.follow_up]
    return Ends(
        facts=[facts_after(verdict, verdict.facts, now=now) for verdict in idle if verdict.facts],
        states=ended_states([verdict for verdict in idle if verdict.facts], now=now),
        stopped=[verdict.facts.manifest_id for verdict in final if verdict.facts and verdict.follow_up],
    )


def _without_held(verdicts: Sequence[Verdict], *, now: datetime) -> tuple[list[Verdict], set[int]]:
    """The verdicts that can be written now, and the executions of the others.

    A one-time manifest is marked as done in its own row, which a call of the project may hold although it holds no
    state of it: when it changes the depth of the manifests below another.
    """
    done = _done_by(verdicts, now=now)
    held = done.difference(Manifest.objects.lock_free(done)) if done else set()
    if not held:
        return list(verdicts), set()
    late = {verdict.execution.id for verdict in verdicts if verdict.facts and verdict.facts.manifest_id in held}
    return [verdict for verdict in verdicts if verdict.execution.id not in late], late


def _mark_done(verdicts: Sequence[Verdict], *, now: datetime) -> None:
    if done := _done_by(verdicts, now=now):
        Manifest.objects.filter(id_in(id=done)).update(done_at=now)


def _done_by(verdicts: Sequence[Verdict], *, now: datetime) -> set[int]:
    """A one-time manifest that succeeded or was cancelled has had its run."""
    over = [(verdict, verdict.facts) for verdict in verdicts if verdict.state is not ExecutionState.FAILED]
    return {known.manifest_id for verdict, known in over if known and had_its_run(verdict, known, now=now)}


def _ended(verdict: Verdict, items: Mapping[int, Item]) -> Ended:
    return Ended(
        manifest_id=verdict.facts.manifest_id if verdict.facts else None,
        execution_id=verdict.execution.id,
        state=verdict.state,
        is_dead_lettered=isinstance(verdict.follow_up, StopRetrying),
        item=items.get(verdict.execution.id) or Item.of(verdict.execution),
        is_tree_cancelled=verdict.execution.is_tree_cancelled,
    )


def _retry(verdicts: Sequence[Verdict], *, ledger: TokenLedger, now: datetime) -> None:
    """Queue the next attempt with the same input, scheduled time, parent, root and item."""
    again = [verdict.execution.id for verdict in verdicts if isinstance(verdict.follow_up, TryAgain)]
    if not again:
        return
    inputs = dict(Metadata.objects.filter(id_in(id=again)).values_list("id", "input"))
    requests = [
        QueueRequest(
            manifest_id=verdict.execution.manifest_id or 0,
            source=_source_of_retry(verdict.execution),
            scheduled_for=verdict.execution.scheduled_for,
            not_before=now + verdict.follow_up.delay,
            attempt=verdict.execution.attempt + 1,
            input=readable(inputs[verdict.execution.id]),
            lineage=Lineage.of(verdict.execution),
            item=Item.of(verdict.execution),
        )
        for verdict in verdicts
        if isinstance(verdict.follow_up, TryAgain)
    ]
    enqueue(requests, now=now, ledger=ledger)


def _source_of_retry(execution: Attempt) -> Source:
    """Keep the source of a run that a person asked for, so that it also runs to its end on a disabled manifest."""
    past_disabled = {source.value: source for source in SOURCES_PAST_DISABLED}
    return past_disabled.get(execution.source, Source.RETRY)


def _close(verdicts: Sequence[Verdict], *, now: datetime) -> None:
    for state in ACTIVE_STATES:
        for rows in closed_rows([verdict for verdict in verdicts if verdict.execution.state == state], now=now):
            bulk.update_columns(Metadata, rows, where={"state": state})


def _write_letters(verdicts: Sequence[Verdict], *, now: datetime) -> None:
    rows = [
        letter_row(verdict, verdict.follow_up, now=now)
        for verdict in verdicts
        if isinstance(verdict.follow_up, StopRetrying)
    ]
    written = bulk.insert(DeadLetter, rows, skip_conflicts=True)
    announce_letters(dead_letter_created, [row["id"] for row in written])
