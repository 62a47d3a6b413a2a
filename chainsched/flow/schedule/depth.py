"""Part of seed and remove: keep the stored depth of manifests right when edges of the graph change.

Reads:  the manifests below those that moved; the caller holds the lock on the graph.
Writes: their depth.
Next:   nothing; declarations are checked against it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from chainsched.conf import get_config
from chainsched.db import bulk
from chainsched.db.chunks import chunks
from chainsched.db.id_in import id_in
from chainsched.domain.graph import too_deep
from chainsched.models import Manifest


def deepen(depths: Mapping[int, int]) -> None:
    """Update the depth of all manifests below these, level by level; ``depths`` are the new depths of these."""
    while depths:
        wrong = {
            id_: depths[parent or 0] + 1
            for part in chunks(list(depths))
            for id_, parent, depth in _children(part)
            if depth != depths[parent or 0] + 1
        }
        _check(wrong)
        _write(wrong)
        depths = wrong


def make_roots(manifest_ids: Collection[int]) -> None:
    """Let manifests that lost their parent begin at depth 0, and the manifests below them follow."""
    roots = dict.fromkeys(manifest_ids, 0)
    _write(roots)
    deepen(roots)


def _children(manifest_ids: Collection[int]) -> Collection[tuple[int, int | None, int]]:
    return list(Manifest.objects.filter(id_in(depends_on=manifest_ids)).values_list("id", "depends_on_id", "depth"))


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
