"""The roll-up: what record appends, and that folding changes no figure."""

from datetime import timedelta

import pytest

from chainsched.domain import outcomes
from chainsched.domain.outcomes import Finished
from chainsched.domain.states import ExecutionState
from chainsched.domain.tallies import KEPT_FOR, Share, hour_of
from chainsched.flow import fold as stage
from chainsched.flow.fold import fold
from chainsched.flow.record import record
from chainsched.models import Tally
from chainsched.runtime.cleaner import Cleaner
from tests.factories import NOW, make_execution, make_group, make_manifest, make_process

pytestmark = pytest.mark.django_db

HOUR = hour_of(NOW)


def end(*errors, workflow="tests.plain", seconds=10, at=NOW):
    """Record executions that began so long before; those with an error fail, all at once."""
    process, group = make_process(), make_group()
    rows = [
        make_execution(
            make_manifest(group=group, state={}),
            state=ExecutionState.IN_PROGRESS,
            process=process,
            started_at=at - timedelta(seconds=seconds),
            workflow=workflow,
        )
        for _ in errors
    ]
    finished = [
        Finished(row.id, outcomes.raised(error) if error else outcomes.completed(None))
        for row, error in zip(rows, errors, strict=True)
    ]
    record(finished, by=process, now=at)
    return rows


def figures():
    """All that the overview reads."""
    tallies = Tally.objects.since(HOUR - timedelta(days=1))
    statistics = tallies.statistics()
    longest = statistics.slowest(limit=5)
    return statistics.by_hour(HOUR), statistics.most_failing(limit=5), longest, tallies.slowest_executions(longest)


def test_ends_are_counted_in_the_transaction_that_records_them():
    ended = end(None, None, RuntimeError("broken"))
    by_hour, failing, slowest, named = figures()
    assert by_hour == {"completed": 2, "failed": 1}
    assert failing == [("tests.plain", 1)]
    assert slowest == [("tests.plain", 10.0, 10.0)]
    assert set(named.values()) <= {row.id for row in ended}


def test_a_batch_of_one_kind_is_one_row():
    rows = end(*[None] * 20)
    (tally,) = Tally.objects.all()
    assert (tally.executions, tally.seconds, tally.is_folded) == (20, 200, False)
    assert tally.group == rows[0].group_id


def test_a_late_result_is_not_counted():
    (row,) = end(None)
    record([Finished(row.id, outcomes.completed(None))], now=NOW)
    assert figures()[0] == {"completed": 1}


def test_folding_leaves_one_row_a_kind_and_changes_no_figure():
    for seconds in (3, 30, 5):
        end(None, RuntimeError("broken"), seconds=seconds)
    end(None, workflow="tests.other", seconds=50)
    before = figures()
    assert fold(now=NOW) == Tally.objects.filter(is_folded=False).count() + 7
    assert figures() == before
    assert not Tally.objects.filter(is_folded=False).exists()
    end(None, seconds=40)
    expected = figures()
    fold(now=NOW)
    assert figures() == expected


def test_the_slowest_is_named_whoever_came_first():
    end(None, seconds=5)
    fold(now=NOW)
    (slow,) = end(None, seconds=60)
    fold(now=NOW)
    end(None, seconds=7)
    fold(now=NOW)
    slowest = Tally.objects.order_by("-slowest_seconds").first()
    assert (slowest.slowest_execution, slowest.slowest_seconds) == (slow.id, 60)


def test_a_large_heap_is_folded_in_batches(monkeypatch):
    monkeypatch.setattr(stage, "BATCH", 2)
    Tally.objects.append([Share(HOUR, number, "w", "completed", 1, 1.0, 1.0, number) for number in range(1, 6)])
    assert [fold(now=NOW) for _ in range(4)] == [2, 2, 1, 0]
    assert Tally.objects.filter(is_folded=True).count() == 5


def test_the_cleaner_folds_also_where_nothing_is_ever_removed(settings):
    settings.CHAINSCHED = {**settings.CHAINSCHED, "RETENTION": None}
    end(None)
    Cleaner().turn(NOW)
    assert Tally.objects.get().is_folded


def test_statistics_outlive_executions_and_then_go():
    end(None)
    fold(now=NOW + KEPT_FOR - timedelta(hours=1))
    assert Tally.objects.count() == 1
    fold(now=NOW + KEPT_FOR + timedelta(hours=2))
    assert not Tally.objects.exists()
