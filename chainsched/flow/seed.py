"""Stage 2 of 8: write declarations to rows.

Reads:  what the code declares, and what is stored.
Writes: groups, manifests and their states: only what differs, and only what the code states.
Next:   the manager, when the alarms come.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from chainsched.conf import get_config
from chainsched.domain import graph
from chainsched.domain.declarations import Declaration, merge_groups
from chainsched.domain.states import RunCondition, ScheduleType
from chainsched.exceptions import DeclarationError
from chainsched.flow.arm import arm
from chainsched.flow.declare import Schedules
from chainsched.flow.transact import transact
from chainsched.models import Loop, Manifest, ManifestGroup, ManifestState, bulk
from chainsched.models.loop import GRAPH

logger = logging.getLogger(__name__)

CHUNK = 1000
# A change of these begins the schedule anew.
SCHEDULE_COLUMNS = frozenset(
    {"schedule_type", "cron_expression", "interval_seconds", "once_at", "timezone", "jitter_seconds", "exclusions"}
)


@dataclass(frozen=True, slots=True)
class Seeded:
    """What seeding wrote, by external id."""

    created: Sequence[str] = ()
    changed: Sequence[str] = ()
    unchanged: int = 0


def seed(schedules: Schedules, *, now: datetime) -> Seeded:
    """Bring the rows in line with the declarations, in one transaction: all of it or, on any problem, nothing.

    Running it again writes nothing. The lock on the graph makes processes that start together take turns.
    """
    if schedules.is_empty:
        return Seeded()
    with transact():
        Loop.objects.hold(GRAPH, now=now)
        declarations = _check_unique(schedules.expand())
        stored = _load_stored(declarations)
        rows = _plan(declarations, stored)
        created = [row for row in rows if row["external_id"] not in stored]
        changed = _differences(rows, stored)
        created_ids = _create(created)
        changed_ids = [stored[external_id]["id"] for external_id in changed]
        _update(changed, stored)
        _look_at_parents(created_ids, _reparented(changed, stored))
        arm(created_ids, now=now)
        _rearm(changed, stored, now=now)
    seeded = Seeded(
        created=[row["external_id"] for row in created],
        changed=sorted(changed),
        unchanged=len(rows) - len(created) - len(changed_ids),
    )
    logger.info(
        "Seeded: %d created, %d changed, %d unchanged.", len(seeded.created), len(seeded.changed), seeded.unchanged
    )
    return seeded


def _check_unique(declarations: Sequence[Declaration]) -> dict[str, Declaration]:
    found: dict[str, Declaration] = {}
    for declaration in declarations:
        if declaration.external_id in found:
            raise DeclarationError(
                f"Manifest {declaration.external_id!r} is declared twice. External ids are unique; rename one.",
                external_id=declaration.external_id,
            )
        found[declaration.external_id] = declaration
    return found


def _load_stored(declarations: Mapping[str, Declaration]) -> dict[str, dict[str, Any]]:
    """The rows of what is declared and of the parents it names, by external id."""
    parents = {found.depends_on for found in declarations.values() if found.depends_on}
    wanted = sorted({*declarations, *parents})
    return {
        row["external_id"]: dict(row)
        for chunk in _chunks(wanted)
        for row in Manifest.objects.filter(external_id__in=chunk).values()
    }


def _plan(declarations: Mapping[str, Declaration], stored: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows as they should be, parents first; parents are named by external id until they have a row."""
    parents = {external_id: found.depends_on for external_id, found in declarations.items()}
    for child, parent in parents.items():
        if parent is not None and parent not in declarations and parent not in stored:
            raise DeclarationError(
                f"Manifest {child!r} depends on {parent!r}, which is neither declared nor stored. "
                "Declare the parent, or correct the name.",
                external_id=child,
            )
    order = [name for name in graph.check_manifests(parents) if name in declarations]
    graph.check_groups(_group_edges(declarations, stored))
    known = {external_id: row["depth"] for external_id, row in stored.items() if external_id not in declarations}
    depths = graph.depths(order, parents=parents, known=known, limit=get_config().max_job_depth)
    groups = _seed_groups(merge_groups(declarations.values()))
    return [
        _row(declarations[name], depth=depths[name], group_id=groups[declarations[name].group.name]) for name in order
    ]


def _group_edges(
    declarations: Mapping[str, Declaration], stored: Mapping[str, Mapping[str, Any]]
) -> Iterable[tuple[str, str]]:
    stored_groups = dict(ManifestGroup.objects.values_list("id", "name"))
    for found in declarations.values():
        if found.depends_on is None:
            continue
        if found.depends_on in declarations:
            yield declarations[found.depends_on].group.name, found.group.name
        else:
            yield stored_groups[stored[found.depends_on]["group_id"]], found.group.name


def _row(found: Declaration, *, depth: int, group_id: int) -> dict[str, Any]:
    return {
        "external_id": found.external_id,
        "workflow": found.workflow,
        "input": found.input,
        "group_id": group_id,
        "depends_on": found.depends_on,
        "depth": depth,
        "owner": get_config().owner,
        "batch": found.batch,
        "is_declared": True,
        "retired_at": None,
        **found.stated,
    }


def _seed_groups(stated: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """Create missing groups, write what is stated and differs, and return the ids by name."""
    existing = {row["name"]: row for chunk in _chunks(sorted(stated)) for row in _groups_named(chunk)}
    missing = [name for name in sorted(stated) if name not in existing]
    for chunk in _chunks(missing):
        bulk.insert(ManifestGroup, [{"name": name} for name in chunk], skip_conflicts=True)
        existing |= {row["name"]: row for row in _groups_named(chunk)}
    for name, columns in stated.items():
        differing = {column: value for column, value in columns.items() if existing[name][column] != value}
        if differing:
            ManifestGroup.objects.filter(name=name).update(**differing)
    return {name: row["id"] for name, row in existing.items()}


def _groups_named(names: Sequence[str]) -> Iterable[dict[str, Any]]:
    return [dict(row) for row in ManifestGroup.objects.filter(name__in=names).values()]


def _create(rows: Sequence[dict[str, Any]]) -> list[int]:
    """Insert manifests level by level, so that parents have ids before their dependents need them."""
    levels: dict[tuple[int, frozenset[str]], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        levels[(row["depth"], frozenset(row))].append(row)
    created: list[int] = []
    for (depth, _), level in sorted(levels.items(), key=lambda entry: entry[0][0]):
        parent_ids = _ids_of({row["depends_on"] for row in level}) if depth else {}
        for chunk in _chunks(level):
            named = [_with_ids(row, parent_ids) for row in chunk]
            created += [written["id"] for written in bulk.insert(Manifest, named)]
    for ids in _chunks(created):
        bulk.insert(ManifestState, [{"manifest": manifest_id} for manifest_id in ids], returning=("manifest",))
    return created


def _with_ids(row: Mapping[str, Any], parent_ids: Mapping[str, int]) -> dict[str, Any]:
    """A row with its parent's and its group's ids under the names of the fields, columns in one order."""
    named = {key: row[key] for key in sorted(row) if key not in ("depends_on", "group_id")}
    parent = row["depends_on"]
    return named | {"group": row["group_id"], "depends_on": None if parent is None else parent_ids[parent]}


def _ids_of(external_ids: set[str]) -> dict[str, int]:
    wanted = sorted(external_id for external_id in external_ids if external_id is not None)
    return {
        external_id: manifest_id
        for chunk in _chunks(wanted)
        for external_id, manifest_id in Manifest.objects.filter(external_id__in=chunk).values_list("external_id", "id")
    }


def _differences(rows: Sequence[dict[str, Any]], stored: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """For each stored manifest that is declared otherwise, the columns that change."""
    names = {row["id"]: external_id for external_id, row in stored.items()}
    changed = {}
    for row in rows:
        if row["external_id"] in stored:
            old = dict(stored[row["external_id"]])
            old["depends_on"] = names.get(old.pop("depends_on_id"))
            differing = {column: value for column, value in row.items() if old[column] != value}
            if differing:
                changed[row["external_id"]] = differing
    return changed


def _update(changed: Mapping[str, Mapping[str, Any]], stored: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the changes, rows that change the same columns together."""
    if not changed:
        return
    ManifestState.objects.lock([stored[external_id]["id"] for external_id in changed])
    parent_ids = _ids_of({columns["depends_on"] for columns in changed.values() if "depends_on" in columns})
    by_columns: dict[frozenset[str], list[dict[str, Any]]] = defaultdict(list)
    for external_id, columns in changed.items():
        row = {"id": stored[external_id]["id"]} | {column: columns[column] for column in sorted(columns)}
        if "group_id" in row:
            row["group"] = row.pop("group_id")
        if row.get("depends_on") is not None:
            row["depends_on"] = parent_ids[columns["depends_on"]]
        by_columns[frozenset(row)].append(row)
    for rows in by_columns.values():
        for chunk in _chunks(rows):
            bulk.update(Manifest, chunk)


def _reparented(changed: Mapping[str, Mapping[str, Any]], stored: Mapping[str, Mapping[str, Any]]) -> list[int]:
    return [stored[external_id]["id"] for external_id, columns in changed.items() if "depends_on" in columns]


def _look_at_parents(created: Sequence[int], reparented: Sequence[int]) -> None:
    """Let a dependent that is new, or has a new parent, be due if that parent succeeded after its own last success.

    Only here are times compared; from then on executions are counted.
    """
    rows = []
    for chunk in _chunks([*created, *reparented]):
        rows += [_first_numbers(row) for row in _with_parents(chunk)]
    for chunk in _chunks(rows):
        bulk.update(ManifestState, chunk, key="manifest")


def _with_parents(manifest_ids: Sequence[int]) -> Iterable[dict[str, Any]]:
    dependents = Manifest.objects.filter(
        id__in=manifest_ids, schedule_type=ScheduleType.DEPENDENT, depends_on__isnull=False
    )
    parent_ids = list(dependents.values_list("depends_on_id", flat=True))
    ManifestState.objects.lock(parent_ids)
    columns = (
        "id",
        "run_condition",
        "state__last_successful_run",
        "depends_on__state__last_successful_run",
        "depends_on__state__succeeded_execution",
        "depends_on__state__dead_lettered_execution",
        "depends_on__state__finished_execution",
    )
    return [dict(row) for row in dependents.values(*columns)]


def _first_numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    newest = {
        RunCondition.SUCCESS: row["depends_on__state__succeeded_execution"],
        RunCondition.FAILURE: row["depends_on__state__dead_lettered_execution"],
        RunCondition.COMPLETION: row["depends_on__state__finished_execution"],
    }[RunCondition(row["run_condition"])]
    own, parents = row["state__last_successful_run"], row["depends_on__state__last_successful_run"]
    is_behind = own is None or (parents is not None and parents > own)
    return {"manifest": row["id"], "due_execution": newest, "covered_execution": 0 if is_behind else newest}


def _rearm(changed: Mapping[str, Mapping[str, Any]], stored: Mapping[str, Mapping[str, Any]], *, now: datetime) -> None:
    """A changed schedule begins now and makes up for nothing; other changes leave a running wait as it is."""
    ids = {external_id: stored[external_id]["id"] for external_id in changed}
    fresh = [ids[external_id] for external_id, columns in changed.items() if SCHEDULE_COLUMNS & columns.keys()]
    others = [
        ids[external_id]
        for external_id, columns in changed.items()
        if not SCHEDULE_COLUMNS & columns.keys() and {"is_enabled", "depends_on", "retired_at"} & columns.keys()
    ]
    for manifest_ids in _chunks(fresh):
        arm(manifest_ids, now=now, is_fresh=True)
    for manifest_ids in _chunks(others):
        arm(manifest_ids, now=now, is_fresh=True)


def _chunks(items: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (items[start : start + CHUNK] for start in range(0, len(items), CHUNK))
