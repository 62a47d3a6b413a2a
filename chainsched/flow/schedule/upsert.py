"""Part of seed: write the groups and manifests of a plan, set by set.

Reads:  the plan, and the ids behind the names in it.
Writes: ManifestGroup and Manifest rows, the states of new manifests, and the workflow of rows that wait.
Next:   set_parent_marks compares dependents with their parents, arm sets the alarms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from chainsched.db import bulk
from chainsched.db.chunks import chunks
from chainsched.db.id_in import id_in
from chainsched.exceptions import ChainschedError
from chainsched.flow.run.enqueue import rerank
from chainsched.flow.schedule.depth import children_of, refresh_depths
from chainsched.flow.schedule.edges import Edge, write_edges
from chainsched.flow.schedule.plan import Plan
from chainsched.models import Manifest, ManifestGroup, ManifestState, WorkQueue

# A change of one of these columns gives a row that waits another place.
RANKING = frozenset({"priority", "group", "schedule_type", "queue", "workflow"})
# The same of a group; with another limit all rows of it are in line again.
OF_GROUP = frozenset({"priority", "queue", "max_active_jobs"})
# The values of a new group that the code does not state.
GROUP_DEFAULTS = {"max_active_jobs": None, "priority": 0, "is_enabled": True, "queue": ""}


class ConcurrentChange(ChainschedError):
    """Another process wrote one of the manifests or groups since they were read; the caller plans again."""


def hold_groups(made: Plan) -> None:
    """Lock the groups that get new members, before any state: a concurrent enable or disable must see the members.

    One statement of one kind, so that concurrent writers cannot deadlock.
    """
    names = sorted(joined_groups(made) | made.changed_groups.keys())
    if made.changed_groups:
        ManifestGroup.objects.lock(names)
    else:
        ManifestGroup.objects.join(names)


def joined_groups(made: Plan) -> set[str]:
    """The groups that get members they did not have before."""
    joined = {row["group"] for row in made.created}
    return joined | {columns["group"].new for columns in made.changed.values() if "group" in columns}


def write_groups(made: Plan) -> dict[str, int]:
    """Create missing groups, write stated columns that differ, and return the ids of the groups that get members.

    Rows are written in the order of their names, so that concurrent writers cannot deadlock.
    """
    for part in chunks(sorted(made.new_groups)):
        rows = [{"name": name, **GROUP_DEFAULTS, **made.new_groups[name]} for name in part]
        bulk.insert(ManifestGroup, rows, skip_conflicts=True)
    for name, changes in sorted(made.changed_groups.items()):
        ManifestGroup.objects.filter(name=name).update(**{column: change.new for column, change in changes.items()})
    return {
        name: id_
        for part in chunks(sorted(joined_groups(made)))
        for name, id_ in ManifestGroup.objects.filter(name__in=part).values_list("name", "id")
    }


def create_manifests(rows: Sequence[dict[str, Any]], group_ids: Mapping[str, int]) -> list[int]:
    """Insert manifests level by level, so that parents have ids before their dependents need them."""
    columns = {column: _default_of(column) for row in rows for column in row if column != "parents"}
    levels: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in sorted(rows, key=itemgetter("external_id")):
        levels[row["depth"]].append(columns | row)
    created: list[int] = []
    for depth, level in sorted(levels.items()):
        parent_ids = _ids_of({row["depends_on"] for row in level}) if depth else {}
        for part in chunks(level):
            named = [_numbered(row, group_ids, parent_ids) for row in part]
            written = bulk.insert(Manifest, named, skip_conflicts=True)
            if len(written) < len(named):
                raise ConcurrentChange("a manifest of the same external id appeared")
            created += [row["id"] for row in written]
    for ids in chunks(created):
        bulk.insert(ManifestState, [{"manifest": id_} for id_ in ids], returning=("manifest",))
    return created


def _default_of(column: str) -> Any:
    field: Any = Manifest._meta.get_field(column)
    return field.get_default()


def _numbered(row: Mapping[str, Any], group_ids: Mapping[str, int], parent_ids: Mapping[str, int]) -> dict[str, Any]:
    """The row with ids in place of names; the parents of a join are edges, and no column."""
    numbered = {column: value for column, value in row.items() if column != "parents"}
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


def link(made: Plan) -> None:
    """Write the declared edges of the manifests in a plan, and all that follows from edges; then depths."""
    names = made.edged
    ids = _ids_of({*names, *(parent for name in names for parent in made.parents[name])})
    columns = ("id", "run_condition", "fan_in")
    known = {
        row[0]: row[1:]
        for part in chunks([ids[name] for name in names])
        for row in Manifest.objects.filter(id_in(id=part)).values_list(*columns)
    }
    wanted = {}
    for name in names:
        condition, fan_in = known[ids[name]]
        edge = Edge(condition, is_gate=bool(fan_in), is_derived=False)
        wanted[ids[name]] = {ids[parent]: edge for parent in made.parents[name]}
    write_edges(wanted)
    moved = [made.stored[name]["id"] for name, columns in made.changed.items() if "depth" in columns]
    refresh_depths(children_of(moved))


def update_manifests(made: Plan, group_ids: Mapping[str, int]) -> None:
    """Write the changes, rows that change the same columns together."""
    parent_ids = _ids_of(made.changed[name]["depends_on"].new for name in made.reparented)
    alike: dict[frozenset[str], list[dict[str, Any]]] = defaultdict(list)
    for external_id, columns in made.changed.items():
        new = {column: change.new for column, change in columns.items()}
        row = {"id": made.stored[external_id]["id"], **_numbered(new, group_ids, parent_ids)}
        if len(row) > 1:
            alike[frozenset(row)].append(row)
    for rows in alike.values():
        for part in chunks(rows):
            bulk.update(Manifest, part)
    _update_waiting_rows(made)


def _update_waiting_rows(made: Plan) -> None:
    """Give queue rows that wait the workflow, group and rank that their manifests have now.

    Otherwise no worker could run a row with a renamed workflow, and an edited priority would take effect one run late.
    """
    renamed = {
        made.stored[name]["id"]: columns["workflow"].new
        for name, columns in made.changed.items()
        if "workflow" in columns
    }
    WorkQueue.objects.rename_workflow(renamed)
    # A new workflow gets the input that was declared with it; with the old input it could only fail.
    inputs = {
        made.stored[name]["id"]: (columns["input"].old, columns["input"].new)
        for name, columns in made.changed.items()
        if {"workflow", "input"} <= columns.keys()
    }
    WorkQueue.objects.replace_inputs(inputs)
    moved = [name for name, columns in made.changed.items() if RANKING & columns.keys()]
    groups = [name for name, columns in made.changed_groups.items() if OF_GROUP & columns.keys()]
    members = Manifest.objects.filter(group__name__in=groups).values_list("id", flat=True)
    rerank(sorted({*(made.stored[name]["id"] for name in moved), *members}))
