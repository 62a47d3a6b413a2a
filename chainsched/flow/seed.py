"""Stage 2 of 8: write declarations to rows.

Reads:  the plan, and the states of what it touches.
Writes: groups, manifests and their states: only what differs, and only what the code states.
Next:   the manager, when the alarms come.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from chainsched.domain.declarations import Declaration
from chainsched.domain.states import RunCondition, ScheduleType
from chainsched.exceptions import ChainschedError
from chainsched.flow.arm import arm
from chainsched.flow.declare import Schedules
from chainsched.flow.plan import LINK_COLUMNS, UNFINISHED, Change, Origin, Plan, chunks, plan, plan_rows
from chainsched.flow.transact import transact
from chainsched.models import Loop, Manifest, ManifestGroup, ManifestState, WorkQueue, bulk
from chainsched.models.facts import load_open_items
from chainsched.models.loop import GRAPH

logger = logging.getLogger(__name__)

MAX_TRIES = 5
# A change of one of these makes the schedule begin anew.
ARMING_COLUMNS = frozenset(
    {
        "schedule_type",
        "cron_expression",
        "interval_seconds",
        "once_at",
        "timezone",
        "jitter_seconds",
        "exclusions",
        "is_enabled",
        "depends_on",
        "run_condition",
        "retired_at",
        "group",
    }
)


class Raced(ChainschedError):
    """Somebody else created one of the manifests meanwhile; the caller plans anew."""


@dataclass(frozen=True, slots=True)
class Seeded:
    """What was written, by external id."""

    created: Sequence[str] = ()
    changed: Sequence[str] = ()
    retired: Sequence[str] = ()
    unchanged: int = 0


def seed(schedules: Schedules, *, now: datetime) -> Seeded:
    """Bring the rows in line with the declarations, in one transaction: all of it or, on any problem, nothing.

    Running it again writes nothing. The lock on the graph makes processes that start together take turns.
    """
    if schedules.is_empty:
        logger.warning("No schedules are declared, so nothing is seeded and nothing is retired.")
        return Seeded()
    return _until_settled(lambda: plan(schedules), holds_graph=True, now=now)


def upsert(declarations: Sequence[Declaration], *, origin: Origin, now: datetime) -> Seeded:
    """Write manifests at run time. The graph is locked only when an edge of it is involved."""
    holds_graph = any(found.depends_on for found in declarations)
    return _until_settled(lambda: plan_rows(declarations, origin=origin), holds_graph=holds_graph, now=now)


def retire(manifest_ids: Sequence[int], *, now: datetime) -> list[int]:
    """Retire what is not in the middle of a run: it is kept, with its history, and idle; returns whose it was."""
    with transact():
        locked = ManifestState.objects.lock_family(manifest_ids)
        return _retire([id_ for id_ in manifest_ids if id_ in set(locked)], now=now)


def _until_settled(make_plan: Callable[[], Plan], *, holds_graph: bool, now: datetime) -> Seeded:
    for _ in range(MAX_TRIES):
        try:
            with transact(is_patient=holds_graph):
                if holds_graph:
                    Loop.objects.hold(GRAPH, now=now)
                return _apply(make_plan(), now=now)
        except Raced:
            logger.info("Manifests appeared while they were being written; looking again.")
    raise Raced(f"Others created the same manifests {MAX_TRIES} times in a row; try again.")


def _apply(made: Plan, *, now: datetime) -> Seeded:
    ManifestState.objects.lock(_touched_ids(made))
    group_ids = _write_groups(made)
    created = _create(made.created, group_ids)
    _update(made, group_ids)
    look_at_parents([*created, *_ids_in(made, made.relinked)])
    _arm_all(created, now=now, is_fresh=False)
    _arm_all(_ids_in(made, _to_arm(made)), now=now, is_fresh=True)
    _arm_all(_family_of(_ids_in(made, _switched(made))), now=now, is_fresh=False)
    _arm_all(_members_of(_switched_groups(made)), now=now, is_fresh=True)
    retired = _retire(_ids_in(made, made.retired), now=now)
    for warning in made.warnings:
        logger.warning("%s", warning)
    return _report(made, retired)


def _touched_ids(made: Plan) -> list[int]:
    """Every state that may be looked at or written, so that one statement locks them all in id order."""
    parents = {row["depends_on"] for row in made.created}
    parents |= {made.stored[name]["depends_on"] for name in made.relinked}
    parents |= {made.changed[name]["depends_on"].new for name in made.reparented}
    names = {*made.changed, *made.retired, *(name for name in parents if name in made.stored)}
    own = _ids_in(made, sorted(names))
    below = _family_of(_ids_in(made, [*_switched(made), *made.retired]))
    return sorted({*own, *below, *_members_of(_switched_groups(made))})


def _ids_in(made: Plan, external_ids: Iterable[str]) -> list[int]:
    return [made.stored[external_id]["id"] for external_id in external_ids]


def _to_arm(made: Plan) -> list[str]:
    return [external_id for external_id, columns in made.changed.items() if ARMING_COLUMNS & columns.keys()]


def _switched(made: Plan) -> list[str]:
    """Those whose dependents, and continuations beside them, start or stop with them."""
    switching = {"is_enabled", "retired_at", *LINK_COLUMNS}
    return [name for name, columns in made.changed.items() if switching & columns.keys()]


def _switched_groups(made: Plan) -> list[str]:
    return [name for name, columns in made.changed_groups.items() if "is_enabled" in columns]


def _members_of(groups: Sequence[str]) -> list[int]:
    return list(Manifest.objects.filter(group__name__in=groups).order_by("id").values_list("id", flat=True))


def _family_of(manifest_ids: Sequence[int]) -> list[int]:
    """Who starts or stops with these manifests: their dependents, and continuations that wait for them."""
    return [
        row["id"] for part in chunks(manifest_ids) for members in Manifest.objects.family_of(part) for row in members
    ]


def _write_groups(made: Plan) -> dict[str, int]:
    """Create missing groups, write what is stated and differs, and return the ids of those that are needed."""
    for columns, names in _alike(made.new_groups).items():
        rows = [{"name": name, **dict(columns)} for name in names]
        for part in chunks(rows):
            bulk.insert(ManifestGroup, part, skip_conflicts=True)
    for name, changes in made.changed_groups.items():
        ManifestGroup.objects.filter(name=name).update(**{column: change.new for column, change in changes.items()})
    needed = {row["group"] for row in made.created}
    needed |= {columns["group"].new for columns in made.changed.values() if "group" in columns}
    return {
        name: id_
        for part in chunks(sorted(needed))
        for name, id_ in ManifestGroup.objects.filter(name__in=part).values_list("name", "id")
    }


def _alike(groups: Mapping[str, Mapping[str, Any]]) -> dict[tuple[tuple[str, Any], ...], list[str]]:
    """The names of groups by what is stated about them, for one statement each."""
    alike: dict[tuple[tuple[str, Any], ...], list[str]] = defaultdict(list)
    for name, stated in groups.items():
        alike[tuple(sorted(stated.items()))].append(name)
    return alike


def _create(rows: Sequence[dict[str, Any]], group_ids: Mapping[str, int]) -> list[int]:
    """Insert manifests level by level, so that parents have ids before their dependents need them."""
    levels: dict[tuple[int, frozenset[str]], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        levels[(row["depth"], frozenset(row))].append(row)
    created: list[int] = []
    for (depth, _), level in sorted(levels.items(), key=lambda entry: entry[0][0]):
        parent_ids = _ids_of({row["depends_on"] for row in level}) if depth else {}
        for part in chunks(level):
            named = [_numbered(row, group_ids, parent_ids) for row in part]
            written = bulk.insert(Manifest, named, skip_conflicts=True)
            if len(written) < len(named):
                raise Raced("a manifest of the same external id appeared")
            created += [row["id"] for row in written]
    for part in chunks(created):
        bulk.insert(ManifestState, [{"manifest": id_} for id_ in part], returning=("manifest",))
    return created


def _numbered(row: Mapping[str, Any], group_ids: Mapping[str, int], parent_ids: Mapping[str, int]) -> dict[str, Any]:
    """The row with ids in place of names."""
    numbered = dict(row)
    if "group" in row:
        numbered["group"] = group_ids[row["group"]]
    if row.get("depends_on") is not None:
        numbered["depends_on"] = parent_ids[row["depends_on"]]
    return numbered


def _ids_of(external_ids: Iterable[str | None]) -> dict[str, int]:
    wanted = sorted(external_id for external_id in external_ids if external_id is not None)
    return {
        external_id: id_
        for part in chunks(wanted)
        for external_id, id_ in Manifest.objects.filter(external_id__in=part).values_list("external_id", "id")
    }


def _update(made: Plan, group_ids: Mapping[str, int]) -> None:
    """Write the changes, rows that change the same columns together; then the depth of what hangs below."""
    parent_ids = _ids_of(made.changed[name]["depends_on"].new for name in made.reparented)
    alike: dict[frozenset[str], list[dict[str, Any]]] = defaultdict(list)
    for external_id, columns in made.changed.items():
        new = {column: change.new for column, change in columns.items()}
        row = {"id": made.stored[external_id]["id"], **_numbered(new, group_ids, parent_ids)}
        alike[frozenset(row)].append(row)
    for rows in alike.values():
        for part in chunks(rows):
            bulk.update(Manifest, part)
    _let_waiting_rows_follow(made)
    moved = [name for name, columns in made.changed.items() if "depth" in columns]
    _deepen({made.stored[name]["id"]: _new_depth(made.changed[name]) for name in moved})


def _let_waiting_rows_follow(made: Plan) -> None:
    """A row that waits runs the workflow that its manifest has now, or a renamed one would strand it."""
    renamed = {
        made.stored[name]["id"]: columns["workflow"].new
        for name, columns in made.changed.items()
        if "workflow" in columns
    }
    WorkQueue.objects.rename_workflow(renamed)


def _new_depth(columns: Mapping[str, Change]) -> int:
    depth: int = columns["depth"].new
    return depth


def _deepen(depths: Mapping[int, int]) -> None:
    """Let the depth of everything below follow that of its ancestors, level by level."""
    while depths:
        below = Manifest.objects.filter(depends_on__in=list(depths)).values_list("id", "depends_on_id", "depth")
        wrong = {id_: depths[parent] + 1 for id_, parent, depth in below if depth != depths[parent] + 1}
        bulk.update(Manifest, [{"id": id_, "depth": depth} for id_, depth in wrong.items()])
        depths = wrong


def look_at_parents(manifest_ids: Sequence[int]) -> None:
    """Let a dependent that is new, or has a new parent, be due if that parent succeeded after its own last success.

    One that runs once waits for a later outcome. Only here are times compared; from then on executions are counted.
    The parents' states are locked.
    """
    for part in chunks(manifest_ids):
        rows = [_first_numbers(row) for row in _with_parents(part)]
        bulk.update(ManifestState, rows, key="manifest")
        freed = set(part) - {row["manifest"] for row in rows}
        ManifestState.objects.filter(manifest__in=freed, due_execution__gt=0).update(
            due_execution=0, covered_execution=0, settled_execution=0
        )
        ManifestState.objects.note_debts(part)


def _with_parents(manifest_ids: Sequence[int]) -> list[dict[str, Any]]:
    dependents = Manifest.objects.filter(
        id__in=manifest_ids, schedule_type=ScheduleType.DEPENDENT, depends_on__isnull=False
    )
    columns = (
        "id",
        "run_condition",
        "is_one_time",
        "state__last_successful_run",
        "depends_on__state__last_successful_run",
        "depends_on__state__succeeded_execution",
        "depends_on__state__dead_lettered_execution",
        "depends_on__state__finished_execution",
    )
    return [dict(row) for row in dependents.values(*columns)]


def _first_numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    if row["is_one_time"]:
        present = row["depends_on__state__finished_execution"]
        return _numbers(row["id"], due=present, covered=present)
    newest = {
        RunCondition.SUCCESS: row["depends_on__state__succeeded_execution"],
        RunCondition.FAILURE: row["depends_on__state__dead_lettered_execution"],
        RunCondition.COMPLETION: row["depends_on__state__finished_execution"],
    }[RunCondition(row["run_condition"])]
    own, parents = row["state__last_successful_run"], row["depends_on__state__last_successful_run"]
    is_behind = own is None or (parents is not None and parents > own)
    return _numbers(row["id"], due=newest, covered=0 if is_behind else newest)


def _numbers(manifest_id: int, *, due: int, covered: int) -> dict[str, Any]:
    """A new sibling has no part in what already happened, so all of it counts as settled."""
    return {
        "manifest": manifest_id,
        "due_execution": due,
        "covered_execution": covered,
        "settled_execution": due,
    }


def _retire(manifest_ids: Sequence[int], *, now: datetime) -> list[int]:
    """Retire those that nothing unfinished holds; their states, and their dependents', are locked."""
    retired: list[int] = []
    for part in chunks(manifest_ids):
        busy = {id_ for id_, item in load_open_items(part).items() if item in UNFINISHED}
        idle = [id_ for id_ in part if id_ not in busy]
        Manifest.objects.filter(id__in=idle, retired_at__isnull=True).update(retired_at=now)
        retired += idle
        ManifestState.objects.note_debts(idle)
    _arm_all([*retired, *_family_of(retired)], now=now, is_fresh=False)
    return retired


def _arm_all(manifest_ids: Sequence[int], *, now: datetime, is_fresh: bool) -> None:
    for part in chunks(manifest_ids):
        arm(part, now=now, is_fresh=is_fresh)


def _report(made: Plan, retired: Sequence[int]) -> Seeded:
    names = {made.stored[name]["id"]: name for name in made.retired}
    seeded = Seeded(
        created=[row["external_id"] for row in made.created],
        changed=sorted(made.changed),
        retired=sorted(names[id_] for id_ in retired),
        unchanged=made.unchanged,
    )
    logger.info(
        "Seeded: %d created, %d changed, %d retired, %d unchanged.",
        len(seeded.created),
        len(seeded.changed),
        len(seeded.retired),
        seeded.unchanged,
    )
    return seeded
