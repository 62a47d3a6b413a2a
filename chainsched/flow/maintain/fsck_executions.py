"""Behind verify: what must hold between queue rows, executions and processes.

Reads:  queue rows, executions, processes and limits.
Writes: with ``repair`` through reap what dead processes hold; links and lineages of rows that have not ended.
Next:   verify reports.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Exists, F, OuterRef, Q, Subquery
from django.db.models.functions import Coalesce

from chainsched.conf import get_config
from chainsched.db import bulk
from chainsched.db.chunks import chunks
from chainsched.domain.results import Finding
from chainsched.domain.states import QueueStatus
from chainsched.flow.maintain.reap import reap
from chainsched.flow.run.alarm import arm
from chainsched.flow.transactions import transact
from chainsched.models import Manifest, ManifestGroup, ManifestState, Metadata, Process, WorkQueue

NO_MANIFEST = "its manifest is gone"
NO_EXECUTION = "its execution is gone"


def running_has_a_live_process(check: str, *, now: datetime, repair: bool) -> Iterator[Finding]:
    """Every execution in progress belongs to a process that is alive."""
    alive = Process.objects.alive(beaten_since=now - timedelta(seconds=get_config().process_expiry))
    orphaned = Metadata.objects.in_progress().exclude(process__in=alive).order_by("id")
    orphans = list(orphaned)
    while repair and orphans and reap(now=now).has_more:
        pass
    left = set(orphaned.values_list("id", flat=True))
    for row in orphans:
        evidence = f"it is in progress, but its process {row.process_id} is lost, stopped or silent"
        yield Finding(check, str(row), evidence, is_mended=row.id not in left)


def limits_are_kept(check: str, *, now: datetime, repair: bool) -> Iterator[Finding]:
    """No more is active than the limits allow. Nothing is stopped for it: it ends as the runs do."""
    active = Metadata.objects.active_by_group()
    limit, total = get_config().max_active_jobs, sum(active.values())
    if limit is not None and total > limit:
        yield Finding(check, "MAX_ACTIVE_JOBS", f"{total} executions are active, it allows {limit}")
    for group in ManifestGroup.objects.filter(max_active_jobs__isnull=False):
        if active.get(group.pk, 0) > (group.max_active_jobs or 0):
            evidence = f"{active[group.pk]} of its executions are active, its limit is {group.max_active_jobs}"
            yield Finding(check, f"group {group.name}", evidence)


def queued_has_a_manifest(check: str, *, now: datetime, repair: bool) -> Iterator[Finding]:
    """No queued row names a manifest that is gone: it would wait for ever."""
    known = Manifest.objects.filter(id=OuterRef("manifest_id"))
    rows = list(WorkQueue.objects.queued().filter(~Exists(known), manifest__isnull=False).order_by("id"))
    mended = _cancel(rows, reason=NO_MANIFEST, status=QueueStatus.QUEUED) if repair else []
    for row in rows:
        is_mended = row.id in mended
        yield Finding(check, f"queue row {row.id} of {row.manifest_external_id}", NO_MANIFEST, is_mended=is_mended)


def queue_and_executions_agree(check: str, *, now: datetime, repair: bool) -> Iterator[Finding]:
    """A dispatched row has its execution, and an execution's row names it."""
    known = Metadata.objects.filter(id=OuterRef("execution_id"))
    widowed = list(WorkQueue.objects.filter(~Exists(known), status=QueueStatus.DISPATCHED).order_by("id"))
    mended = _cancel(widowed, reason=NO_EXECUTION, status=QueueStatus.DISPATCHED) if repair else []
    _arm([row.manifest_id for row in widowed if row.id in mended], now=now)
    for row in widowed:
        evidence = f"it was dispatched as execution {row.execution_id}, which does not exist"
        subject = f"queue row {row.id} of {row.manifest_external_id}"
        yield Finding(check, subject, evidence, is_mended=row.id in mended)
    yield from _unlinked(check, now=now, repair=repair)


def _unlinked(check: str, *, now: datetime, repair: bool) -> Iterator[Finding]:
    """Executions whose queue row names another execution or none, and active ones whose row is gone."""
    row = WorkQueue.objects.filter(id=OuterRef("work_queue_id"))
    other = row.filter(Q(execution__isnull=True) | ~Q(execution=OuterRef("id")))
    executions = Metadata.objects.filter(work_queue__isnull=False)
    mute = list(executions.filter(Exists(other)).order_by("id"))
    lonely = list(executions.active().filter(~Exists(row)).order_by("id"))
    if repair:
        links = [{"id": it.work_queue_id, "status": QueueStatus.DISPATCHED, "execution": it.id} for it in mute]
        with transact():
            bulk.update(WorkQueue, links)
            Metadata.objects.active().filter(id__in=[it.id for it in lonely]).update(work_queue=None)
        _arm([it.manifest_id for it in mute], now=now)
    for it in mute:
        yield Finding(check, str(it), f"its queue row {it.work_queue_id} does not name it", is_mended=repair)
    for it in lonely:
        yield Finding(check, str(it), f"its queue row {it.work_queue_id} does not exist", is_mended=repair)


def parents_and_roots_agree(check: str, *, now: datetime, repair: bool) -> Iterator[Finding]:
    """The root of what an execution caused is its own root, and only what has a parent has a root."""
    for model in (WorkQueue.objects.queued(), Metadata.objects.all()):
        wrong = list(_misrooted(model).order_by("id"))
        mendable = [row for row in wrong if isinstance(row, WorkQueue) or row.ended_at is None]
        if repair:
            _give_roots(mendable)
        for row in wrong:
            evidence = f"its root is {row.root_execution_id}, by its parent it should be {row.right_root}"
            final = "" if row in mendable else ". It has ended and is final; it goes with retention"
            yield Finding(check, str(row), evidence + final, is_mended=repair and row in mendable)


def _give_roots(rows: Sequence[Any]) -> None:
    """One by one: rows like these are made by hand, and few."""
    with transact():
        for row in rows:
            still = type(row).objects.filter(id=row.id, root_execution=row.root_execution_id)
            still.update(root_execution=row.right_root)


def _misrooted(rows: Any) -> Any:
    parent = Metadata.objects.filter(id=OuterRef("parent_execution_id"))
    right_root = Subquery(parent.values(right=Coalesce("root_execution_id", "id"))[:1])
    with_parent = Q(Exists(parent)) & (Q(root_execution__isnull=True) | ~Q(root_execution=F("right_root")))
    without_parent = Q(parent_execution__isnull=True, root_execution__isnull=False)
    return rows.annotate(right_root=right_root).filter(with_parent | without_parent)


def _cancel(rows: Sequence[WorkQueue], *, reason: str, status: QueueStatus) -> list[int]:
    cancelled = [
        {"id": row.id, "status": QueueStatus.CANCELLED, "execution": None, "cancel_reason": reason} for row in rows
    ]
    with transact():
        return bulk.update(WorkQueue, cancelled, where={"status": status})


def _arm(manifest_ids: Sequence[int | None], *, now: datetime) -> None:
    for part in chunks(sorted({id_ for id_ in manifest_ids if id_ is not None})):
        with transact():
            arm(ManifestState.objects.lock(part), now=now)
