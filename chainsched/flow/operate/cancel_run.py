"""Operator action: cancel a run of the graph, or what hangs below one execution.

Reads:  the items that stand for the run, or descend from the execution.
Writes: the mark on the run; queue rows; what dependents are due for; through record pending executions; a request to
        running ones.
Next:   nothing: no item of a cancelled run is queued or dispatched, and its outcomes make no dependent due.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Collection
from datetime import datetime

from django.db.models import Q

from chainsched.db.chunks import chunks
from chainsched.db.id_in import id_in
from chainsched.db.locks import Patience
from chainsched.domain.items import Item
from chainsched.domain.results import Cancelled
from chainsched.flow.operate.cancel import stop
from chainsched.flow.run.alarm import arm
from chainsched.flow.run.carried import find_cancelled
from chainsched.flow.run.dispatch import put_rows_aside
from chainsched.flow.run.tokens import TokenLedger, cancel_rows
from chainsched.flow.transactions import in_parts, transact
from chainsched.models import GraphRun, JoinState, Manifest, ManifestState, Metadata, TakenOver, WorkQueue

LATE_FOR_RUN = "the run it belongs to was cancelled"
# What hangs below an execution may still grow while it is being cancelled, at most by the depth of the graph.
MAX_ROUNDS = 20


def cancel_run(run_id: int, *, reason: str, now: datetime) -> Cancelled:
    """Stop all work of a run and prevent more of it; an item that also stands for another run goes on.

    The mark is committed first. A row that a transaction queued without seeing it is found by dispatch.
    """
    _mark(run_id, reason=reason, now=now)
    cancelled = _stop_without_manifest(Q(run=run_id), Q(run=run_id), reason=reason, now=now)
    for part in chunks(_manifests_in(run_id)):
        cancelled += _cancel_items(part, run_id, reason=reason, now=now)
    return cancelled


def cancel_late(row_ids: Collection[int], *, now: datetime) -> int:
    """Cancel rows of cancelled runs that dispatch found, for the reason of the run; returns how many.

    They were queued by a transaction that did not see the mark. Dispatch waits for no manifest: if another transaction
    holds that of a row, the row stays, and is found again. One that cannot be cancelled is put aside.
    """
    found = WorkQueue.objects.filter(id_in(id=row_ids)).values_list("run__cancel_reason", "id")
    by_reason: dict[str, list[int]] = defaultdict(list)
    for reason, row_id in found:
        by_reason[reason or LATE_FOR_RUN].append(row_id)
    cancelled = 0
    for reason, ids in by_reason.items():
        parts = in_parts(sorted(ids), functools.partial(_cancel_part, reason=reason, now=now))
        cancelled += sum(parts.results) + put_rows_aside(parts.unwritable, now=now)
    return cancelled


def _cancel_part(row_ids: Collection[int], *, reason: str, now: datetime) -> int:
    with transact(Patience.SHORT):
        owners = dict(WorkQueue.objects.filter(id_in(id=row_ids)).values_list("id", "manifest_id"))
        states = ManifestState.objects.filter(id_in(manifest=[id_ for id_ in owners.values() if id_ is not None]))
        known = set(states.values_list("manifest_id", flat=True))
        held = known.difference(ManifestState.objects.lock_free(known))
        free = {row_id: owner for row_id, owner in owners.items() if owner not in held}
        return _cancel_queued(free, [owner for owner in free.values() if owner is not None], reason=reason, now=now)


def cancel_below(execution_id: int, *, reason: str, now: datetime) -> Cancelled:
    """Stop an execution and the items that descend from it; joins count the stopped items as cancelled, and go on.

    No dependent runs for a stopped item, regardless of its outcome.
    """
    cancelled = Cancelled()
    for _ in range(MAX_ROUNDS):
        stopped = _cancel_below_once(execution_id, reason=reason, now=now)
        if not stopped.total:
            break
        cancelled += stopped
    return cancelled


def _mark(run_id: int, *, reason: str, now: datetime) -> None:
    """Mark the run, and let its joins be decided as cancelled."""
    with transact():
        if GraphRun.objects.mark_cancelled(run_id, reason=reason, now=now):
            ledger = TokenLedger()
            ledger.tell(JoinState.objects.filter(run=run_id).values_list("id", flat=True))
            ledger.write()


def _manifests_in(run_id: int) -> list[int]:
    """The manifests with an open item that may stand for this run, and for no other that is not cancelled.

    It is named after the run, or after a newer one that was cancelled before; or it is an execution that took it over.
    """
    newer = GraphRun.objects.filter(id__gt=run_id, cancelled_at__isnull=False).values("id")
    is_queued, is_due = Q(run=run_id) | Q(run__in=newer), Q(due_run=run_id) | Q(due_run__in=newer)
    queued = WorkQueue.objects.queued().filter(is_queued).values_list("manifest_id", flat=True)
    due = ManifestState.objects.filter(is_due).values_list("manifest_id", flat=True)
    named = Metadata.objects.active().filter(run=run_id).values_list("manifest_id", flat=True)
    taken_over = TakenOver.objects.executions_for(run_id)
    others = Metadata.objects.active().filter(id_in(id=taken_over)).values_list("manifest_id", flat=True)
    return sorted({id_ for found in (queued, due, named, others) for id_ in found if id_ is not None})


def _cancel_items(manifest_ids: Collection[int], run_id: int, *, reason: str, now: datetime) -> Cancelled:
    """Cancel those items of these manifests that stand for cancelled runs alone."""
    with transact():
        locked = ManifestState.objects.lock(manifest_ids)
        queued = WorkQueue.objects.queued().filter(id_in(manifest=locked), run__isnull=False)
        rows = {row.id: row for row in queued.defer("input")}
        over = find_cancelled({id_: Item.of(row) for id_, row in rows.items()})
        unqueued = _cancel_queued(over, [rows[id_].manifest_id or 0 for id_ in over], reason=reason, now=now)
        _cover(locked, now=now)
        active = {row.id: row for row in Metadata.objects.lock_active_of(locked)}
        stopped = find_cancelled({id_: Item.of(row) for id_, row in active.items()})
        asked = stop([active[id_] for id_ in sorted(stopped)], reason=reason, now=now)
    return Cancelled(queued=unqueued) + asked


def _cancel_queued(row_ids: Collection[int], owner_ids: Collection[int], *, reason: str, now: datetime) -> int:
    """Cancel waiting rows and consume their occurrence; the caller holds the states of their manifests."""
    ledger = TokenLedger()
    cancelled = cancel_rows(row_ids, reason=reason, ledger=ledger)
    if cancelled:
        ManifestState.objects.note_finished(owner_ids, now=now)
        Manifest.objects.mark_done(owner_ids, now=now)
        arm(owner_ids, now=now, ledger=ledger)
    ledger.write()
    return len(cancelled)


def _cover(manifest_ids: Collection[int], *, now: datetime, executions: Collection[int] | None = None) -> list[int]:
    """Count what manifests are due for as covered where its runs, or these executions, were cancelled."""
    states = {state.manifest_id: state for state in ManifestState.objects.with_due_items(manifest_ids)}
    items = {
        id_: Item(state.due_run, tuple(state.due_tokens), state.due_has_tokens, state.due_is_again)
        for id_, state in states.items()
    }
    if executions is None:
        covered = sorted(find_cancelled(items))
    else:
        covered = [id_ for id_, state in states.items() if state.due_execution in executions]
    ledger = TokenLedger()
    for id_ in covered:
        ledger.give_back(items[id_].held)
    ManifestState.objects.cover_without_run(covered)
    Manifest.objects.mark_done(covered, now=now)
    arm(covered, now=now, ledger=ledger)
    ledger.write()
    return covered


def _cancel_below_once(execution_id: int, *, reason: str, now: datetime) -> Cancelled:
    below = Metadata.objects.below(execution_id)
    manifest_ids = _manifests_below(below)
    cancelled = _stop_without_manifest(
        Q(id_in(parent_execution=below)), Q(id_in(id=below)), reason=reason, now=now, is_tree=True
    )
    for part in chunks(manifest_ids):
        with transact():
            locked = ManifestState.objects.lock(part)
            rows = WorkQueue.objects.queued().filter(id_in(manifest=locked), id_in(parent_execution=below))
            plain = dict(rows.exclude(manifest__is_join=True).values_list("id", "manifest_id"))
            unqueued = _cancel_queued(plain, [id_ or 0 for id_ in plain.values()], reason=reason, now=now)
            covered = _cover(locked, now=now, executions=below)
            active = [row for row in Metadata.objects.lock_active_of(locked) if row.id in below]
            Metadata.objects.mark_tree_cancelled([row.id for row in active])
            asked = stop(active, reason=reason, now=now)
        cancelled += Cancelled(queued=unqueued + len(covered)) + asked
    return cancelled


def _stop_without_manifest(waiting: Q, running: Q, *, reason: str, now: datetime, is_tree: bool = False) -> Cancelled:
    """Cancel rows and executions that no manifest stands behind, and that these conditions choose."""
    with transact():
        rows = WorkQueue.objects.queued().filter(waiting, manifest__isnull=True)
        ledger = TokenLedger()
        unqueued = cancel_rows(rows.values_list("id", flat=True), reason=reason, ledger=ledger)
        ledger.write()
        loose = Metadata.objects.active().filter(running, manifest__isnull=True)
        active = Metadata.objects.lock_active(list(loose.values_list("id", flat=True)))
        if is_tree:
            Metadata.objects.mark_tree_cancelled([row.id for row in active])
        asked = stop(active, reason=reason, now=now)
    return Cancelled(queued=len(unqueued)) + asked


def _manifests_below(below: Collection[int]) -> list[int]:
    """The manifests that may have an open item below: those that ran or wait there, and plain dependents of these."""
    ran = Metadata.objects.filter(id_in(id=below)).values_list("manifest_id", flat=True)
    waiting = WorkQueue.objects.queued().filter(id_in(parent_execution=below)).values_list("manifest_id", flat=True)
    ids = {id_ for id_ in (*ran, *waiting) if id_ is not None}
    return sorted(ids.union(Manifest.objects.plain_dependents_of(ids)))
