"""The sections of the page of a row, as plain values; a template draws each kind.

Cells and facts are texts, which the template escapes, or links and badges made by ``display``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Fact:
    """A value with its name."""

    name: str
    value: Any
    help: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts that belong together; those that are rarely needed are collapsed."""

    title: str
    facts: Sequence[Fact]
    is_collapsed: bool = False
    kind: str = "facts"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of other tables that belong to this row."""

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
    """A row in a tree, and its depth."""

    words: Any
    depth: int
    is_here: bool = False


@dataclass(frozen=True, slots=True)
class Tree:
    """Rows with children below their parents; a note gives the number of rows that are not shown."""

    title: str
    nodes: Sequence[Node]
    note: str = ""
    is_collapsed: bool = False
    kind: str = "tree"


@dataclass(frozen=True, slots=True)
class Shape:
    """A node of a picture: its box, its lines of text, its full text, and its link."""

    box: Any
    lines: Sequence[tuple[str, str]]
    words: str
    css_class: str
    url: str = ""
    is_here: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """Nodes and edges, also as a table. Without a drawing there is only the table, and ``problem`` gives the reason."""

    title: str
    summary: str
    table: Table
    width: int = 0
    height: int = 0
    shapes: Sequence[Shape] = ()
    curves: Sequence[str] = ()
    legend: Sequence[Any] = ()
    notes: Sequence[Any] = ()
    problem: str = ""
    kind: str = "picture"


@dataclass(frozen=True, slots=True)
class Tick:
    """A position on an axis, and its label."""

    at: str
    words: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A run in a chart: the wait at the bottom, the run on it, the mark of its outcome on top."""

    left: str
    middle: str
    wait_top: str
    wait_height: str
    run_top: str
    run_height: str
    mark_at: str
    mark: str
    words: str
    css_class: str
    url: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars over a common axis, also as a table."""

    title: str
    summary: str
    table: Table
    width: int
    height: int
    bars: Sequence[Bar]
    ticks: Sequence[Tick]
    labels: Sequence[Tick]
    left: int
    right: int
    bar_width: int
    legend: Sequence[Any] = ()
    kind: str = "chart"


Section = Facts | Table | Passage | Tree | Picture | Chart
