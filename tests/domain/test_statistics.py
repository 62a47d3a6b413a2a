"""The roll-up of history, as arithmetic."""

from datetime import UTC, datetime

from chainsched.domain.statistics import Share, hour_of, merge

HOUR = datetime(2026, 3, 1, 7, tzinfo=UTC)


def share(workflow="etl.extract", *, seconds=1.0, execution=1, state="completed", group=1, hour=HOUR):
    return Share(hour, group, workflow, state, 1, seconds, seconds, execution)


def test_an_hour_begins_at_its_first_microsecond():
    assert hour_of(datetime(2026, 3, 1, 7, 59, 59, 999999, tzinfo=UTC)) == HOUR
    assert hour_of(HOUR) == HOUR


def test_shares_of_one_kind_are_added_and_the_slowest_is_named():
    shares = [share(seconds=2, execution=1), share(seconds=5, execution=2), share(seconds=3, execution=3)]
    assert merge(shares) == [Share(HOUR, 1, "etl.extract", "completed", 3, 10, 5, 2)]


def test_hour_group_workflow_and_state_tell_kinds_apart():
    other = datetime(2026, 3, 1, 8, tzinfo=UTC)
    shares = [share(), share(hour=other), share(group=2), share("etl.load"), share(state="failed")]
    assert sorted(merge(shares)) == sorted(shares)


def test_the_order_does_not_depend_on_what_came_first():
    shares = [share("b"), share("a"), share("c", group=0)]
    assert merge(shares) == merge(reversed(shares))
