"""The layout of a picture: computed by Graphviz, turned into boxes and curves for a template.

Graphviz gets numbers and sizes, never a name: only the template writes names, and it escapes them.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import graphviz

from chainsched.exceptions import LayoutUnavailable

POINTS = 72
MARGIN = 16
LAYOUT_SECONDS = 5.0
# A picture with more edges is laid out with less care: lines for curves, and an early end to the search for fewer
# crossings. So 300 nodes and 1,000 edges take a few tenths of a second; with full care, minutes.
MAX_CAREFUL_EDGES = 150
FAST_LAYOUT = {"nslimit": "0.2", "nslimit1": "0.2", "mclimit": "0.01", "searchsize": "5", "splines": "line"}

# Graphviz keeps global state, so in one process it draws one picture at a time.
_one_at_a_time = threading.Lock()


@dataclass(frozen=True, slots=True)
class Size:
    """How much room the text of a node takes, in characters and lines."""

    characters: int
    lines: int = 1


@dataclass(frozen=True, slots=True)
class Box:
    """The position of a node, in points; ``baselines`` are the positions of its lines of text."""

    number: int
    left: str
    top: str
    wide: str
    high: str
    middle: str
    baselines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Drawing:
    """Boxes and curves in points, with y growing downwards."""

    boxes: Sequence[Box]
    curves: Sequence[str]
    width: int
    height: int


def draw(sizes: Sequence[Size], edges: Sequence[tuple[int, int]]) -> Drawing:
    """Lay out boxes of these sizes and their edges; raises LayoutUnavailable if Graphviz is missing or fails."""
    return _read(lay_out(_to_dot(sizes, edges)), sizes)


def lay_out(dot: str) -> str:
    """All positions, in Graphviz' plain format: by the ``dot`` program, else by pygraphviz in this process."""
    program = shutil.which("dot")
    if program is not None:
        return _run_program(program, dot)
    try:
        import pygraphviz  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise LayoutUnavailable from error
    with _one_at_a_time:
        graph = pygraphviz.AGraph(string=dot)
        return bytes(graph.draw(format="plain", prog="dot")).decode()


def _run_program(program: str, dot: str) -> str:
    command = [program, "-Tplain"]
    try:
        done = subprocess.run(command, input=dot.encode(), capture_output=True, timeout=LAYOUT_SECONDS, check=True)  # noqa: S603
    except subprocess.TimeoutExpired as error:
        raise LayoutUnavailable(f"Laying it out took longer than {LAYOUT_SECONDS:.0f} s.") from error
    except (OSError, subprocess.CalledProcessError) as error:
        raise LayoutUnavailable(f"Graphviz' dot program failed: {error}.") from error
    return done.stdout.decode()


def _to_dot(sizes: Sequence[Size], edges: Sequence[tuple[int, int]]) -> str:
    # Graphviz ends a line where its own arrowhead would begin; here the template draws the arrowheads.
    dot = graphviz.Digraph(
        "chainsched",
        graph_attr={"rankdir": "LR", "nodesep": "0.15", **(FAST_LAYOUT if len(edges) > MAX_CAREFUL_EDGES else {})},
        node_attr={"shape": "box", "label": "", "fixedsize": "true"},
        edge_attr={"arrowhead": "none"},
    )
    for number, size in enumerate(sizes):
        width, height = 0.3 + 0.095 * size.characters, 0.25 + 0.2 * size.lines
        dot.node(f"n{number}", width=f"{width:.2f}", height=f"{height:.2f}")
    for parent, child in edges:
        dot.edge(f"n{parent}", f"n{child}")
    return str(dot.source)


def _read(plain: str, sizes: Sequence[Size]) -> Drawing:
    """Read the plain format. Graphviz' y grows upwards; used unchanged, it puts the first node on top."""
    boxes, curves = [], []
    width = height = 0.0
    for line in plain.splitlines():
        kind, *fields = line.split()
        if kind == "graph":
            width, height = float(fields[1]) * POINTS, float(fields[2]) * POINTS
        elif kind == "node":
            number = int(fields[0][1:])
            boxes.append(_box(number, [float(field) for field in fields[1:5]], lines=sizes[number].lines))
        elif kind == "edge":
            curves.append(_curve(fields))
    boxes.sort(key=lambda box: box.number)
    return Drawing(boxes, curves, round(width + 2 * MARGIN), round(height + 2 * MARGIN))


def _box(number: int, numbers: Sequence[float], *, lines: int) -> Box:
    x, y, wide, high = (value * POINTS for value in numbers)
    left, top = x - wide / 2 + MARGIN, y - high / 2 + MARGIN
    first = top + high / 2 + 4 - (lines - 1) * POINTS * 0.1
    baselines = [f"{first + at * POINTS * 0.2:.1f}" for at in range(lines)]
    return Box(number, f"{left:.1f}", f"{top:.1f}", f"{wide:.1f}", f"{high:.1f}", f"{left + wide / 2:.1f}", baselines)


def _curve(fields: Sequence[str]) -> str:
    """The path of an edge: its first point, then Bézier points in threes."""
    count = int(fields[2])
    points = list(_points(fields[3 : 3 + 2 * count]))
    return f"M {points[0]} C {' '.join(points[1:])}"


def _points(numbers: Sequence[str]) -> Iterator[str]:
    for x, y in zip(numbers[::2], numbers[1::2], strict=True):
        yield f"{float(x) * POINTS + MARGIN:.1f} {float(y) * POINTS + MARGIN:.1f}"
