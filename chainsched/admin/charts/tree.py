"""The lines of a tree of executions: children below parents, similar executions as one line. Reads no rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

# In a tree with too many lines, this many leaves with the same parent, workflow and state are shown by name.
SHOWN_OF_ALIKE = 3


class Leaf(NamedTuple):
    """An execution in a tree."""

    pk: int
    parent: int | None
    name: str
    workflow: str
    state: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the tree: an execution, or the number of further ones that are similar to ``run``."""

    run: Leaf
    depth: int
    more: int = 0


def arrange(runs: Sequence[Leaf], *, room: int, kept: Collection[int] = ()) -> list[Line]:
    """The executions with children below their parents, in at most ``room`` lines; ``kept`` are never left out.

    An execution without a parent among these stands at the top.
    """
    below = _below(runs)
    is_large = len(runs) > room
    lines = list(_walk(below, kept=kept, is_large=is_large))
    if len(lines) <= room:
        return lines
    cut = [line for line in lines[:room] if line.run.pk not in kept]
    needed = [line for line in lines if line.run.pk in kept and not line.more]
    chosen = {id(line) for line in (*needed, *cut[: max(room - len(needed), 0)])}
    return [line for line in lines if id(line) in chosen]


def count_shown(lines: Iterable[Line]) -> int:
    """How many executions the lines stand for."""
    return sum(line.more or 1 for line in lines)


def _below(runs: Sequence[Leaf]) -> dict[int | None, list[Leaf]]:
    known = {run.pk for run in runs}
    below: dict[int | None, list[Leaf]] = defaultdict(list)
    for run in runs:
        parent = run.parent if run.parent in known and run.parent != run.pk else None
        below[parent].append(run)
    return below


def _walk(below: Mapping[int | None, list[Leaf]], *, kept: Collection[int], is_large: bool) -> Iterator[Line]:
    waiting = [Line(run, 0) for run in reversed(below.get(None, []))]
    while waiting:
        line = waiting.pop()
        yield line
        if line.more:
            continue
        children = below.get(line.run.pk, [])
        found = _collapsed(children, below, kept) if is_large else [(child, 0) for child in children]
        waiting += [Line(child, line.depth + 1, more) for child, more in reversed(found)]


def _collapsed(
    children: Sequence[Leaf], below: Mapping[int | None, list[Leaf]], kept: Collection[int]
) -> list[tuple[Leaf, int]]:
    """The children; of many similar leaves the first few, and the number of the rest."""
    alike: dict[tuple[str, str], list[Leaf]] = defaultdict(list)
    for child in children:
        if child.pk not in below and child.pk not in kept:
            alike[child.workflow, child.state].append(child)
    # A line for the rest saves space only if it stands for two or more.
    hidden = {run.pk for runs in alike.values() if len(runs) > SHOWN_OF_ALIKE + 1 for run in runs[SHOWN_OF_ALIKE:]}
    found = [(child, 0) for child in children if child.pk not in hidden]
    found += [(runs[-1], len(runs) - SHOWN_OF_ALIKE) for runs in alike.values() if len(runs) > SHOWN_OF_ALIKE + 1]
    return found
