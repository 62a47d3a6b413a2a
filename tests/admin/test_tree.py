"""Which lines a tree of executions has, by tables."""

from __future__ import annotations

import pytest

from chainsched.admin.charts.tree import Leaf, arrange, count_shown

ROOT = Leaf(1, None, "root", "w", "completed")


def leaves(number: int, *, first: int = 2, parent: int = 1, state: str = "completed") -> list[Leaf]:
    return [Leaf(first + at, parent, "leaf", "w", state) for at in range(number)]


def shown(runs: list[Leaf], *, room: int, kept: tuple[int, ...] = ()) -> list[tuple[int, int, int]]:
    return [(line.run.pk, line.depth, line.more) for line in arrange(runs, room=room, kept=kept)]


@pytest.mark.parametrize(
    ("runs", "room", "expected"),
    [
        pytest.param([ROOT, *leaves(2)], 9, [(1, 0, 0), (2, 1, 0), (3, 1, 0)], id="all of it fits"),
        pytest.param(
            [ROOT, *leaves(20)],
            9,
            [(1, 0, 0), (2, 1, 0), (3, 1, 0), (4, 1, 0), (21, 1, 17)],
            id="leaves that look alike",
        ),
        pytest.param(
            [ROOT, *leaves(20), *leaves(1, first=50, state="failed")],
            9,
            [(1, 0, 0), (2, 1, 0), (3, 1, 0), (4, 1, 0), (50, 1, 0), (21, 1, 17)],
            id="one that looks different is shown",
        ),
        pytest.param([Leaf(2, 99, "x", "w", "failed")], 9, [(2, 0, 0)], id="without its parent it stands at the top"),
        pytest.param([Leaf(2, 2, "x", "w", "failed")], 9, [(2, 0, 0)], id="one that names itself"),
    ],
)
def test_children_stand_below_their_parents(runs: list[Leaf], room: int, expected: list[tuple[int, int, int]]) -> None:
    assert shown(runs, room=room) == expected


def test_the_one_that_is_looked_at_is_never_folded_away() -> None:
    assert (15, 1, 0) in shown([ROOT, *leaves(20)], room=9, kept=(1, 15))


def test_what_does_not_fit_is_cut_but_for_what_is_looked_at() -> None:
    chain = [ROOT, *(Leaf(pk, pk - 1, "x", "w", "completed") for pk in range(2, 500))]
    lines = arrange(chain, room=100, kept=(1, 400))
    assert len(lines) == 100
    assert {1, 2, 400} <= {line.run.pk for line in lines}


def test_lines_stand_for_all_that_was_given() -> None:
    assert count_shown(arrange([ROOT, *leaves(5000)], room=200)) == 5001
