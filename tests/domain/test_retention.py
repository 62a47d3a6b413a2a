"""How long history is kept: the most specific entry decides, and a tree goes as a whole."""

from datetime import UTC, datetime, timedelta

import pytest

from chainsched.domain.retention import Kept, Policy, outdated_trees
from chainsched.domain.states import ExecutionState

NOW = datetime(2026, 3, 2, 10, tzinfo=UTC)
DAY = 24 * 3600
AGES = {"*": 30 * DAY, "failed": 90 * DAY, "etl.copy": 7 * DAY, "etl.copy:failed": None}


def kept(
    *, id_=1, root=1, workflow="etl.load", state=ExecutionState.COMPLETED, days: float | None = 100, manifest=1
) -> Kept:
    ended_at = None if days is None else NOW - timedelta(days=days)
    return Kept(id_, root, manifest, workflow, state, ended_at)


@pytest.mark.parametrize(
    ("workflow", "state", "days"),
    [
        ("etl.load", ExecutionState.COMPLETED, 30),
        ("etl.load", ExecutionState.FAILED, 90),
        ("etl.copy", ExecutionState.COMPLETED, 7),
        ("etl.copy", ExecutionState.CANCELLED, 7),
        ("etl.copy", ExecutionState.FAILED, None),
    ],
)
def test_the_most_specific_entry_decides(workflow, state, days):
    assert Policy.of(AGES, 0).keep_for(workflow, state) == (None if days is None else timedelta(days=days))


@pytest.mark.parametrize(
    ("retention", "expected"), [(DAY, timedelta(days=1)), (None, None), ({}, None), ({"failed": DAY}, None)]
)
def test_what_the_settings_leave_out_is_kept_for_ever(retention, expected):
    policy = Policy.of(retention, 10)
    assert policy.keep_for("etl.load", ExecutionState.COMPLETED) == expected
    assert policy.default_age == expected


@pytest.mark.parametrize(
    ("retention", "is_off"), [(None, True), ({}, True), ({"*": None}, True), (DAY, False), ({"failed": DAY}, False)]
)
def test_a_policy_that_keeps_everything_is_off(retention, is_off):
    assert Policy.of(retention, 0).is_off is is_off


@pytest.mark.parametrize(("keep_last", "expected"), [(3, 3), ({"*": 3}, 3), ({"etl.load": 5, "*": 3}, 5), ({}, 0)])
def test_the_count_may_depend_on_the_workflow(keep_last, expected):
    assert Policy.of(DAY, keep_last).keep_last("etl.load") == expected


@pytest.mark.parametrize(("days", "is_old"), [(29.99, False), (30, True), (31, True), (None, False)])
def test_what_has_not_ended_is_never_old(days, is_old):
    assert Policy.of(30 * DAY, 0).is_old(kept(days=days), now=NOW) is is_old


@pytest.mark.parametrize(
    ("members", "goes"),
    [
        ([], True),
        ([kept(id_=2)], True),
        ([kept(id_=2, days=1)], False),
        ([kept(id_=2, days=None, state=ExecutionState.IN_PROGRESS)], False),
        ([kept(id_=2, workflow="etl.copy", days=8)], True),
        ([kept(id_=2, workflow="etl.copy", state=ExecutionState.FAILED)], False),
    ],
    ids=["alone", "all old", "one young", "one running", "one old by its own rule", "one kept for ever"],
)
def test_a_tree_goes_when_all_of_it_may(members, goes):
    assert outdated_trees([kept()], members, policy=Policy.of(AGES, 0), now=NOW) == ({1} if goes else set())


@pytest.mark.parametrize(
    ("workflows", "states", "goes"),
    [
        ((), (), True),
        (("etl.load",), (), True),
        (("etl.copy",), (), False),
        ((), (ExecutionState.COMPLETED,), True),
        ((), (ExecutionState.FAILED,), False),
        (("etl.load",), (ExecutionState.FAILED,), False),
    ],
)
def test_trees_are_chosen_by_their_root(workflows, states, goes):
    policy = Policy({"*": DAY}, {}, frozenset(workflows), frozenset(states))
    assert bool(outdated_trees([kept()], [], policy=policy, now=NOW)) is goes
    assert policy.is_selective is bool(workflows or states)
