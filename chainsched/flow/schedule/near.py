"""Part of seed and remove: which joins each manifest leads to first. Derived from the edges.

Reads:  the edges and joins ahead of manifests with changed edges; the caller holds the lock on the graph.
Writes: Near rows, from the lowest manifests up to the next joins.
Next:   items that are opened from now on take the tokens of these joins.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from chainsched.db import bulk
from chainsched.db.chunks import chunks
from chainsched.db.id_in import id_in
from chainsched.models import Dependency, Manifest, Near
from chainsched.models.near import RUN_END

Joins = Mapping[int, set[int]]


def refresh_near(manifest_ids: Collection[int]) -> None:
    """Rewrite the joins ahead of these manifests, and of those above them as far as something changes.

    The deepest first: a plain manifest leads where its children lead. A join is where the way of those above it ends.
    """
    waiting: dict[int, set[int]] = defaultdict(set)
    _put(waiting, manifest_ids)
    while waiting:
        depth = max(waiting)
        changed = _rewrite(sorted(waiting.pop(depth)))
        _put(waiting, _plain_parents(changed), below=depth)


def find_wrong() -> dict[int, tuple[set[int], set[int]]]:
    """The manifests with wrong joins ahead: the stored ones, and the right ones by all edges."""
    children: dict[int, list[int]] = defaultdict(list)
    for parent_id, child_id in Dependency.objects.order_by().values_list("parent_id", "child_id"):
        children[parent_id].append(child_id)
    manifests = list(Manifest.objects.order_by("-depth", "id").values_list("id", "is_join"))
    joins = {id_ for id_, is_join in manifests if is_join}
    right: dict[int, set[int]] = {}
    for id_, is_join in manifests:
        steps = [{child} if child in joins else right.get(child) or {RUN_END} for child in children.get(id_, ())]
        right[id_] = set().union(*steps) or ({RUN_END} if is_join else set())
    stored: dict[int, set[int]] = defaultdict(set)
    for manifest_id, join_id in Near.objects.order_by().values_list("manifest_id", "join_id"):
        stored[manifest_id].add(join_id)
    return {id_: (stored[id_], right[id_]) for id_ in right if stored[id_] != right[id_]}


def _put(waiting: dict[int, set[int]], manifest_ids: Collection[int], *, below: int | None = None) -> None:
    for part in chunks(sorted(manifest_ids)):
        for id_, depth in Manifest.objects.filter(id_in(id=part)).values_list("id", "depth"):
            # A wrong depth, which fsck mends, must not make this go round for ever.
            waiting[depth if below is None else min(depth, below - 1)].add(id_)


def _plain_parents(manifest_ids: Sequence[int]) -> set[int]:
    """The parents of those of these that are no joins."""
    return {
        parent_id
        for part in chunks(manifest_ids)
        for parent_id in Dependency.objects.filter(id_in(child=part), child__is_join=False).values_list(
            "parent_id", flat=True
        )
    }


def _rewrite(manifest_ids: Sequence[int]) -> list[int]:
    """Write the joins ahead that differ; returns the manifests that lead elsewhere now.

    One that gets its first child may lead to the end of the run as before, so that nothing changes for those above it.
    """
    changed: list[int] = []
    for part in chunks(manifest_ids):
        right, stored = _right(part), _stored(part)
        wrong = [id_ for id_ in part if stored[id_] != right[id_]]
        Near.objects.filter(id_in(manifest=wrong)).delete()
        rows = [{"manifest": id_, "join_id": join_id} for id_ in wrong for join_id in sorted(right[id_])]
        for some in chunks(rows):
            bulk.insert(Near, some)
        changed += [id_ for id_ in wrong if (stored[id_] or {RUN_END}) != (right[id_] or {RUN_END})]
    return changed


def _stored(manifest_ids: Sequence[int]) -> Joins:
    found: dict[int, set[int]] = defaultdict(set)
    for manifest_id, join_id in Near.objects.filter(id_in(manifest=manifest_ids)).values_list("manifest_id", "join_id"):
        found[manifest_id].add(join_id)
    return found


def _right(manifest_ids: Sequence[int]) -> Joins:
    """Each child that is a join, and where the other children lead; a join without children leads to the end."""
    found: dict[int, set[int]] = defaultdict(set)
    for manifest_id, join_id in Near.objects.by_edges(manifest_ids):
        found[manifest_id].add(join_id)
    for join_id in Manifest.objects.filter(id_in(id=manifest_ids), is_join=True).values_list("id", flat=True):
        found[join_id] = found[join_id] or {RUN_END}
    return found
