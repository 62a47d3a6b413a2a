"""Part of seed and remove: keep the stored depth of manifests right when edges of the graph change.

Reads:  the declared edges around manifests that moved; the caller holds the lock on the graph.
Writes: the depth of these manifests, and of those below them.
Next:   nothing; declarations are checked against it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from django.db.models import Max

from chainsched.conf import get_config
from chainsched.db import bulk
from chainsched.db.chunks import chunks
from chainsched.db.id_in import id_in
from chainsched.domain.graph import too_deep
from chainsched.models import Dependency, Manifest


def refresh_depths(manifest_ids: Collection[int]) -> None:
    """Give these manifests, and all below them as far as something changes, the depth that their edges call for."""
    waiting = set(manifest_ids)
    while waiting:
        wrong = {id_: depth for part in chunks(sorted(waiting)) for id_, depth in _wrong_depths(part).items()}
        _check(wrong)
        _write(wrong)
        waiting = set(children_of(wrong))


def children_of(manifest_ids: Collection[int]) -> list[int]:
    """The manifests that declared edges lead to from these."""
    return [
        child_id
        for part in chunks(sorted(manifest_ids))
        for child_id in Dependency.objects.explicit().filter(id_in(parent=part)).values_list("child_id", flat=True)
    ]


def _wrong_depths(manifest_ids: Collection[int]) -> dict[int, int]:
    """The right depth of those of these with a wrong one: one more than that of the deepest parent."""
    above = Dependency.objects.explicit().filter(id_in(child=manifest_ids)).order_by().values_list("child_id")
    right = {child_id: depth + 1 for child_id, depth in above.annotate(depth=Max("parent__depth"))}
    stored = Manifest.objects.filter(id_in(id=manifest_ids)).values_list("id", "depth")
    return {id_: right.get(id_, 0) for id_, depth in stored if depth != right.get(id_, 0)}


def _write(depths: Mapping[int, int]) -> None:
    for part in chunks(list(depths.items())):
        bulk.update(Manifest, [{"id": id_, "depth": depth} for id_, depth in part])


def _check(depths: Mapping[int, int]) -> None:
    """Refuse a move that would make descendants too deep."""
    limit = get_config().max_job_depth
    for manifest_id, depth in depths.items():
        if depth > limit:
            external_id = Manifest.objects.values_list("external_id", flat=True).get(id=manifest_id)
            raise too_deep(external_id, depth=depth, limit=limit)
