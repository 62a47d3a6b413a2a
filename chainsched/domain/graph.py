"""The dependency graph: cycles of manifests and of groups, and depth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from graphlib import CycleError as FoundCycle
from graphlib import TopologicalSorter
from typing import TypeVar

from chainsched.exceptions import CycleError, DeclarationError, LimitExceeded

N = TypeVar("N", bound=Hashable)

Parents = Mapping[str, Sequence[str]]


def check_manifests(parents: Parents) -> list[str]:
    """The manifests with every parent before its dependents; raises CycleError naming the members of a cycle."""
    sorter = TopologicalSorter(parents)
    try:
        return list(sorter.static_order())
    except FoundCycle as found:
        members = list(dict.fromkeys(found.args[1]))
        raise CycleError(
            f"Circular dependency among manifests: [{', '.join(members)}]. "
            "A manifest cannot depend on itself or on its own descendants.",
            members=members,
        ) from None


def check_groups(edges: Iterable[tuple[str, str]]) -> None:
    """Refuse a cycle between groups; edges inside one group do not count.

    ``edges`` are pairs of the parent's group and the dependent's.
    """
    predecessors: dict[str, set[str]] = defaultdict(set)
    for parent, child in edges:
        if parent != child:
            predecessors[child].add(parent)
    try:
        TopologicalSorter(predecessors).prepare()
    except FoundCycle as found:
        members = sorted(set(found.args[1]))
        raise CycleError(
            f"Circular dependency detected among manifest groups: [{', '.join(members)}]. "
            "Manifest groups must form a directed acyclic graph (DAG).",
            members=members,
        ) from None


def depths(order: Iterable[str], *, parents: Parents, known: Mapping[str, int], limit: int) -> dict[str, int]:
    """How many manifests are above each on the longest way; ``order`` has parents first, ``known`` stored depths.

    Raises LimitExceeded for a manifest that is too deep.
    """
    found: dict[str, int] = {}
    for child in order:
        depth = max((found.get(parent, known.get(parent, 0)) + 1 for parent in parents.get(child, ())), default=0)
        if depth > limit:
            raise too_deep(child, depth=depth, limit=limit)
        found[child] = depth
    return found


def roots_of(parents: Mapping[N, Sequence[N]]) -> dict[N, frozenset[N]]:
    """The manifests without parents that each one descends from; itself if it has none. There is no cycle."""
    roots: dict[N, frozenset[N]] = {}
    for child in TopologicalSorter(parents).static_order():
        above = [roots[parent] for parent in parents.get(child, ())]
        roots[child] = frozenset().union(*above) if above else frozenset({child})
    return roots


def no_common_head(join: str, parents: Sequence[str]) -> DeclarationError:
    """The error for a join of parents that no run ever reaches together."""
    return DeclarationError(
        f"Manifest {join!r} depends on {', '.join(map(repr, parents))}, which have no manifest above them in common: "
        "no run ever reaches all of them. Let them all descend from one manifest, which begins their runs.",
        external_id=join,
    )


def depths_and_cycles(parents: Mapping[int, Sequence[int]]) -> tuple[dict[int, int], list[list[int]]]:
    """The depth of every manifest by its id, and the cycles, which only SQL by hand makes.

    The members of a cycle, and the manifests below one, have no depth.
    """
    left = {node: [parent for parent in above if parent in parents] for node, above in parents.items()}
    cycles: list[list[int]] = []
    while True:
        sorter = TopologicalSorter(left)
        try:
            order = list(sorter.static_order())
            break
        except FoundCycle as found:
            cycle = sorted(set(found.args[1]))
            cycles.append(cycle)
            left = {node: above for node, above in left.items() if node not in cycle}
    known: dict[int, int] = {}
    for node in order:
        above = left.get(node)
        if above is not None and all(parent in known for parent in above):
            known[node] = max((known[parent] + 1 for parent in above), default=0)
    return known, cycles


def cycle_through_fan_in(join: str, member: str) -> CycleError:
    """The error for a fan-in that would wait for a manifest that comes after it."""
    return CycleError(
        f"Circular dependency among manifests: [{join}, {member}]. The fan-in {join!r} waits for {member!r}, which "
        f"runs after {join!r} itself. Name the parents of {join!r} with depends_on=[…] in place of fan_in, or let "
        f"{member!r} depend on {join!r} alone.",
        members=[join, member],
    )


def too_deep(external_id: str, *, depth: int, limit: int) -> LimitExceeded:
    """The error for a manifest that would have too many ancestors."""
    return LimitExceeded(
        f"Manifest {external_id!r} would be at depth {depth}; MAX_JOB_DEPTH allows {limit}. "
        "Let it depend on a manifest further up, or raise CHAINSCHED['MAX_JOB_DEPTH'].",
        value=depth,
        limit=limit,
        setting="MAX_JOB_DEPTH",
        external_id=external_id,
    )
