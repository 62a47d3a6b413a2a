"""The dependency graph: cycles of manifests and of groups, and depth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from graphlib import CycleError as FoundCycle
from graphlib import TopologicalSorter

from chainsched.exceptions import CycleError, LimitExceeded

Parents = Mapping[str, str | None]


def check_manifests(parents: Parents) -> list[str]:
    """The manifests with every parent before its dependents; raises CycleError naming the members of a cycle."""
    sorter = TopologicalSorter({child: [parent] if parent else [] for child, parent in parents.items()})
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
    """The number of ancestors of each manifest; ``order`` has parents first, ``known`` holds the stored depths.

    Raises LimitExceeded for a manifest that is too deep.
    """
    found: dict[str, int] = {}
    for child in order:
        parent = parents.get(child)
        depth = 0 if parent is None else found.get(parent, known.get(parent, 0)) + 1
        if depth > limit:
            raise too_deep(child, depth=depth, limit=limit)
        found[child] = depth
    return found


def depths_and_cycles(parents: Mapping[int, int | None]) -> tuple[dict[int, int], list[list[int]]]:
    """The depth of every manifest by its id, and the cycles, which only SQL by hand makes; members have no depth."""
    depths: dict[int, int] = {}
    cycles: list[list[int]] = []
    in_cycles: set[int] = set()
    for start in parents:
        path: list[int] = []
        node: int | None = start
        while node is not None and node not in depths and node not in in_cycles and node not in path:
            path.append(node)
            node = parents.get(node)
        if node is not None and node in path:
            cycle = path[path.index(node) :]
            cycles.append(sorted(cycle))
            in_cycles.update(path)
        elif node in in_cycles:
            in_cycles.update(path)
        else:
            above = depths[node] if node is not None else -1
            depths |= {step: above + number for number, step in enumerate(reversed(path), start=1)}
    return depths, cycles


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
