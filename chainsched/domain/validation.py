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
    parents = {external_id: found.depends_on for external_id, found in declared.items()}
    problems = [*_duplicates(declarations), *_missing_parents(parents, is_known)]
    problems += _caught(lambda: merge_groups(declarations))
    problems += _caught(lambda: graph.check_groups(group_edges))
    cycles = _caught(lambda: graph.check_manifests({**stored_parents, **parents}))
    if not cycles:
        order = [name for name in graph.check_manifests({**stored_parents, **parents}) if name in declared]
        problems += _caught(lambda: graph.depths(order, parents=parents, known=stored_depths, limit=limit))
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
    for child, parent in parents.items():
        if parent is not None and parent not in parents and not is_known(parent):
            yield DeclarationError(
                f"Manifest {child!r} depends on {parent!r}, which is neither declared nor stored. "
                "Declare the parent, or correct the name.",
                external_id=child,
            )
