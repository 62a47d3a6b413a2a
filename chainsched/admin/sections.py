"""What the page of a row is made of, as plain values; a template draws each kind.

Cells and facts are texts, which the template escapes, or links and badges made by ``display``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing worth knowing, under its name."""

    name: str
    value: Any
    help: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts that belong together; those that are rarely needed are folded away."""

    title: str
    facts: Sequence[Fact]
    is_folded: bool = False
    kind: str = "facts"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of other tables that have to do with this one."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""
    if_empty: str = "None."
    kind: str = "table"


@dataclass(frozen=True, slots=True)
class Passage:
    """A long text: a document, a traceback. ``left_out`` is how many characters are not shown."""

    title: str
    text: str
    left_out: int = 0
    kind: str = "passage"


@dataclass(frozen=True, slots=True)
class Node:
    """A row in a tree, and how deep it stands."""

    words: Any
    depth: int
    is_here: bool = False


@dataclass(frozen=True, slots=True)
class Tree:
    """Rows below each other; a note says how many more there are."""

    title: str
    nodes: Sequence[Node]
    note: str = ""
    is_folded: bool = False
    kind: str = "tree"


Section = Facts | Table | Passage | Tree
