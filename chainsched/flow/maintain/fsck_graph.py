"""Part of fsck: the rules for the graph of manifests, and for the guard of the audit trail.

Reads:  all edges; the triggers in the database.
Writes: with ``repair`` depths; one edge of a cycle; the triggers.
Next:   fsck reports.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from django.db import connections

from chainsched.conf import get_config
from chainsched.db import audit_guard, bulk
from chainsched.db.chunks import chunks
from chainsched.domain.graph import depths_and_cycles
from chainsched.domain.results import Finding
from chainsched.flow.run.alarm import arm
from chainsched.flow.schedule.parent_marks import set_parent_marks
from chainsched.flow.transactions import transact
from chainsched.models import Manifest, ManifestState, NamedLock
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
        evidence = f"they depend on each other in a cycle; to break it, {names[newest]} has to lose its parent"
        yield Finding(check, listed, evidence, is_repaired=repair)


def _remove_parent(manifest_id: int, *, now: datetime) -> None:
    with transact():
        NamedLock.objects.hold(GRAPH, now=now)
        ManifestState.objects.lock_family([manifest_id])
        Manifest.objects.filter(id=manifest_id).update(depends_on=None)
        set_parent_marks([manifest_id])
        arm([manifest_id], now=now)


def depth_is_right(check: str, *, now: datetime, repair: bool) -> Iterator[Finding]:
    """The stored depth is the number of ancestors."""
    wrong = _wrong_depths()
    for part in chunks(sorted(wrong)):
        if repair:
            with transact():
                NamedLock.objects.hold(GRAPH, now=now)
                again = _wrong_depths()
                bulk.update(Manifest, [{"id": id_, "depth": again[id_][1]} for id_ in part if id_ in again])
        for name, manifest_id in Manifest.objects.filter(id__in=part).order_by("id").values_list("external_id", "id"):
            stored, right = wrong[manifest_id]
            yield Finding(check, name, f"depth {stored} is stored, it has {right} ancestors", is_repaired=repair)


def _wrong_depths() -> dict[int, tuple[int, int]]:
    """The stored and the right depth of each manifest with a wrong depth."""
    depths, _ = depths_and_cycles(_parents())
    stored = Manifest.objects.order_by("id").values_list("id", "depth")
    return {id_: (depth, depths[id_]) for id_, depth in stored if id_ in depths and depths[id_] != depth}


def _parents() -> dict[int, int | None]:
    return dict(Manifest.objects.order_by("id").values_list("id", "depends_on_id"))
