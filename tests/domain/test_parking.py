"""Which rows are parked, for which reason, and how many come into line again."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from chainsched.domain.parking import (
    KEPT,
    KEPT_IN_ALL,
    ParkedFor,
    Waiting,
    find_parkable,
    lasting_reason,
    park_until,
    places_in,
)
from chainsched.domain.routing import Pool
from tests.factories import NOW

LATER = NOW + timedelta(seconds=1)
ROW = Waiting(
    row_id=1,
    manifest_id=1,
    group_id=1,
    workflow="known",
    queue="default",
    not_before=None,
    group_limit=None,
    is_held=False,
)
ALL = [Pool(["known"])]


@pytest.mark.parametrize(
    ("not_before", "reason"), [(None, None), (NOW, None), (LATER, ParkedFor.TIME)], ids=["no time", "now", "later"]
)
def test_a_row_is_parked_until_its_time_has_come(not_before, reason):
    assert park_until(not_before, now=NOW) is reason


@pytest.mark.parametrize(
    ("columns", "pools", "reason"),
    [
        pytest.param({}, ALL, None, id="it may start"),
        pytest.param({"not_before": NOW}, ALL, None, id="its time has come"),
        pytest.param({"not_before": LATER, "is_held": True}, [], ParkedFor.TIME, id="its time comes first"),
        pytest.param({"is_held": True}, [], ParkedFor.DISABLED, id="then the obstacle"),
        pytest.param(
            {"is_held": True, "manifest_id": None}, [], None, id="a row without a manifest is not let in again"
        ),
        pytest.param({}, [], ParkedFor.NO_WORKER, id="no process at all"),
        pytest.param({"workflow": "new"}, ALL, ParkedFor.NO_WORKER, id="no process knows its workflow"),
        pytest.param({}, [Pool(["known"], ["other"])], ParkedFor.NO_WORKER, id="no process takes its queue"),
        pytest.param(
            {"workflow": "new"},
            [Pool(["known"], ["default"]), Pool(["new"], ["other"])],
            ParkedFor.NO_WORKER,
            id="one takes its queue and another knows its workflow",
        ),
        pytest.param({"queue": "a"}, [Pool(["known"], ["b"]), Pool(["known"], ["a"])], None, id="one of them takes it"),
    ],
)
def test_the_reason_of_a_row_by_itself(columns, pools, reason):
    assert lasting_reason(replace(ROW, **columns), pools=pools, now=NOW) is reason


def line(number: int, **columns: object) -> list[Waiting]:
    return [replace(ROW, row_id=index + 1, **columns) for index in range(number)]


@pytest.mark.parametrize(
    ("limit", "active", "number", "parked"),
    [
        pytest.param(None, 9, 5, [], id="no limit"),
        pytest.param(2, 1, 5, [], id="the group has room"),
        pytest.param(2, 2, 5, [3, 4, 5], id="as many as its limit stay in line"),
        pytest.param(2, 7, 2, [], id="few rows of a full group"),
        pytest.param(10 * KEPT, 10 * KEPT, KEPT + 2, [KEPT + 1, KEPT + 2], id="but no more than are needed soon"),
    ],
)
def test_of_a_full_group_some_rows_stay_in_line(limit, active, number, parked):
    found = find_parkable(line(number, group_limit=limit), pools=ALL, active={1: active}, now=NOW)
    assert found == dict.fromkeys(parked, ParkedFor.GROUP_FULL)


def test_of_many_full_groups_so_few_rows_stay_that_the_next_page_is_reached():
    rows = [replace(ROW, row_id=number, group_id=number % 50, group_limit=100) for number in range(1000)]
    found = find_parkable(rows, pools=ALL, active=dict.fromkeys(range(50), 100), now=NOW)
    assert len(rows) - len(found) == KEPT_IN_ALL


def test_rows_that_are_parked_for_themselves_keep_no_place_of_their_group():
    held = [replace(row, is_held=True) for row in line(2, group_limit=1)]
    free = replace(ROW, row_id=9, group_limit=1)
    found = find_parkable([*held, free], pools=ALL, active={1: 1}, now=NOW)
    assert found == {1: ParkedFor.DISABLED, 2: ParkedFor.DISABLED}


def test_as_many_rows_come_into_line_as_may_start():
    limits = {1: 5, 2: 5, 3: None, 4: 5}
    assert places_in(limits, active={1: 3, 2: 5, 4: 9}, page=100) == {1: 2, 3: 100}
