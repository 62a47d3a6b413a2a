"""How the joins of a run stand, for its page: all of them together, in eight queries whatever their number."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.db.models import Exists, OuterRef, Q, Subquery

from chainsched.db.id_in import id_in
from chainsched.domain.joins import FanIn, Join, JoinOutcome
from chainsched.domain.outcomes import matches
from chainsched.domain.results import JoinReport, Missing
from chainsched.domain.states import ACTIVE_STATES, ExecutionState, RunCondition
from chainsched.models import DeadLetter, Dependency, GraphRun, JoinState, Manifest, Metadata, WorkQueue
from chainsched.models.near import RUN_END
from chainsched.models.obstacles import state_of

MAX_STATES = 1_000
MAX_JOINS = 100
# Joins of which it is said who is missing, the names for each, and the members and executions that are looked at for
# that; where there are more, it is only said how many are missing.
MAX_DETAILED = 10
MAX_MISSING = 10
MAX_MEMBERS = 20_000
UNDECIDED = (JoinOutcome.WAITING, JoinOutcome.SHORT)


@dataclass(frozen=True, slots=True)
class Joins:
    """The joins of a run: first those that wait, then those that had too little, then all others; how many there are.

    At most ``MAX_JOINS`` are described; the count ends at ``MAX_STATES``.
    """

    reports: Sequence[JoinReport]
    count: int


class _Member(NamedTuple):
    """A manifest that a join waits for."""

    join_id: int
    manifest_id: int
    name: str
    condition: int


class _Execution(NamedTuple):
    """An execution of the run; whether it ended in a dead letter."""

    pk: int
    manifest_id: int | None
    state: str
    is_dead: bool


class _Ended(NamedTuple):
    """The newest execution of a member in the run."""

    execution_id: int
    state: ExecutionState


def describe_joins(run: GraphRun) -> Joins:
    """How the joins of a run stand: what each needs, what arrived, and who is missing and why."""
    states = list(JoinState.objects.filter(run=run.id).defer("tokens").order_by("id")[:MAX_STATES])
    joins = sorted((state for state in states if state.join_id != RUN_END), key=_urgency)
    shown = joins[:MAX_JOINS]
    ids = [state.join_id for state in shown]
    manifests = Manifest.objects.defer("input").in_bulk(ids) if ids else {}
    counted = Dependency.objects.counted(ids) if ids else {}
    expected = {
        join_id: sum(number for since, number in numbers.items() if since <= run.version)
        for join_id, numbers in counted.items()
    }
    undecided = [state.join_id for state in shown if state.outcome in UNDECIDED][:MAX_DETAILED]
    missing = _find_missing(run, undecided, tokens={state.id for state in states})
    reports = [
        _report(state, manifests.get(state.join_id), expected.get(state.join_id, 0), missing.get(state.join_id))
        for state in shown
    ]
    return Joins(reports, len(joins))


def _urgency(state: JoinState) -> tuple[int, int]:
    order = {JoinOutcome.WAITING: 0, JoinOutcome.SHORT: 1}
    return order.get(JoinOutcome(state.outcome), 2), state.id


def _report(
    state: JoinState, manifest: Manifest | None, expected: int, missing: tuple[list[Missing], int] | None
) -> JoinReport:
    options = Join()
    if manifest is not None:
        options = Join(manifest.at_least, manifest.at_least_percent, fan_in=FanIn(manifest.fan_in))
    is_undecided = state.outcome in UNDECIDED
    named, count = missing or ([], max(expected - state.arrived, 0) if is_undecided else 0)
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
        missing=tuple(named),
        missing_count=count,
    )


def _find_missing(
    run: GraphRun, join_ids: Sequence[int], *, tokens: Collection[int]
) -> dict[int, tuple[list[Missing], int]]:
    """Who is missing at each of these joins, the first by name, each with the reason; and how many are."""
    members = _load_members(run, join_ids)
    executions = _load_executions(run) if members else []
    if not members or max(len(members), len(executions)) > MAX_MEMBERS:
        return {}
    newest, arrived = _judge(executions, members)
    absent = _by_join(member for member in members if member[:2] not in arrived)
    named = {join_id: found[:MAX_MISSING] for join_id, found in absent.items()}
    reasons = _Reasons.load({member.manifest_id for found in named.values() for member in found}, newest, tokens)
    return {
        join_id: ([Missing(member.name, reasons.of(member.manifest_id)) for member in found], len(absent[join_id]))
        for join_id, found in named.items()
    }


def _by_join(members: Iterable[_Member]) -> Mapping[int, list[_Member]]:
    found: dict[int, list[_Member]] = defaultdict(list)
    for member in members:
        found[member.join_id].append(member)
    return found


def _load_members(run: GraphRun, join_ids: Sequence[int]) -> list[_Member]:
    """The members that count in this run, by name."""
    if not join_ids:
        return []
    edges = Dependency.objects.filter(id_in(child=join_ids), is_gate=False, since__lte=run.version).filter(
        Q(is_derived=False) | Q(parent__done_at__isnull=True, parent__retired_at__isnull=True)
    )
    columns = ("child_id", "parent_id", "parent__external_id", "condition")
    return [_Member(*row) for row in edges.order_by("parent__external_id").values_list(*columns)[: MAX_MEMBERS + 1]]


def _load_executions(run: GraphRun) -> list[_Execution]:
    """The executions of the run, the oldest first."""
    letters = DeadLetter.objects.filter(manifest=OuterRef("manifest"), execution=OuterRef("pk"))
    rows: Any = Metadata.objects.of_run(run.id).annotate(is_dead=Exists(letters))
    columns = ("pk", "manifest_id", "state", "is_dead")
    return [_Execution(*row) for row in rows.values_list(*columns)[: MAX_MEMBERS + 1]]


def _judge(
    executions: Iterable[_Execution], members: Sequence[_Member]
) -> tuple[dict[int, _Ended], set[tuple[int, int]]]:
    """The newest execution of each manifest in the run, and which members have arrived at which join."""
    newest: dict[int, _Ended] = {}
    outcomes: dict[int, set[tuple[ExecutionState, bool]]] = defaultdict(set)
    for execution in executions:
        state, manifest_id = ExecutionState(execution.state), execution.manifest_id or 0
        newest[manifest_id] = _Ended(execution.pk, state)
        # A failure without a letter is no outcome: an attempt follows.
        if state not in ACTIVE_STATES and (state is not ExecutionState.FAILED or execution.is_dead):
            outcomes[manifest_id].add((state, execution.is_dead))
    arrived = {
        (member.join_id, member.manifest_id)
        for member in members
        for state, is_dead in outcomes[member.manifest_id]
        if matches(RunCondition(member.condition), state=state, is_dead_lettered=is_dead)
    }
    return newest, arrived


@dataclass(frozen=True, slots=True)
class _Reasons:
    """What is known about members that have not arrived; ``tokens`` are those of the run."""

    manifests: Mapping[int, Any]
    newest: Mapping[int, _Ended]
    tokens: Collection[int]

    @classmethod
    def load(cls, ids: Collection[int], newest: Mapping[int, _Ended], tokens: Collection[int]) -> _Reasons:
        queued = WorkQueue.objects.queued().filter(manifest=OuterRef("pk")).order_by("pk")
        letters = DeadLetter.objects.awaiting().filter(manifest=OuterRef("pk"))
        manifests = Manifest.objects.filter(id_in(pk=ids)).select_related("group", "state").defer("input")
        annotated = manifests.annotate(
            queued_tokens=Subquery(queued.values("tokens")[:1]),
            queued_attempt=Subquery(queued.values("attempt")[:1]),
            is_stopped=Exists(letters),
        )
        return cls({manifest.pk: manifest for manifest in annotated} if ids else {}, newest, tokens)

    def of(self, manifest_id: int) -> str:
        """Why a member has not arrived, in words."""
        manifest, ended = self.manifests[manifest_id], self.newest.get(manifest_id)
        if ended is not None and ended.state in ACTIVE_STATES:
            return "running" if ended.state is ExecutionState.IN_PROGRESS else "dispatched"
        waiting = self._waiting(manifest)
        if ended is None or waiting:
            return self._why_waiting(manifest, waiting)
        if ended.state is ExecutionState.FAILED:
            rest = ", its dead letter awaits a decision" if manifest.is_stopped else ""
            return f"failed in execution {ended.execution_id}{rest}"
        return f"{ended.state.value} in execution {ended.execution_id}"

    def _waiting(self, manifest: Any) -> str:
        """What waits of a member in this run."""
        if self._is_of_run(manifest.queued_tokens):
            return "queued" if manifest.queued_attempt == 1 else f"waits for attempt {manifest.queued_attempt}"
        state = getattr(manifest, "state", None)
        return "due" if state is not None and state.due_run and self._is_of_run(state.due_tokens) else ""

    def _why_waiting(self, manifest: Any, waiting: str) -> str:
        if (obstacle := state_of(manifest, is_group_enabled=manifest.group.is_enabled)) is not None:
            return obstacle.value.replace("_", " ")
        if manifest.is_stopped and waiting in ("", "due"):
            return "stopped by a dead letter of an earlier run"
        return waiting or "not reached"

    def _is_of_run(self, held: Sequence[int] | None) -> bool:
        return not set(self.tokens).isdisjoint(held or ())
