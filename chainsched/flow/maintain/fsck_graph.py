"""Part of fsck: the rules for the graph of manifests, and for the guard of the audit trail.

Reads:  all edges; the triggers in the database.
Writes: with ``repair`` edges, depths and joins ahead; one edge of a cycle; the triggers.
Next:   fsck reports.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime

from django.db import connections
from django.db.models import Q

from chainsched.conf import get_config
from chainsched.db import audit_guard, bulk
from chainsched.db.chunks import chunks
from chainsched.domain.graph import depths_and_cycles
from chainsched.domain.results import Finding
from chainsched.flow.run.alarm import arm
from chainsched.flow.schedule.edges import Edge, derive_again, find_wrong_members, write_edges
from chainsched.flow.schedule.near import find_wrong, refresh_near
from chainsched.flow.schedule.parent_marks import set_parent_marks
from chainsched.flow.transactions import transact
from chainsched.models import Dependency, Manifest, ManifestState, NamedLock
from chainsched.models.named_lock import GRAPH


def guard_is_present(check: str, *, now: datetime, repair: bool) -> Iterator[Finding]:
    """The triggers that refuse changes of ended executions exist."""
    connection = connections[get_config().database]
    if audit_guard.is_present(connection):
        return
    if repair:
        with transact():
            audit_guard.repair(connection)
    yield Finding(
        check, audit_guard.TABLE, "the trigger that refuses changes of ended executions is missing", is_repaired=repair
    )


def no_cycles(check: str, *, now: datetime, repair: bool) -> Iterator[Finding]:
    """No manifest depends on itself through others."""
    _, cycles = depths_and_cycles(_parents())
    members = [id_ for cycle in cycles for id_ in cycle]
    names = dict(Manifest.objects.filter(id__in=members).values_list("id", "external_id"))
    for cycle in cycles:
        newest = cycle[-1]
        if repair:
            _remove_parent(newest, now=now)
        listed = ", ".join(names[id_] for id_ in cycle)
        evidence = f"they depend on each other in a cycle; to break it, {names[newest]} has to lose its parents"
        yield Finding(check, listed, evidence, is_repaired=repair)


def _remove_parent(manifest_id: int, *, now: datetime) -> None:
    with transact():
        NamedLock.objects.hold(GRAPH, now=now)
        ManifestState.objects.lock([manifest_id])
        Manifest.objects.filter(id=manifest_id).update(depends_on=None)
        write_edges({manifest_id: {}})
        set_parent_marks([manifest_id])
        arm([manifest_id], now=now)


def depth_is_right(check: str, *, now: datetime, repair: bool) -> Iterator[Finding]:
    """The stored depth is the number of manifests above it, on the longest way up."""
    wrong = _wrong_depths()
    for part in chunks(sorted(wrong)):
        if repair:
            with transact():
                NamedLock.objects.hold(GRAPH, now=now)
                again = _wrong_depths()
                bulk.update(Manifest, [{"id": id_, "depth": again[id_][1]} for id_ in part if id_ in again])
        for name, manifest_id in Manifest.objects.filter(id__in=part).order_by("id").values_list("external_id", "id"):
            stored, right = wrong[manifest_id]
            yield Finding(check, name, f"depth {stored} is stored, by its edges it is {right}", is_repaired=repair)


def _wrong_depths() -> dict[int, tuple[int, int]]:
    """The stored and the right depth of each manifest with a wrong depth."""
    depths, _ = depths_and_cycles(_parents())
    stored = Manifest.objects.order_by("id").values_list("id", "depth")
    return {id_: (depth, depths[id_]) for id_, depth in stored if id_ in depths and depths[id_] != depth}


def _parents() -> dict[int, list[int]]:
    """The declared parents of each manifest."""
    parents: dict[int, list[int]] = {id_: [] for id_ in Manifest.objects.order_by("id").values_list("id", flat=True)}
    for child_id, parent_id in Dependency.objects.explicit().order_by("id").values_list("child_id", "parent_id"):
        parents[child_id].append(parent_id)
    return parents


def edges_are_stored(check: str, *, now: datetime, repair: bool) -> Iterator[Finding]:
    """A manifest that names its parent has the edge from it, and no other declared one."""
    wrong = _wrong_edges()
    if repair and wrong:
        with transact():
            NamedLock.objects.hold(GRAPH, now=now)
            write_edges(_wrong_edges())
    for name in Manifest.objects.filter(id__in=wrong).order_by("id").values_list("external_id", flat=True):
        yield Finding(check, name, "the edge from the parent that it names is missing or wrong", is_repaired=repair)


def _wrong_edges() -> dict[int, dict[int, Edge]]:
    """The edges that manifests with one parent, or none, should have where they differ from the stored ones.

    Edges and manifests with a value that this version does not know are left to a newer one.
    """
    rows = (
        Manifest.objects.known()
        .filter(Q(is_join=False) | ~Q(fan_in=""))
        .values_list("id", "depends_on_id", "run_condition", "fan_in")
    )
    right = {
        id_: {parent_id: Edge(condition, is_gate=bool(fan_in), is_derived=False)} if parent_id else {}
        for id_, parent_id, condition, fan_in in rows
    }
    stored: dict[int, dict[int, Edge]] = defaultdict(dict)
    edges = Dependency.objects.explicit().values_list("child_id", "parent_id", *Edge._fields)
    for child_id, parent_id, *columns in edges:
        stored[child_id][parent_id] = Edge(*columns)
    unknown = Dependency.objects.unknown_children()
    return {id_: wanted for id_, wanted in right.items() if id_ not in unknown and stored.get(id_, {}) != wanted}


def members_of_fan_ins_are_right(check: str, *, now: datetime, repair: bool) -> Iterator[Finding]:
    """A fan-in waits for the other children of its parent, or for all that ends below it."""
    wrong = find_wrong_members()
    if repair and wrong:
        with transact():
            NamedLock.objects.hold(GRAPH, now=now)
            derive_again(find_wrong_members())
    names = dict(Manifest.objects.filter(id__in=wrong).values_list("id", "external_id"))
    for join_id, (stored, right) in sorted(wrong.items()):
        evidence = f"it has {len(stored)} members, by the graph it should have {len(right)}"
        yield Finding(check, names[join_id], evidence, is_repaired=repair)


def joins_ahead_are_right(check: str, *, now: datetime, repair: bool) -> Iterator[Finding]:
    """The stored joins that a manifest leads to are those that its edges lead to."""
    wrong = find_wrong()
    if repair and wrong:
        with transact():
            NamedLock.objects.hold(GRAPH, now=now)
            refresh_near(find_wrong())
    names = dict(Manifest.objects.filter(id__in=wrong).values_list("id", "external_id"))
    for manifest_id, (stored, right) in sorted(wrong.items()):
        evidence = f"it leads to joins {sorted(stored)}, by its edges it should lead to {sorted(right)}"
        yield Finding(check, names[manifest_id], evidence, is_repaired=repair)
