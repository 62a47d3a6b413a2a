"""Part of fsck: the rules between queue rows, executions and processes.

Reads:  queue rows, executions, processes and limits.
Writes: with ``repair`` through reap the executions of dead processes; links and roots of rows that have not ended.
Next:   fsck reports.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Exists, F, OuterRef, Q, Subquery
from django.db.models.functions import Coalesce

from chainsched.conf import get_config
from chainsched.db import bulk
from chainsched.db.chunks import chunks
from chainsched.db.id_in import id_in
from chainsched.domain.results import Finding
from chainsched.domain.states import ACTIVE_STATES, QueueStatus
from chainsched.flow.maintain.reap import reap
from chainsched.flow.run.alarm import arm
from chainsched.flow.transactions import transact
from chainsched.models import Manifest, ManifestGroup, ManifestState, Metadata, Process, WorkQueue
from chainsched.models.metadata import MetadataQuerySet

NO_MANIFEST = "its manifest does not exist"
NO_EXECUTION = "its execution does not exist"


def running_has_a_live_process(check: str, *, now: datetime, repair: bool) -> Iterator[Finding]:
    """Every execution in progress belongs to a process that is alive.

    Only those of processes that were declared lost are repaired: a process without heartbeat may still be alive, as
    one that has been watching it can tell.
    """
    alive = Process.objects.alive(beaten_since=now - timedelta(seconds=get_config().process_expiry))
    orphaned = Metadata.objects.in_progress().known().exclude(process__in=alive).order_by("id")
    orphans = list(orphaned)
    while repair and orphans and reap(now=now).has_more:
        pass
    left = set(orphaned.values_list("id", flat=True))
    for row in orphans:
        evidence = f"it is in progress, but its process {row.process_id} is lost, stopped or without heartbeat"
        if repair and row.id in left:
            evidence += "; a scheduler or worker closes it once it has watched that process for PROCESS_EXPIRY"
        yield Finding(check, str(row), evidence, is_repaired=row.id not in left)


def limits_are_kept(check: str, *, now: datetime, repair: bool) -> Iterator[Finding]:
    """No more executions are active than the limits allow. None is stopped: the excess ends when the runs end."""
    counted = Metadata.objects.count_active()
    active, total = counted.by_group, counted.running(Process.objects.slots_by_process())
    limit = get_config().max_active_jobs
    if limit is not None and total > limit:
        yield Finding(check, "MAX_ACTIVE_JOBS", f"{total} executions are active, the setting allows {limit}")
    for group in ManifestGroup.objects.filter(max_active_jobs__isnull=False):
        if active.get(group.pk, 0) > (group.max_active_jobs or 0):
            evidence = f"{active[group.pk]} of its executions are active, its limit is {group.max_active_jobs}"
            yield Finding(check, f"group {group.name}", evidence)


def queued_has_a_manifest(check: str, *, now: datetime, repair: bool) -> Iterator[Finding]:
    """No queued row refers to a manifest that does not exist: it would wait for ever."""
    known = Manifest.objects.filter(id=OuterRef("manifest_id"))
    rows = list(WorkQueue.objects.queued().known().filter(~Exists(known), manifest__isnull=False).order_by("id"))
    cancelled = _cancel(rows, reason=NO_MANIFEST, status=QueueStatus.QUEUED, now=now) if repair else []
    for row in rows:
        is_repaired = row.id in cancelled
        yield Finding(check, f"queue row {row.id} of {row.manifest_external_id}", NO_MANIFEST, is_repaired=is_repaired)


def queue_and_executions_agree(check: str, *, now: datetime, repair: bool) -> Iterator[Finding]:
    """A dispatched row has its execution, and an execution's row refers to it."""
    known = Metadata.objects.filter(id=OuterRef("execution_id"))
    dispatched = WorkQueue.objects.known().filter(status=QueueStatus.DISPATCHED)
    without_execution = list(dispatched.filter(~Exists(known)).order_by("id"))
    cancelled = []
    if repair:
        cancelled = _cancel(without_execution, reason=NO_EXECUTION, status=QueueStatus.DISPATCHED, now=now)
    for row in without_execution:
        evidence = f"it was dispatched as execution {row.execution_id}, which does not exist"
        subject = f"queue row {row.id} of {row.manifest_external_id}"
        yield Finding(check, subject, evidence, is_repaired=row.id in cancelled)
    yield from _unlinked(check, now=now, repair=repair)


def _unlinked(check: str, *, now: datetime, repair: bool) -> Iterator[Finding]:
    """Executions with a queue row that refers to another execution or none, and active ones without a queue row."""
    unlinked, without_queue_row = _find_unlinked(Metadata.objects.all())
    found = ((unlinked, "does not refer to it"), (without_queue_row, "does not exist"))
    repaired = _link({row.id: row for rows, _ in found for row in rows}, now=now) if repair else set()
    for rows, problem in found:
        for row in rows:
            evidence = f"its queue row {row.work_queue_id} {problem}"
            yield Finding(check, str(row), evidence, is_repaired=row.id in repaired)


def _find_unlinked(among: MetadataQuerySet) -> tuple[list[Metadata], list[Metadata]]:
    queue_row = WorkQueue.objects.filter(id=OuterRef("work_queue_id"))
    other = queue_row.known().filter(Q(execution__isnull=True) | ~Q(execution=OuterRef("id")))
    executions = among.known().filter(work_queue__isnull=False).order_by("id")
    is_active = Q(state__in=ACTIVE_STATES)
    return list(executions.filter(Exists(other))), list(executions.filter(is_active, ~Exists(queue_row)))


def _link(rows: Mapping[int, Metadata], *, now: datetime) -> set[int]:
    """Link executions and queue rows that do not agree; returns the executions.

    Judged again under the locks of their manifests: a row that was requeued or dispatched meanwhile has its own link.
    """
    linked: set[int] = set()
    for part in chunks(sorted(rows)):
        with transact():
            manifests = {manifest_id for id_ in part if (manifest_id := rows[id_].manifest_id) is not None}
            locked = ManifestState.objects.lock(manifests)
            unlinked, without_queue_row = _find_unlinked(Metadata.objects.filter(id_in(id=part)))
            links = [
                {"id": row.work_queue_id, "status": QueueStatus.DISPATCHED, "execution": row.id} for row in unlinked
            ]
            bulk.update(WorkQueue, links)
            Metadata.objects.active().filter(id__in=[row.id for row in without_queue_row]).update(work_queue=None)
            arm(locked, now=now)
            linked |= {row.id for row in (*unlinked, *without_queue_row)}
    return linked


def parents_and_roots_agree(check: str, *, now: datetime, repair: bool) -> Iterator[Finding]:
    """A row has the root of its parent execution, and a row without a parent has no root."""
    for model in (WorkQueue.objects.queued().known(), Metadata.objects.known()):
        wrong = list(_misrooted(model).order_by("id"))
        repairable = [row for row in wrong if isinstance(row, WorkQueue) or row.ended_at is None]
        if repair:
            _correct_roots(repairable)
        for row in wrong:
            evidence = f"its root is {row.root_execution_id}, by its parent it should be {row.right_root}"
            final = "" if row in repairable else ". It has ended and is final; retention will remove it"
            yield Finding(check, str(row), evidence + final, is_repaired=repair and row in repairable)


def _correct_roots(rows: Sequence[Any]) -> None:
    """Write the right roots one by one: only changes by hand make such rows, and few."""
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


def _cancel(rows: Sequence[WorkQueue], *, reason: str, status: QueueStatus, now: datetime) -> list[int]:
    """Cancel rows that still have this status, with their manifests' states locked; returns their ids."""
    cancelled: list[int] = []
    for part in chunks(rows):
        values = [
            {"id": row.id, "status": QueueStatus.CANCELLED, "execution": None, "cancel_reason": reason} for row in part
        ]
        with transact():
            locked = ManifestState.objects.lock({row.manifest_id for row in part if row.manifest_id is not None})
            cancelled += bulk.update(WorkQueue, values, where={"status": status})
            arm(locked, now=now)
    return cancelled
