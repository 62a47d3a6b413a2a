"""Reads of runs of the graph: how a run goes, its open work, the executions that led to another."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from chainsched.db.id_in import id_in
from chainsched.domain.results import OpenWork, ParentRun, RunReport
from chainsched.domain.states import ExecutionState
from chainsched.models.arrivals import arrived_at
from chainsched.models.dependency import Dependency
from chainsched.models.graph_run import GraphRun
from chainsched.models.join_reports import MAX_NAMES, describe_joins
from chainsched.models.join_state import JoinState
from chainsched.models.manifest import Manifest
from chainsched.models.manifest_state import ManifestState
from chainsched.models.metadata import Metadata
from chainsched.models.work_queue import WorkQueue


def describe_run(run: GraphRun) -> RunReport:
    """How a run goes: its executions by state and workflow, its open work, and how its joins stand."""
    return RunReport(
        run_id=run.id,
        head=run.head_external_id,
        scheduled_for=run.scheduled_for,
        created_at=run.created_at,
        closed_at=run.closed_at,
        cancelled_at=run.cancelled_at,
        cancel_reason=run.cancel_reason,
        executions=_count_executions(run.id),
        open_work=tuple(_open_work(run)),
        joins=tuple(describe_joins(run).reports),
    )


def find_arrivals(execution: Metadata) -> list[ParentRun]:
    """The executions that an execution ran after, with their outputs: of a join those that arrived in its run."""
    join = Manifest.objects.filter(id=execution.manifest_id or 0, is_join=True).first()
    run = GraphRun.objects.filter(id=execution.run_id or 0).first()
    parents = [execution.parent_execution_id or 0] if join is None or run is None else arrived_at(join.id, run)
    columns = ("id", "manifest_external_id", "state", "output")
    return [
        ParentRun(row.id, row.manifest_external_id, ExecutionState(row.state), row.output)
        for row in Metadata.objects.known().filter(id_in(id=parents)).only(*columns).order_by("id")
    ]


def find_join(execution: Metadata) -> JoinState | None:
    """How the join that an execution is a run of stood in its run; None if it is no join, or ran by hand."""
    return JoinState.objects.filter(run=execution.run_id or 0, join_id=execution.manifest_id or 0).first()


def waiting_joins(manifest_id: int, *, limit: int) -> list[JoinState]:
    """How a join stands in the runs in which it still waits, the oldest first."""
    return list(JoinState.objects.waiting().filter(join_id=manifest_id).order_by("id")[:limit])


def last_join(manifest_id: int) -> JoinState | None:
    """How a join stood in the newest run that reached it."""
    return JoinState.objects.filter(join_id=manifest_id).order_by("-id").first()


def _count_executions(run_id: int) -> Mapping[str, Mapping[str, int]]:
    counted: dict[str, Counter[str]] = defaultdict(Counter)
    for workflow, state in Metadata.objects.of_run(run_id).order_by().values_list("workflow", "state"):
        counted[state][workflow] += 1
    return {state: dict(workflows) for state, workflows in sorted(counted.items())}


def _open_work(run: GraphRun) -> list[OpenWork]:
    """The open items that a run waits for, at most ``MAX_NAMES`` of each kind: running or dispatched, queued, due."""
    active = Metadata.objects.of_run(run.id).active()
    queued = WorkQueue.objects.queued().filter(run=run.id, has_tokens=True).order_by("id")
    due = ManifestState.objects.filter(due_run=run.id, due_has_tokens=True).order_by("manifest_id")
    return [
        *(
            OpenWork(name, "running" if state == ExecutionState.IN_PROGRESS else "dispatched")
            for name, state in active.values_list("manifest_external_id", "state")[:MAX_NAMES]
        ),
        *(OpenWork(name, "queued") for name in queued.values_list("manifest_external_id", flat=True)[:MAX_NAMES]),
        *(OpenWork(name, "due") for name in due.values_list("manifest__external_id", flat=True)[:MAX_NAMES]),
        *find_shared_work(run, limit=MAX_NAMES),
    ]


def find_shared_work(run: GraphRun, *, limit: int) -> list[OpenWork]:
    """Items that wait, queued or due, for an open run and for a newer one, which they are named after."""
    below = Dependency.objects.below(run.head_id or 0) if run.closed_at is None and run.cancelled_at is None else set()
    if not below:
        return []
    queued = WorkQueue.objects.queued().filter(id_in(manifest=below), run__gt=run.id, has_tokens=True)
    due = ManifestState.objects.filter(id_in(manifest=below), due_run__gt=run.id, due_has_tokens=True)
    rows = [
        *((name, "queued", tokens) for name, tokens in queued.values_list("manifest_external_id", "tokens")),
        *((name, "due", tokens) for name, tokens in due.values_list("manifest__external_id", "due_tokens")),
    ]
    own = set(JoinState.objects.filter(run=run.id).values_list("id", flat=True)) if rows else set()
    return sorted((OpenWork(name, standing) for name, standing, tokens in rows if own.intersection(tokens)), key=str)[
        :limit
    ]
