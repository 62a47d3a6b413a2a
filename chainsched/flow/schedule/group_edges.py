"""Part of plan: the edges between groups that declarations can close a circle with. Reads only.

Reads:  the stored edges that lead on from the groups of declared dependents, and no others.
Writes: nothing.
Next:   plan refuses declarations that let groups depend on each other in a circle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from chainsched.db.chunks import chunks
from chainsched.db.id_in import id_in
from chainsched.domain.declarations import Declaration
from chainsched.models import Dependency, Manifest, ManifestGroup

# Each of so few pairs is looked for by itself: most often another manifest makes the same edge already.
FEW = 10
SMALL = 100

Pair = tuple[str, str]


def find_group_edges(declarations: Mapping[str, Declaration], stored: Mapping[str, Mapping[str, Any]]) -> list[Pair]:
    """The pairs of groups, the parent's and the dependent's, among which a circle would be.

    The stored graph has none, so that one goes through a declared edge that is new between its groups. Other
    manifests' edges count from there on; those that declared manifests have stored are replaced.
    """
    declared = list(_declared(declarations, stored))
    across = {(above, below) for above, below in declared if above != below}
    replaced = [stored[name]["id"] for name in declarations if name in stored]
    ids = _ids_of({name for pair in across for name in pair})
    if len(across) <= FEW:
        across = {pair for pair in across if not _is_stored(pair, ids, without=replaced)}
    # A group that is not stored yet has no edges.
    found = _leading_on({ids[below] for _, below in across if below in ids}, without=replaced)
    names = _names_of({id_ for pair in found for id_ in pair})
    return [*declared, *sorted((names[above], names[below]) for above, below in found)]


def _declared(declarations: Mapping[str, Declaration], stored: Mapping[str, Mapping[str, Any]]) -> Iterator[Pair]:
    for found in declarations.values():
        for parent in found.parents:
            if parent in declarations:
                yield declarations[parent].group.name, found.group.name
            elif parent in stored:
                yield stored[parent]["group"], found.group.name


def _is_stored(pair: Pair, ids: Mapping[str, int], *, without: Collection[int]) -> bool:
    """Whether an edge that stays leads from one group to a large one; a small one is followed sooner than asked."""
    above, below = pair
    if above not in ids or below not in ids:
        return False
    is_large = Manifest.objects.filter(group=ids[below])[: SMALL + 1].count() > SMALL
    return is_large and Dependency.objects.joins_groups(ids[above], ids[below], without=without)


def _leading_on(group_ids: Collection[int], *, without: Collection[int]) -> set[tuple[int, int]]:
    """The edges from these groups to others, from those on, and so forth."""
    found: set[tuple[int, int]] = set()
    seen: set[int] = set()
    waiting = set(group_ids)
    while waiting:
        seen |= waiting
        for part in chunks(sorted(waiting)):
            found |= set(Dependency.objects.between_groups(part, without=without))
        waiting = {below for _, below in found} - seen
    return found


def _ids_of(names: Collection[str]) -> dict[str, int]:
    return {
        name: id_
        for part in chunks(sorted(names))
        for name, id_ in ManifestGroup.objects.filter(name__in=part).values_list("name", "id")
    }


def _names_of(group_ids: Collection[int]) -> dict[int, str]:
    return {
        id_: name
        for part in chunks(sorted(group_ids))
        for id_, name in ManifestGroup.objects.filter(id_in(id=part)).values_list("id", "name")
    }
