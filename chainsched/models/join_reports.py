"""How joins stand in a run: all of them together, in a handful of queries regardless of their number."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from django.db.models import Exists, OuterRef, Subquery

from chainsched.db.id_in import id_in
from chainsched.domain.joins import Absent, FanIn, Join, JoinOutcome, why_missing
from chainsched.domain.known import is_known, read
from chainsched.domain.obstacles import find_obstacle, find_state
from chainsched.domain.results import JoinReport, Missing
from chainsched.models.arrivals import Member, MemberRun, find_arrived, load_members, load_runs
from chainsched.models.dead_letter import DeadLetter
from chainsched.models.dependency import Dependency
from chainsched.models.graph_run import GraphRun
from chainsched.models.join_state import JoinState
from chainsched.models.manifest import Manifest
from chainsched.models.near import RUN_END
from chainsched.models.obstacles import standing_of
from chainsched.models.work_queue import WorkQueue

MAX_STATES = 1_000
MAX_JOINS = 100
# Joins of a run of which it is said who is missing, the names for each, and the members that are looked at for that;
# where there are more, it is only said how many are missing.
MAX_DETAILED = 10
MAX_NAMES = 100
MAX_MEMBERS = 20_000
# Outcomes of which it matters how many are still to come.
UNDECIDED = (JoinOutcome.WAITING, JoinOutcome.SHORT)


@dataclass(frozen=True, slots=True)
class Joins:
    """The joins of a run: first those that wait, then those that had too little, then all others; how many there are.

    At most ``MAX_JOINS`` are described; the count ends at ``MAX_STATES``.
    """

    reports: Sequence[JoinReport]
    count: int


class _Shortfall(NamedTuple):
    """The members that have not arrived, the first by name, each with the reason; and how many there are."""

    named: Sequence[Missing]
    number: int


def describe_join(state: JoinState) -> JoinReport:
    """How a join stands in one run: how many have to arrive, how many did, and which members are missing and why."""
    run = GraphRun.objects.get(id=state.run_id)
    (report,) = _describe(run, [state], detailed=[state.join_id], names=MAX_NAMES)
    return report


def describe_joins(run: GraphRun, *, names: int = MAX_NAMES) -> Joins:
    """How the joins of a run stand; at most so many names of missing members each."""
    states = JoinState.objects.filter(run=run.id).exclude(join_id=RUN_END).defer("tokens").order_by("id")
    joins = sorted(states[:MAX_STATES], key=_urgency)
    shown = joins[:MAX_JOINS]
    detailed = [state.join_id for state in shown][:MAX_DETAILED]
    return Joins(_describe(run, shown, detailed=detailed, names=names, max_members=MAX_MEMBERS), len(joins))


def _urgency(state: JoinState) -> tuple[int, int]:
    order: dict[str, int] = {JoinOutcome.WAITING: 0, JoinOutcome.SHORT: 1}
    return order.get(state.outcome, 2), state.id


def _describe(
    run: GraphRun,
    states: Sequence[JoinState],
    *,
    detailed: Sequence[int],
    names: int,
    max_members: int | None = None,
) -> list[JoinReport]:
    ids = [state.join_id for state in states]
    manifests = Manifest.objects.defer("input").in_bulk(ids) if ids else {}
    counted = Dependency.objects.counted(ids) if ids else {}
    expected = {
        join_id: sum(number.present for since, number in numbers.items() if since <= run.version)
        for join_id, numbers in counted.items()
    }
    shortfalls = _find_missing(run, detailed, names=names, max_members=max_members)
    return [
        _report(
            state, manifests.get(state.join_id), expected.get(state.join_id, 0), shortfall=shortfalls.get(state.join_id)
        )
        for state in states
    ]


def _report(state: JoinState, manifest: Manifest | None, expected: int, *, shortfall: _Shortfall | None) -> JoinReport:
    options = Join()
    if manifest is not None:
        options = Join(manifest.at_least, manifest.at_least_percent, fan_in=_fan_in_of(manifest))
    arrived, missing = state.arrived, shortfall
    if missing is None:
        missing = _Shortfall((), max(expected - arrived, 0))
    elif state.outcome in UNDECIDED:
        present_arrived = expected - missing.number
        arrived, expected = options.judged_by(
            arrived=arrived, present_arrived=present_arrived, present=expected, is_open=state.open > 0
        )
    # Parents that arrived may have been taken out of the list after the decision.
    expected = max(expected, arrived)
    return JoinReport(
        external_id=manifest.external_id if manifest else f"#{state.join_id}",
        run_id=state.run_id,
        outcome=read(JoinOutcome, state.outcome),
        needed=options.need(expected),
        expected=expected,
        arrived=arrived,
        open=state.open,
        deadline_at=state.deadline_at,
        is_gate_missing=bool(options.fan_in) and not state.is_gated,
        missing=tuple(missing.named),
        missing_count=missing.number,
    )


def _fan_in_of(manifest: Manifest) -> FanIn:
    """The kind of a fan-in; one that only a newer version knows counts as one over siblings, as far as it is shown."""
    return FanIn(manifest.fan_in) if is_known(FanIn, manifest.fan_in) else FanIn.SIBLINGS


def _find_missing(
    run: GraphRun, join_ids: Sequence[int], *, names: int, max_members: int | None
) -> dict[int, _Shortfall]:
    """Who is missing at each of these joins."""
    members = load_members(run, join_ids, limit=max_members) if join_ids else []
    if not members or (max_members is not None and len(members) > max_members):
        return {}
    executions = load_runs(run, members)
    arrived = find_arrived(executions, members)
    absent: dict[int, list[Member]] = {join_id: [] for join_id in join_ids}
    for member in members:
        if member[:2] not in arrived:
            absent[member.join_id].append(member)
    named = {join_id: found[:names] for join_id, found in absent.items()}
    reasons = _find_reasons(run, {member.manifest_id for found in named.values() for member in found}, executions)
    missing = {
        join_id: [Missing(member.name, reasons[member.manifest_id]) for member in found]
        for join_id, found in named.items()
    }
    return {join_id: _Shortfall(missing[join_id], len(found)) for join_id, found in absent.items()}


def _find_reasons(run: GraphRun, ids: Collection[int], executions: Iterable[MemberRun]) -> dict[int, str]:
    """Why each of these manifests has not arrived."""
    if not ids:
        return {}
    newest = {execution.manifest_id: execution for execution in executions}
    queued = WorkQueue.objects.queued().filter(manifest=OuterRef("pk")).order_by("pk")
    letters = DeadLetter.objects.awaiting().filter(manifest=OuterRef("pk"))
    manifests: Any = Manifest.objects.filter(id_in(pk=ids)).select_related("group", "state", "depends_on")
    annotated = list(
        manifests.defer("input", "depends_on__input").annotate(
            queued_tokens=Subquery(queued.values("tokens")[:1]),
            queued_attempt=Subquery(queued.values("attempt")[:1]),
            has_letter=Exists(letters),
        )
    )
    cancelled = WorkQueue.objects.cancelled_since(run.created_at, manifest_ids=ids)
    held = {token for manifest in annotated for token in (*(manifest.queued_tokens or ()), *_due_tokens(manifest))}
    held |= {token for tokens in cancelled.values() for token in tokens}
    of_run = {token for token, place in JoinState.objects.places(held).items() if place.run_id == run.id}
    never_began = {id_ for id_, tokens in cancelled.items() if of_run.intersection(tokens)}
    return {
        manifest.pk: why_missing(
            replace(_absent(manifest, newest, of_run), is_row_cancelled=manifest.pk in never_began)
        )
        for manifest in annotated
    }


def _due_tokens(manifest: Any) -> Sequence[int]:
    """The tokens of the item that a manifest is due for."""
    state = getattr(manifest, "state", None)
    return state.due_tokens if state is not None and state.due_run else ()


def _absent(manifest: Any, newest: Mapping[int, MemberRun], of_run: Collection[int]) -> Absent:
    execution = newest.get(manifest.pk)
    is_queued = any(token in of_run for token in manifest.queued_tokens or ())
    standing = standing_of(manifest, is_group_enabled=manifest.group.is_enabled, parent=manifest.depends_on)
    return Absent(
        execution_id=execution.pk if execution else 0,
        state=execution.state if execution else None,
        queued_attempt=manifest.queued_attempt if is_queued else 0,
        is_due=any(token in of_run for token in _due_tokens(manifest)),
        state_obstacle=find_state(standing),
        obstacle=find_obstacle(standing),
        has_letter=manifest.has_letter,
    )
