"""Part of seed: find the changes that seeding would make. Reads only, so that a command can show them first.

Reads:  declarations, and the rows of the same names.
Writes: nothing.
Next:   seed applies the plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from django.db.models import F

from chainsched.conf import get_config
from chainsched.db.chunks import chunks
from chainsched.domain import graph
from chainsched.domain.declarations import Declaration, is_storable, merge_groups
from chainsched.domain.due import OpenItem
from chainsched.domain.validation import find_problems, raise_all
from chainsched.exceptions import DeclarationError
from chainsched.flow.schedule.batches import Expanded
from chainsched.flow.schedule.declare import Schedules
from chainsched.flow.schedule.group_edges import find_group_edges
from chainsched.flow.schedule.queues import warn_of_untaken
from chainsched.models import Dependency, Manifest, ManifestGroup
from chainsched.models.manifest_facts import load_open_items
from chainsched.registry import registry

UNFINISHED = (OpenItem.QUEUED, OpenItem.PENDING, OpenItem.RUNNING)
# A change of one of these columns makes a new schedule: a manifest that is done may run again.
SCHEDULE_COLUMNS = frozenset({"schedule_type", "cron_expression", "interval_seconds", "once_at", "is_one_time"})
# After a change of one of these columns the dependent is compared with its parent again.
LINK_COLUMNS = frozenset({"depends_on", "parents", "schedule_type", "run_condition", "is_join", "fan_in"})


class Change(NamedTuple):
    """One column before and after."""

    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class Origin:
    """The owner that rows are written for; rows that its code declares are the ones that its seeding may retire."""

    owner: str
    is_declared: bool

    def may_write(self, row: Mapping[str, Any]) -> bool:
        """Whether this origin may write a stored manifest. Code may take over manifests that were made at run time."""
        return not row["is_declared"] or (self.is_declared and row["owner"] == self.owner)


@dataclass(frozen=True, slots=True)
class Plan:
    """The difference between declarations and stored rows, by external id and by group name."""

    origin: Origin
    created: Sequence[dict[str, Any]] = ()
    changed: Mapping[str, Mapping[str, Change]] = field(default_factory=dict)
    retired: Sequence[str] = ()
    new_groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    changed_groups: Mapping[str, Mapping[str, Change]] = field(default_factory=dict)
    unchanged: int = 0
    warnings: Sequence[str] = ()
    stored: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # The declared parents of each manifest.
    parents: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not (self.created or self.changed or self.retired or self.new_groups or self.changed_groups)

    @property
    def revived(self) -> list[str]:
        """The manifests that were retired and are declared again."""
        return [external_id for external_id, columns in self.changed.items() if "retired_at" in columns]

    @property
    def edged(self) -> list[str]:
        """The manifests with declared edges that come or go: new dependents, and those with another link."""
        created = [row["external_id"] for row in self.created if row["depends_on"] or row["parents"]]
        return [*created, *self.relinked]

    @property
    def has_edges_to_write(self) -> bool:
        """Whether a declared edge comes, goes or changes, which only the holder of the lock on the graph may write."""
        return any(self.parents[name] or (name in self.stored and parents_in(self.stored[name])) for name in self.edged)

    @property
    def reparented(self) -> list[str]:
        return [external_id for external_id, columns in self.changed.items() if "depends_on" in columns]

    @property
    def first_linked(self) -> list[str]:
        """The manifests with a new parent, and those that were no dependents of their parent before.

        A one-time child that was none before, or that is done, waits for a later outcome of its parent as a new one.
        """
        first_link = {"depends_on", "parents", "schedule_type", "is_join"}
        return [
            external_id
            for external_id, columns in self.changed.items()
            if (first_link & columns.keys() or self._begins_one_time(external_id)) and not self._stays_join(external_id)
        ]

    def _begins_one_time(self, external_id: str) -> bool:
        columns = self.changed[external_id]
        is_one_time = (
            columns["is_one_time"].new if "is_one_time" in columns else self.stored[external_id]["is_one_time"]
        )
        return bool(is_one_time) and bool({"is_one_time", "done_at"} & columns.keys())

    def _stays_join(self, external_id: str) -> bool:
        """Whether a stored join stays one: the item that it is due for in its runs stays, regardless of its edges."""
        return bool(self.stored[external_id]["is_join"]) and "is_join" not in self.changed[external_id]

    @property
    def relinked(self) -> list[str]:
        """The manifests that have another parent, or wait for another outcome of it."""
        return [external_id for external_id, columns in self.changed.items() if LINK_COLUMNS & columns.keys()]


def plan(schedules: Schedules) -> Plan:
    """The changes that seeding these declarations would make now; raises the problems that would stop it."""
    return plan_expanded(schedules.expand_batches())


def plan_expanded(expanded: Expanded) -> Plan:
    """The same for declarations with batches that are expanded already."""
    made = plan_rows(expanded.declarations, origin=Origin(get_config().owner, is_declared=True))
    retired, warnings = _find_retired(expanded, made.origin)
    return _with_retired(made, retired, warnings)


def plan_rows(found: Sequence[Declaration], *, origin: Origin) -> Plan:
    """The changes that upserting these declarations would make; nothing is retired. Raises all problems at once."""
    declarations = {declaration.external_id: declaration for declaration in found}
    stored = _load_stored(declarations)
    _check(found, declarations, stored, origin)
    rows = _wanted_rows(declarations, stored, origin)
    changed = {row["external_id"]: columns for row in rows if (columns := _changes(row, stored))}
    created = [row for row in rows if row["external_id"] not in stored]
    groups = merge_groups(declarations.values())
    existing = {row["name"]: row for names in chunks(sorted(groups)) for row in _groups_named(names)}
    new_groups = {name: stated for name, stated in groups.items() if name not in existing}
    changed_groups = _changed_groups(groups, existing)
    return Plan(
        origin=origin,
        created=created,
        changed=changed,
        new_groups=new_groups,
        changed_groups=changed_groups,
        unchanged=len(rows) - len(created) - len(changed),
        warnings=warn_of_untaken(_queues_named(created, changed, new_groups, changed_groups)),
        stored=stored,
        parents={name: found.parents for name, found in declarations.items()},
    )


def _queues_named(
    created: Sequence[Mapping[str, Any]],
    changed: Mapping[str, Mapping[str, Change]],
    new_groups: Mapping[str, Mapping[str, Any]],
    changed_groups: Mapping[str, Mapping[str, Change]],
) -> Iterator[tuple[str, str]]:
    """The queues that new and changed rows name, by themselves or by their workflows, each with the name of the row."""
    for row in created:
        yield row["external_id"], row.get("queue") or registry.queue_of(row["workflow"])
    for name, stated in new_groups.items():
        yield f"group {name}", stated.get("queue", "")
    for name, columns in (*changed.items(), *changed_groups.items()):
        if "queue" in columns:
            yield name, columns["queue"].new


def _load_stored(declarations: Mapping[str, Declaration]) -> dict[str, dict[str, Any]]:
    """The rows of the declared manifests and of all their ancestors, by external id."""
    stored: dict[str, dict[str, Any]] = {}
    parents = {parent for found in declarations.values() for parent in found.parents}
    wanted = {*declarations, *filter(is_storable, parents)}
    while missing := sorted(wanted - stored.keys()):
        loaded = {row["external_id"]: row for part in chunks(missing) for row in _rows_named(part)}
        if not loaded:
            break
        stored |= loaded
        above = {parent for row in loaded.values() for parent in parents_in(row)}
        wanted = above - declarations.keys()
    return stored


def parents_in(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The parents that a row names: those of a join, or its only one."""
    if row["depends_on"]:
        return (row["depends_on"],)
    return tuple(row["parents"])


def _rows_named(external_ids: Sequence[str]) -> Iterable[dict[str, Any]]:
    rows = Manifest.objects.filter(external_id__in=external_ids)
    parents = _parents_of_joins(external_ids)
    for row in rows.values(*_own_columns(), group_name=F("group__name"), parent=F("depends_on__external_id")):
        named: dict[str, Any] = dict(row)
        yield {
            **named,
            "group": named.pop("group_name"),
            "depends_on": named.pop("parent"),
            "parents": tuple(sorted(parents.get(named["external_id"], ()))),
        }


def _parents_of_joins(external_ids: Sequence[str]) -> dict[str, list[str]]:
    """The declared parents of joins that have several; a manifest with one names it in its own row."""
    edges = Dependency.objects.explicit().filter(
        child__external_id__in=external_ids, child__is_join=True, child__fan_in=""
    )
    parents: dict[str, list[str]] = defaultdict(list)
    for child, parent in edges.values_list("child__external_id", "parent__external_id"):
        parents[child].append(parent)
    return parents


def _own_columns() -> list[str]:
    return [field.name for field in Manifest._meta.concrete_fields if field.name not in ("group", "depends_on")]


def _check(
    found: Sequence[Declaration],
    declarations: Mapping[str, Declaration],
    stored: Mapping[str, Mapping[str, Any]],
    origin: Origin,
) -> None:
    """Refuse the whole set if any declaration has a problem, and raise all problems."""
    others = {name: row for name, row in stored.items() if name not in declarations}
    problems = [*_owned_by_others(declarations, stored, origin)]
    problems += find_problems(
        found,
        limit=get_config().max_job_depth,
        stored_parents={name: parents_in(row) for name, row in others.items()},
        stored_depths={name: row["depth"] for name, row in others.items()},
        group_edges=find_group_edges(declarations, stored),
        is_known=stored.__contains__,
    )
    raise_all(problems)


def _owned_by_others(
    declarations: Mapping[str, Declaration], stored: Mapping[str, Mapping[str, Any]], origin: Origin
) -> Iterable[DeclarationError]:
    """A problem for each manifest that the code of another owner declares."""
    remedy = "Choose another id" if origin.is_declared else "Change it there, or choose another id"
    for external_id in declarations:
        row = stored.get(external_id)
        if row is not None and not origin.may_write(row):
            yield DeclarationError(
                f"Manifest {external_id!r} is declared by the code of {row['owner']!r}. {remedy}.",
                external_id=external_id,
            )


def _wanted_rows(
    declarations: Mapping[str, Declaration], stored: Mapping[str, Mapping[str, Any]], origin: Origin
) -> list[dict[str, Any]]:
    """The rows as they should be, parents first; groups and parents are named, not numbered."""
    parents = {external_id: found.parents for external_id, found in declarations.items()}
    others = {name: row for name, row in stored.items() if name not in declarations}
    above = {name: parents_in(row) for name, row in others.items()}
    order = [name for name in graph.check_manifests(above | parents) if name in declarations]
    known = {name: row["depth"] for name, row in others.items()}
    depths = graph.depths(order, parents=parents, known=known, limit=get_config().max_job_depth)
    return [_row(declarations[name], depth=depths[name], origin=origin) for name in order]


def _row(found: Declaration, *, depth: int, origin: Origin) -> dict[str, Any]:
    return {
        "external_id": found.external_id,
        "workflow": found.workflow,
        "input": found.input,
        "group": found.group.name,
        "depends_on": found.depends_on,
        "parents": found.parents if len(found.parents) > 1 else (),
        "depth": depth,
        "owner": origin.owner,
        "batch": found.batch,
        "is_declared": origin.is_declared,
        "retired_at": None,
        "is_one_time": False,
        **found.stated,
    }


def _changes(row: Mapping[str, Any], stored: Mapping[str, Mapping[str, Any]]) -> dict[str, Change]:
    old = stored.get(row["external_id"])
    if old is None:
        return {}
    changes = {column: Change(old[column], value) for column, value in row.items() if old[column] != value}
    if old["done_at"] is not None and SCHEDULE_COLUMNS & changes.keys():
        changes["done_at"] = Change(old["done_at"], None)
    return changes


def _groups_named(names: Sequence[str]) -> Iterable[dict[str, Any]]:
    return [dict(row) for row in ManifestGroup.objects.filter(name__in=names).values()]


def _changed_groups(
    groups: Mapping[str, Mapping[str, Any]], existing: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Change]]:
    changed = {
        name: {
            column: Change(existing[name][column], value)
            for column, value in stated.items()
            if existing[name][column] != value
        }
        for name, stated in groups.items()
        if name in existing
    }
    return {name: columns for name, columns in changed.items() if columns}


def _find_retired(expanded: Expanded, origin: Origin) -> tuple[list[str], list[str]]:
    """The manifests that are no longer declared and can be retired, and warnings about those that stay."""
    declared = {found.external_id for found in expanded.declarations}
    if not declared:
        return [], ["Nothing is declared, so nothing is retired."]
    ours = Manifest.objects.declared_by(origin.owner).filter(retired_at__isnull=True)
    gone = [row for row in ours.values_list("id", "external_id", "batch") if row[1] not in declared]
    busy = {
        manifest_id
        for part in chunks([row[0] for row in gone])
        for manifest_id, item in load_open_items(part).items()
        if item in UNFINISHED
    }
    warnings = [f"Batch {batch!r} {why}; its members stay." for batch, why in expanded.kept_batches.items()]
    warnings += [f"{name} is not retired yet: its run is unfinished." for id_, name, _ in gone if id_ in busy]
    retired = [name for id_, name, batch in gone if batch not in expanded.kept_batches and id_ not in busy]
    return sorted(retired), warnings


def _with_retired(made: Plan, retired: Sequence[str], warnings: Sequence[str]) -> Plan:
    rows = {row["external_id"]: row for part in chunks(retired) for row in _rows_named(part)}
    return Plan(
        origin=made.origin,
        created=made.created,
        changed=made.changed,
        retired=retired,
        new_groups=made.new_groups,
        changed_groups=made.changed_groups,
        unchanged=made.unchanged,
        warnings=[*made.warnings, *warnings],
        stored={**made.stored, **rows},
        parents=made.parents,
    )
