"""What a manifest has to do, and the runs it stands for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from chainsched.domain.items import NO_ITEM, Item


def test_an_item_is_read_from_the_row_it_is_stored_in():
    row = SimpleNamespace(run_id=7, tokens=[3, 4], has_tokens=True, is_again=True, id=99)
    assert Item.of(row) == Item(7, (3, 4), has_tokens=True, is_again=True)


def test_an_item_without_a_run_holds_nothing():
    assert Item(None, (), has_tokens=False, is_again=False) == NO_ITEM
    assert NO_ITEM.held == ()


def test_tokens_stay_listed_while_they_are_not_counted():
    assert Item(7, (3, 4), has_tokens=True).held == (3, 4)
    assert Item(7, (3, 4), has_tokens=False).held == ()


@pytest.mark.parametrize(
    ("first", "second", "joined"),
    [
        pytest.param(
            Item(1, (10,), has_tokens=True),
            Item(2, (20,), has_tokens=True),
            Item(2, (10, 20), has_tokens=True),
            id="it is named after the newest run",
        ),
        pytest.param(
            Item(1, (10, 11), has_tokens=True),
            Item(1, (11, 12), has_tokens=True),
            Item(1, (10, 11, 12), has_tokens=True),
            id="a token of both is held once",
        ),
        pytest.param(NO_ITEM, Item(2, (20,), has_tokens=True), Item(2, (20,), has_tokens=True), id="one without a run"),
        pytest.param(NO_ITEM, NO_ITEM, NO_ITEM, id="both without a run"),
        pytest.param(
            Item(1, (10,), has_tokens=True, is_again=True),
            Item(2, (20,), has_tokens=True),
            Item(2, (10, 20), has_tokens=True, is_again=True),
            id="it may have had a predecessor if one of them may",
        ),
    ],
)
def test_taking_over_makes_one_item_of_both_in_either_order(first, second, joined):
    assert first.joined(second, has_tokens=True) == joined
    assert second.joined(first, has_tokens=True) == joined


def test_an_item_with_no_part_lists_the_tokens_of_both_and_holds_none():
    joined = Item(1, (10,), has_tokens=True).joined(Item(2, (20,), has_tokens=True), has_tokens=False)
    assert (joined.tokens, joined.held) == ((10, 20), ())
