"""Reads of the database after a run, and during it snapshots of the rows that must not change any more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from django.db import connection
from django.db.models import Exists, OuterRef, Q

from chainsched.db.clock import database_now
from chainsched.models import (
    DeadLetter,
    DueNote,
    GraphRun,
    JoinNote,
    JoinState,
    Manifest,
    ManifestState,
    Metadata,
    Process,
    TakenOver,
    WorkQueue,
)
from chaos.apps import WITHOUT
from chaos.evidence import Execution, Letter, Passage, Queued, Waiting
from chaos.fleet import ROOT, SCHEDULER, WORKER, Member
from chaos.settings import PROCESS_EXPIRY

# The loops of each kind of process with short intervals, and the longest pause of them at the end of a run.
QUICK_LOOPS = {SCHEDULER: ("manager", "dispatcher", "reaper"), WORKER: ("reaper",)}
IDLE_SECONDS = 15
# A row that is committed late may carry an older time than one that was seen before it.
OVERLAP = "interval '60 seconds'"
TERMINAL = "SELECT id, md5(m::text), ended_at FROM chainsched_metadata m WHERE ended_at IS NOT NULL"


@dataclass(slots=True)
class Snapshots:
    """The terminal rows as they were first read."""

    digests: dict[int, str] = field(default_factory=dict)
    _latest: datetime | None = None

    def take(self) -> None:
        """Store the rows that have ended since the last call."""
        recent = f" AND ended_at > %s - {OVERLAP}" if self._latest else ""
        for id_, digest, ended_at in _fetch(TERMINAL + recent, [self._latest] if self._latest else []):
            self.digests.setdefault(id_, digest)
            self._latest = max(self._latest or ended_at, ended_at)

    def compare(self) -> list[str]:
        """The rows that have changed or gone since they were first read."""
        final = {id_: digest for id_, digest, _ in _fetch(TERMINAL, [])}
        return [
            f"execution #{id_} " + ("was changed after it had ended" if id_ in final else "is gone")
            for id_, digest in self.digests.items()
            if final.get(id_) != digest
        ]


def _fetch(sql: str, parameters: list[datetime]) -> list[tuple[int, str, datetime]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        found: list[tuple[int, str, datetime]] = cursor.fetchall()
    return found


def is_quiet() -> bool:
    """Whether no row is queued or active, no manifest is armed, triggered or put aside, and no run is open."""
    # In one statement: a job moves from one table to the next.
    queued = WorkQueue.objects.queued().values("id")
    active = Metadata.objects.active().values("id")
    waits = Q(next_run_at__isnull=False) | Q(trigger_at__isnull=False) | Q(put_aside_at__isnull=False)
    due = ManifestState.objects.filter(waits).values("manifest_id")
    notes = (DueNote.objects.values("id"), JoinNote.objects.values("id"))
    return not queued.union(active, due, *notes, GraphRun.objects.open().values("id"), all=True).exists()


def idle(manifests: list[str]) -> list[Manifest]:
    """Those of these that have no open work and no trigger request."""
    # In one statement: a run that fails between two statements moves from one table to the other.
    queued = Exists(WorkQueue.objects.queued().filter(manifest=OuterRef("id")))
    active = Exists(Metadata.objects.active().filter(manifest=OuterRef("id")))
    found = Manifest.objects.filter(~queued, ~active, external_id__in=manifests, state__trigger_at__isnull=True)
    return list(found.order_by("id"))


def completed_counts(manifests: list[str]) -> dict[str, int]:
    """How often each of these has completed."""
    rows = Metadata.objects.filter(manifest_external_id__in=manifests, state="completed")
    counts = dict.fromkeys(manifests, 0)
    for name in rows.values_list("manifest_external_id", flat=True):
        counts[name] += 1
    return counts


def coming_due(*, within: float) -> list[str]:
    """The manifests whose alarm comes within so many seconds, and not within the first of them."""
    now = database_now()
    soon = Q(next_run_at__gt=now + timedelta(seconds=1), next_run_at__lte=now + timedelta(seconds=within))
    found = ManifestState.objects.filter(soon).order_by("manifest_id")
    return list(found.values_list("manifest__external_id", flat=True))


def held_up(*, seconds: float, besides: Collection[str]) -> list[str]:
    """The signs that no work was done for so many seconds although there was some; besides that of these manifests."""
    before = database_now() - timedelta(seconds=seconds)
    others = ~Q(manifest__external_id__in=besides)
    late = ManifestState.objects.filter(others, next_run_at__lt=before).order_by("next_run_at")
    found = [f"{name} was due for {seconds:g} s" for name in late.values_list("manifest__external_id", flat=True)[:3]]
    waits = WorkQueue.objects.queued().filter(others, created_at__lt=before).exclude(not_before__gt=before)
    runs = Metadata.objects.active().filter(others, created_at__lt=before)
    steps = Q(created_at__gte=before) | Q(claimed_at__gte=before) | Q(ended_at__gte=before)
    if (waits.exists() or runs.exists()) and not Metadata.objects.filter(steps).exists():
        found.append(f"nothing was dispatched, claimed or ended for {seconds:g} s although work waited")
    return found


def settled_count() -> int:
    """How many runs have succeeded or been dead-lettered."""
    return Metadata.objects.filter(state="completed").count() + DeadLetter.objects.count()


def idle_processes(members: Iterable[Member]) -> list[str]:
    """Those of these that have no heartbeat, and the loops that do not turn."""
    now = database_now()
    found = []
    for member in members:
        # After a freeze its former lease may not have been reaped yet.
        row = Process.objects.trusted().filter(pid=member.pid).order_by("id").last()
        if row is None or (now - row.heartbeat_at).total_seconds() > PROCESS_EXPIRY:
            found.append(f"{member.name} has no heartbeat")
            continue
        found += [f"{member.name}: the {name} {problem}" for name, problem in _idle_loops(member.kind, row, now)]
    return found


def _idle_loops(kind: str, row: Process, now: datetime) -> Iterator[tuple[str, str]]:
    """The loops of this process that do not turn, and since when."""
    for name in QUICK_LOOPS[kind]:
        turned_at = row.turns.get(name)
        if turned_at is None:
            yield name, "has never turned"
        elif (now - datetime.fromisoformat(turned_at)).total_seconds() > IDLE_SECONDS:
            yield name, f"has not turned since {turned_at}"


def executions() -> list[Execution]:
    """All executions, the oldest first."""
    columns = (
        "id",
        "manifest_external_id",
        "group__name",
        "state",
        "attempt",
        "source",
        "parent_execution_id",
        "process__pid",
        "scheduled_for",
        "created_at",
        "ended_at",
        "failure_type",
        "output",
        "run_id",
    )
    taken_over: dict[int, list[int]] = defaultdict(list)
    for execution_id, run_id in TakenOver.objects.order_by("id").values_list("execution_id", "run_id"):
        taken_over[execution_id].append(run_id)
    found = (Execution(*row) for row in Metadata.objects.order_by("id").values_list(*columns))
    return [replace(row, taken_over=tuple(taken_over.get(row.id, ()))) for row in found]


def queue() -> list[Queued]:
    """All queue rows, the oldest first."""
    columns = ("id", "manifest_external_id", "status", "source", "parent_execution_id", "created_at")
    return [Queued(*row) for row in WorkQueue.objects.order_by("id").values_list(*columns)]


def letters() -> list[Letter]:
    """All dead letters, the oldest first."""
    columns = ("manifest__external_id", "execution_id", "status", "dead_lettered_at")
    return [Letter(*row) for row in DeadLetter.objects.order_by("id").values_list(*columns)]


def passages() -> list[Passage]:
    """All runs of the graph, the oldest first."""
    columns = ("id", "head_external_id", "closed_at", "cancelled_at")
    return [Passage(*row) for row in GraphRun.objects.order_by("id").values_list(*columns)]


def waiting() -> list[Waiting]:
    """How each join waits in each run of the graph, and the ends of the runs."""
    names = dict(Manifest.objects.filter(is_join=True).values_list("id", "external_id"))
    columns = ("run_id", "join_id", "open", "outcome", "firings", "decided_at")
    return [
        Waiting(run_id, names.get(join_id, ""), *rest)
        for run_id, join_id, *rest in JoinState.objects.order_by("id").values_list(*columns)
    ]


def notes() -> list[str]:
    """The notes that wait for a dependent or a join."""
    return [*map(str, DueNote.objects.order_by("id")), *map(str, JoinNote.objects.order_by("id"))]


def fsck() -> list[str]:
    """The findings of ``chainsched fsck``."""
    command = [sys.executable, "manage.py", "chainsched", "fsck", "--json"]
    environment = {name: value for name, value in os.environ.items() if name != WITHOUT}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        return [f"fsck printed no findings, but: {done.stderr[-500:]}"]
    return [f"{item['check']}: {item['subject']}: {item['evidence']}" for item in json.loads(done.stdout)["findings"]]
