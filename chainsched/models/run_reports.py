"""Reads of runs of the graph: how a run goes, what its joins wait for, what led to an execution."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from chainsched.db.id_in import id_in
from chainsched.domain.joins import FanIn, Join, JoinOutcome
from chainsched.domain.outcomes import matches
from chainsched.domain.results import JoinReport, Missing, OpenWork, ParentRun, RunReport
from chainsched.domain.states import ACTIVE_STATES, ExecutionState, RunCondition
from chainsched.models.dead_letter import DeadLetter
from chainsched.models.dependency import Dependency
from chainsched.models.graph_run import GraphRun
from chainsched.models.join_state import JoinState
from chainsched.models.manifest import Manifest
from chainsched.models.manifest_state import ManifestState
from chainsched.models.metadata import Metadata
from chainsched.models.near import RUN_END
from chainsched.models.obstacles import state_of
from chainsched.models.work_queue import WorkQueue

MAX_NAMES = 100
MAX_JOINS = 100
# The joins of a run whose missing members are named.
MAX_DETAILED = 10


class _Member(NamedTuple):
    """An edge to a join, with what can keep its parent from arriving."""

    manifest: Manifest
    condition: RunCondition


def describe_join(state: JoinState) -> JoinReport:
    """How a join stands in one run: what it needs, what arrived, and who is missing and why."""
    manifest = Manifest.objects.filter(id=state.join_id).first()
    run = GraphRun.objects.filter(id=state.run_id).first()
    members = _members(state.join_id, version=run.version if run else 0)
    missing = _missing(members, state) if manifest is not None else []
    return _report(state, manifest, expected=len(members), missing=missing)


def describe_run(run: GraphRun) -> RunReport:
    """How a run goes: its executions by state and workflow, what is open, and how its joins stand."""
    states = list(JoinState.objects.filter(run=run.id).exclude(join_id=RUN_END).order_by("id")[:MAX_JOINS])
    # Those that wait come first, then those that had too little.
    order = {JoinOutcome.WAITING: 0, JoinOutcome.SHORT: 1}
    states.sort(key=lambda state: (order.get(JoinOutcome(state.outcome), 2), state.id))
    return RunReport(
        run_id=run.id,
        head=run.head_external_id,
        scheduled_for=run.scheduled_for,
        created_at=run.created_at,
        closed_at=run.closed_at,
        cancelled_at=run.cancelled_at,
        cancel_reason=run.cancel_reason,
        executions=_count_executions(run.id),
        open_work=tuple(_open_work(run.id)),
        joins=tuple(
            describe_join(state) if at < MAX_DETAILED else _report_briefly(state) for at, state in enumerate(states)
        ),
    )


def find_arrivals(execution: Metadata) -> list[ParentRun]:
    """The executions that an execution ran after, with their outputs: of a join those that arrived in its run."""
    manifest = Manifest.objects.filter(id=execution.manifest_id or 0).first()
    if manifest is None or not manifest.is_join or execution.run_id is None:
        rows = Metadata.objects.filter(id=execution.parent_execution_id or 0)
    else:
        rows = _arrived(manifest.id, execution.run_id)
    return [
        ParentRun(row.id, row.manifest_external_id, ExecutionState(row.state), row.output)
        for row in rows.only("id", "manifest_external_id", "state", "output").order_by("id")
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


def _report(state: JoinState, manifest: Manifest | None, *, expected: int, missing: Sequence[Missing]) -> JoinReport:
    options = Join()
    if manifest is not None:
        options = Join(manifest.at_least, manifest.at_least_percent, fan_in=FanIn(manifest.fan_in))
    return JoinReport(
        external_id=manifest.external_id if manifest else f"#{state.join_id}",
        run_id=state.run_id,
        outcome=JoinOutcome(state.outcome),
        needed=options.need(expected),
        expected=expected,
        arrived=state.arrived,
        open=state.open,
        deadline_at=state.deadline_at,
        is_gate_missing=bool(options.fan_in) and not state.is_gated,
        missing=tuple(missing[:MAX_NAMES]),
        missing_count=len(missing),
    )


def _report_briefly(state: JoinState) -> JoinReport:
    """Without the names of who is missing."""
    manifest = Manifest.objects.filter(id=state.join_id).first()
    counts = Dependency.objects.counted([state.join_id]).get(state.join_id, {})
    return _report(state, manifest, expected=sum(counts.values()), missing=())


def _members(join_id: int, *, version: int) -> list[_Member]:
    edges = Dependency.objects.filter(child=join_id, is_gate=False, since__lte=version).select_related(
        "parent", "parent__group"
    )
    return [
        _Member(edge.parent, RunCondition(edge.condition))
        for edge in edges.defer("parent__input").order_by("parent__external_id")
        if not (edge.is_derived and (edge.parent.done_at or edge.parent.retired_at))
    ]


def _arrived(join_id: int, run_id: int) -> Any:
    """The newest execution of each parent of a join in a run that matched its edge."""
    edges = dict(Dependency.objects.filter(child=join_id, is_gate=False).values_list("parent_id", "condition"))
    outcomes = _outcomes(edges, run_id)
    ids = [
        execution_id
        for parent_id, (execution_id, state, letter) in outcomes.items()
        if _matches(edges[parent_id], state, letter)
    ]
    return Metadata.objects.filter(id_in(id=ids))


def _outcomes(manifest_ids: Iterable[int], run_id: int) -> dict[int, tuple[int, ExecutionState, str]]:
    """The newest execution of each of these manifests in a run: its id, its state, and the status of its letter."""
    rows = Metadata.objects.of_run(run_id).filter(id_in(manifest=manifest_ids))
    newest = {
        manifest_id or 0: (id_, state) for manifest_id, id_, state in rows.values_list("manifest_id", "id", "state")
    }
    failed = [id_ for id_, state in newest.values() if state == ExecutionState.FAILED]
    letters = dict(DeadLetter.objects.filter(id_in(execution=failed)).values_list("execution_id", "status"))
    return {
        manifest_id: (id_, ExecutionState(state), letters.get(id_, "")) for manifest_id, (id_, state) in newest.items()
    }


def _matches(condition: int, state: ExecutionState, letter: str) -> bool:
    if state in ACTIVE_STATES or (state is ExecutionState.FAILED and not letter):
        return False
    return matches(RunCondition(condition), state=state, is_dead_lettered=bool(letter))


def _missing(members: Sequence[_Member], state: JoinState) -> list[Missing]:
    """The members that have not arrived, each with the reason."""
    ids = [member.manifest.id for member in members]
    outcomes = _outcomes(ids, state.run_id)
    waiting = _waiting_in(ids, state.run_id)
    stopped = set(DeadLetter.objects.awaiting().filter(id_in(manifest=ids)).values_list("manifest_id", flat=True))
    found = []
    for member in members:
        id_ = member.manifest.id
        outcome = outcomes.get(id_)
        if outcome is None or not _matches(member.condition, outcome[1], outcome[2]):
            reason = _why_missing(member.manifest, outcome, waiting.get(id_), is_stopped=id_ in stopped)
            found.append(Missing(member.manifest.external_id, reason))
    return found


def _waiting_in(manifest_ids: Collection[int], run_id: int) -> dict[int, str]:
    """What waits of these manifests in a run: a queue row, or something due."""
    tokens = set(JoinState.objects.filter(run=run_id).values_list("id", flat=True))
    due = ManifestState.objects.filter(id_in(manifest=manifest_ids), due_run__isnull=False)
    found = {id_: "due" for id_, held in due.values_list("manifest_id", "due_tokens") if tokens.intersection(held)}
    queued = WorkQueue.objects.queued().filter(id_in(manifest=manifest_ids), run__isnull=False)
    for id_, held, attempt in queued.values_list("manifest_id", "tokens", "attempt"):
        if tokens.intersection(held):
            found[id_ or 0] = "queued" if attempt == 1 else f"waits for attempt {attempt}"
    return found


def _why_missing(
    manifest: Manifest, outcome: tuple[int, ExecutionState, str] | None, waiting: str | None, *, is_stopped: bool
) -> str:
    if outcome is not None and outcome[1] in ACTIVE_STATES:
        return "running" if outcome[1] is ExecutionState.IN_PROGRESS else "dispatched"
    if waiting or outcome is None:
        return _why_waiting(manifest, waiting, is_stopped=is_stopped)
    execution_id, state, _ = outcome
    if state is ExecutionState.FAILED:
        return f"failed in execution {execution_id}" + (", its dead letter awaits a decision" if is_stopped else "")
    return f"{state.value} in execution {execution_id}"


def _why_waiting(manifest: Manifest, waiting: str | None, *, is_stopped: bool) -> str:
    obstacle = state_of(manifest, is_group_enabled=manifest.group.is_enabled)
    if obstacle is not None:
        return obstacle.value.replace("_", " ")
    if is_stopped and waiting in (None, "due"):
        return "stopped by a dead letter of an earlier run"
    return waiting or "not reached"


def _count_executions(run_id: int) -> Mapping[str, Mapping[str, int]]:
    counted: dict[str, Counter[str]] = defaultdict(Counter)
    for workflow, state in Metadata.objects.of_run(run_id).order_by().values_list("workflow", "state"):
        counted[state][workflow] += 1
    return {state: dict(workflows) for state, workflows in sorted(counted.items())}


def _open_work(run_id: int) -> list[OpenWork]:
    """What is open in a run, at most ``MAX_NAMES`` of each kind: running or dispatched, queued, due."""
    active = Metadata.objects.active().filter(run=run_id).order_by("id")
    queued = WorkQueue.objects.queued().filter(run=run_id).order_by("id")
    due = ManifestState.objects.filter(due_run=run_id).order_by("manifest_id")
    return [
        *(
            OpenWork(name, "running" if state == ExecutionState.IN_PROGRESS else "dispatched")
            for name, state in active.values_list("manifest_external_id", "state")[:MAX_NAMES]
        ),
        *(OpenWork(name, "queued") for name in queued.values_list("manifest_external_id", flat=True)[:MAX_NAMES]),
        *(OpenWork(name, "due") for name in due.values_list("manifest__external_id", flat=True)[:MAX_NAMES]),
    ]
