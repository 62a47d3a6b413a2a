"""Maintenance: remove history that has been kept long enough.

Reads:  executions from the oldest on, and the policy of how long to keep them.
Writes: deletes whole trees with their queue rows; cancelled rows, resolved letters, bulk decisions, dead processes;
        through remove manifests that are done or retired.
Next:   nothing. Open work, and trees with a dead letter that waits for a decision, are never removed.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import Exists, OuterRef, Q

from chainsched.conf import get_config
from chainsched.db.chunks import chunks
from chainsched.db.id_in import id_in
from chainsched.domain.retention import Kept, Policy, outdated_trees
from chainsched.domain.states import ExecutionState, QueueStatus
from chainsched.flow.operate.remove import remove_free
from chainsched.flow.transactions import transact
from chainsched.models import (
    BulkDecision,
    BulkDecisionItem,
    DeadLetter,
    GraphRun,
    JoinState,
    Manifest,
    Metadata,
    NamedLock,
    Process,
    TakenOver,
    WorkQueue,
)
from chainsched.models.manifest_facts import load_open_items
from chainsched.models.named_lock import CLEANUP

# Roots read in one turn, and trees or rows deleted in one transaction.
PAGE = 5000
BATCH = 200


@dataclass(slots=True)
class Cleaned:
    """The numbers of removed rows by kind; the last root that was read, and whether more roots follow."""

    removed: Counter[str] = field(default_factory=Counter)
    last_id: int = 0
    has_more: bool = False


def policy() -> Policy:
    """The retention policy of the settings."""
    return Policy.of(get_config().retention, get_config().keep_last)


def clean(rules: Policy, *, now: datetime, after: int = 0, is_dry_run: bool = False) -> Cleaned:
    """Read one page of roots after the id ``after`` and remove old trees; after the last page also other old rows.

    A dry run counts and removes nothing.
    """
    roots = _load_roots(after)
    trees = _removable(roots, rules, now=now)
    cleaned = Cleaned(last_id=roots[-1].root_id if roots else 0, has_more=len(roots) == PAGE)
    for part in chunks(sorted(trees), size=BATCH):
        cleaned.removed.update(_remove_trees(part, now=now, is_dry_run=is_dry_run))
    if not cleaned.has_more and not rules.is_selective and rules.default_age is not None:
        cleaned.removed.update(_clean_other_rows(now - rules.default_age, now=now, is_dry_run=is_dry_run))
    cleaned.removed = +cleaned.removed
    return cleaned


def _load_roots(after: int) -> list[Kept]:
    roots = Metadata.objects.known().filter(root_execution__isnull=True, id__gt=after).order_by("id")
    return [_kept(row) for row in roots.values_list(*_COLUMNS)[:PAGE]]


_COLUMNS = ("id", "root_execution_id", "manifest_id", "workflow", "state", "ended_at")


def _kept(row: tuple[Any, ...]) -> Kept:
    id_, root_id, manifest_id, workflow, state, ended_at = row
    return Kept(id_, root_id or id_, manifest_id, workflow, ExecutionState(state), ended_at)


def _removable(roots: Sequence[Kept], rules: Policy, *, now: datetime) -> set[int]:
    """The trees that have ended, are old enough, and are not among the newest that are kept."""
    candidates = outdated_trees(roots, (), policy=rules, now=now)
    old = [root for root in roots if root.root_id in candidates]
    removable: set[int] = set()
    for part in chunks(old, size=BATCH):
        ids = [root.root_id for root in part]
        below = Metadata.objects.known().filter(root_execution__in=ids)
        members = [_kept(row) for row in below.values_list(*_COLUMNS)]
        removable |= outdated_trees(part, members, policy=rules, now=now) - _unfinished(ids) - _last(part, rules)
    return removable


def _unfinished(root_ids: Sequence[int]) -> set[int]:
    """The trees that a letter of theirs or their run, a waiting row, an open run or a newer version keeps."""
    of_tree = Q(execution__in=root_ids) | Q(execution__root_execution__in=root_ids)
    columns = ("execution__root_execution_id", "execution_id")
    awaited = DeadLetter.objects.awaiting().filter(of_tree).values_list(*columns)
    undecided = DeadLetter.objects.in_unknown_status().filter(of_tree).values_list(*columns)
    waiting = WorkQueue.objects.queued().filter(root_execution__in=root_ids)
    open_runs = GraphRun.objects.open().filter(id=OuterRef("run_id"))
    # An execution that failed for several runs belongs to the tree of one; its retry concerns all of them.
    awaiting = DeadLetter.objects.awaiting().values("execution")
    failed_runs = TakenOver.objects.filter(run_id=OuterRef("run_id"), execution_id__in=awaiting)
    of_unfinished_runs = Metadata.objects.filter(Exists(open_runs) | Exists(failed_runs), id__in=root_ids)
    unknown = Metadata.objects.unknown().filter(root_execution__in=root_ids)
    return {
        *(root_id or id_ for root_id, id_ in (*awaited, *undecided)),
        *(id_ for id_ in unknown.values_list("root_execution_id", flat=True) if id_ is not None),
        *(id_ for id_ in waiting.values_list("root_execution_id", flat=True) if id_ is not None),
        *of_unfinished_runs.values_list("id", flat=True),
    }


def _last(roots: Sequence[Kept], rules: Policy) -> set[int]:
    """Those of these roots that are among the newest of their manifests, as many as KEEP_LAST keeps.

    A root without a manifest, or with one that was removed, is kept by age alone.
    """
    known = set(Manifest.objects.filter(id__in={root.manifest_id for root in roots}).values_list("id", flat=True))
    last: set[int] = set()
    for number in {rules.keep_last(root.workflow) for root in roots} - {0}:
        alike = [root for root in roots if root.manifest_id in known and rules.keep_last(root.workflow) == number]
        oldest = Metadata.objects.oldest_of_newest({root.manifest_id or 0 for root in alike}, number=number)
        last |= {root.root_id for root in alike if root.root_id >= (oldest.get(root.manifest_id or 0) or 0)}
    return last


def _remove_trees(root_ids: Sequence[int], *, now: datetime, is_dry_run: bool) -> Counter[str]:
    """Remove trees from their leaves to their roots: after an interruption the next turn finds the root again."""
    of_tree = Q(id__in=root_ids) | Q(root_execution__in=root_ids)
    rows = list(Metadata.objects.filter(of_tree).order_by("-id").values_list("id", "work_queue_id"))
    removed: Counter[str] = Counter()
    for part in chunks(rows):
        removed["executions"] += len(part) if is_dry_run else _remove_executions(part, now=now)
    return removed


def _remove_executions(rows: Sequence[tuple[int, int | None]], *, now: datetime) -> int:
    """Remove executions, the queue rows that they came from, and the further runs that they stood for."""
    with transact():
        NamedLock.objects.hold(CLEANUP, now=now)
        came_from = [row_id for _, row_id in rows if row_id is not None]
        WorkQueue.objects.filter(id__in=came_from, status=QueueStatus.DISPATCHED).delete()
        TakenOver.objects.filter(execution_id__in=[id_ for id_, _ in rows]).delete()
        return Metadata.objects.purge([id_ for id_, _ in rows])


def _clean_other_rows(before: datetime, *, now: datetime, is_dry_run: bool) -> Counter[str]:
    """Remove other rows of the same age: cancelled rows, decisions, processes, manifests that are done or retired."""
    held = Metadata.objects.in_progress().filter(process=OuterRef("id"))
    stale: dict[str, Any] = {
        "queue rows": WorkQueue.objects.filter(status=QueueStatus.CANCELLED, created_at__lt=before),
        "dead letters": DeadLetter.objects.resolved().filter(resolved_at__lt=before),
        "bulk decision items": BulkDecisionItem.objects.filter(bulk_decision__finished_at__lt=before),
        "bulk decisions": BulkDecision.objects.filter(finished_at__lt=before),
        "processes": Process.objects.ended(before=before).filter(~Exists(held)),
    }
    removed: Counter[str] = Counter()
    for kind, rows in stale.items():
        removed[kind] = rows.count() if is_dry_run else _delete(rows)
    removed["runs"] = _clean_runs(before, is_dry_run=is_dry_run)
    removed["manifests"] = _clean_manifests(before, now=now, is_dry_run=is_dry_run)
    return removed


def _clean_runs(before: datetime, *, is_dry_run: bool) -> int:
    """Remove runs that were closed long ago and of which no execution is left, with their JoinStates."""
    executions = Metadata.objects.filter(run=OuterRef("id"))
    stale = GraphRun.objects.filter(~Exists(executions), closed_at__lt=before)
    if is_dry_run:
        return stale.count()
    removed = 0
    while ids := list(stale.order_by("id").values_list("id", flat=True)[:BATCH]):
        with transact():
            JoinState.objects.filter(run__in=ids).delete()
            TakenOver.objects.filter(run_id__in=ids).delete()
            removed += GraphRun.objects.filter(id__in=ids).delete()[0]
    return removed


def _delete(rows: Any) -> int:
    """Delete in small transactions."""
    deleted = 0
    while ids := list(rows.order_by("id").values_list("id", flat=True)[:BATCH]):
        with transact():
            deleted += rows.filter(id__in=ids).delete()[0]
    return deleted


def _clean_manifests(before: datetime, *, now: datetime, is_dry_run: bool) -> int:
    """Remove manifests that are over; one that another transaction holds just now is removed another time."""
    finished = _finished_manifests(before)
    if is_dry_run:
        return len(finished)
    return sum(
        remove_free(part, among=functools.partial(_finished_manifests, before), now=now)
        for part in chunks(finished, size=BATCH)
    )


def _finished_manifests(before: datetime, among: Sequence[int] | None = None) -> list[int]:
    """Manifests that have been done or retired for long enough and have nothing open.

    A manifest that is done and still declared stays; otherwise seeding would create it again and it would run again.
    """
    over = Manifest.objects.filter(Q(done_at__lt=before, is_declared=False) | Q(retired_at__lt=before)).order_by("id")
    if among is not None:
        over = over.filter(id_in(id=among))
    ids = list(over.values_list("id", flat=True)[:PAGE])
    return [id_ for part in chunks(ids) for id_ in sorted(set(part) - load_open_items(part).keys())]
