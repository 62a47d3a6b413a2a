"""All problems of a set of declarations, found together so that they are reported together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from chainsched.domain import graph
from chainsched.domain.declarations import Declaration, merge_groups
from chainsched.exceptions import DeclarationError, InvalidDeclarations

Edges = Iterable[tuple[str, str]]


def find_problems(
    declarations: Sequence[Declaration],
    *,
    limit: int,
    stored_parents: graph.Parents,
    stored_depths: Mapping[str, int],
    group_edges: Edges,
    is_known: Callable[[str], bool],
) -> list[DeclarationError]:
    """Duplicates, missing parents, contradicting members of a group, cycles and depth.

    The declarations are checked on top of the stored graph; ``is_known`` returns whether a parent that is not declared
    is stored.
    """
    declared = {found.external_id: found for found in declarations}
    parents = {external_id: found.parents for external_id, found in declared.items()}
    problems = [*_duplicates(declarations), *_missing_parents(parents, is_known)]
    problems += _caught(lambda: merge_groups(declarations))
    problems += _caught(lambda: graph.check_groups(group_edges))
    cycles = _caught(lambda: graph.check_manifests({**stored_parents, **parents}))
    if not cycles:
        order = [name for name in graph.check_manifests({**stored_parents, **parents}) if name in declared]
        problems += _caught(lambda: graph.depths(order, parents=parents, known=stored_depths, limit=limit))
        problems += _without_common_head(parents, {**stored_parents, **parents})
        problems += _circles_through_fan_ins(declared, {**stored_parents, **parents})
    return problems + cycles


def raise_all(problems: Sequence[DeclarationError]) -> None:
    """Raise the problems: one as itself, several as one error that lists them."""
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise InvalidDeclarations(problems)


def flatten(error: DeclarationError) -> list[DeclarationError]:
    """The problems behind an error."""
    return list(error.problems) if isinstance(error, InvalidDeclarations) else [error]


def _caught(check: Callable[[], object]) -> list[DeclarationError]:
    try:
        check()
    except DeclarationError as error:
        return flatten(error)
    return []


def _duplicates(declarations: Iterable[Declaration]) -> Iterator[DeclarationError]:
    for external_id, times in Counter(found.external_id for found in declarations).items():
        if times > 1:
            yield DeclarationError(
                f"Manifest {external_id!r} is declared {'twice' if times == 2 else f'{times} times'}. "
                "External ids are unique; rename one.",
                external_id=external_id,
            )


def _missing_parents(parents: graph.Parents, is_known: Callable[[str], bool]) -> Iterator[DeclarationError]:
    for child, above in parents.items():
        for parent in above:
            if parent not in parents and not is_known(parent):
                yield DeclarationError(
                    f"Manifest {child!r} depends on {parent!r}, which is neither declared nor stored. "
                    "Declare the parent, or correct the name.",
                    external_id=child,
                )


def _without_common_head(parents: graph.Parents, everything: graph.Parents) -> Iterator[DeclarationError]:
    """Joins of parents that no run ever reaches together: no manifest is above all of them.

    One with ancestors that are not known here is not judged.
    """
    joins = {child: above for child, above in parents.items() if len(above) > 1}
    roots = graph.roots_of(everything) if joins else {}
    for child, above in joins.items():
        heads = [roots[parent] for parent in above]
        is_known = all(head in everything for found in heads for head in found)
        if is_known and not frozenset.intersection(*heads):
            yield graph.no_common_head(child, above)


def _circles_through_fan_ins(
    declared: Mapping[str, Declaration], everything: graph.Parents
) -> Iterator[DeclarationError]:
    """Fan-ins with a sibling that runs after them, which only a join of several parents can do.

    Seeding looks at the stored siblings, and at trees, as well.
    """
    joins = [(name, above) for name, above in everything.items() if len(above) > 1]
    for found in declared.values():
        if found.stated.get("fan_in"):
            for name, above in joins:
                if found.depends_on in above and found.external_id in _ancestors(name, everything):
                    yield graph.cycle_through_fan_in(found.external_id, name)


def _ancestors(name: str, parents: graph.Parents) -> set[str]:
    found: set[str] = set()
    waiting = list(parents.get(name, ()))
    while waiting:
        above = waiting.pop()
        if above not in found:
            found.add(above)
            waiting += parents.get(above, ())
    return found
