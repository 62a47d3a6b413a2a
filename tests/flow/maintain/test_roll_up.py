"""The roll-up: what record appends, and that folding changes no figure."""

from datetime import timedelta

import pytest

from chainsched.domain import outcomes
from chainsched.domain.outcomes import Finished
from chainsched.domain.states import ExecutionState
from chainsched.domain.statistics import KEPT_FOR, Share, hour_of
from chainsched.flow.maintain import roll_up as stage
from chainsched.flow.maintain.roll_up import roll_up
from chainsched.flow.run.record import record
from chainsched.models import HourlyStatistic
from chainsched.runtime.loops.cleaner import Cleaner
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
    rows = HourlyStatistic.objects.since(HOUR - timedelta(days=1))
    statistics = rows.statistics()
    longest = statistics.slowest(limit=5)
    return statistics.by_hour(HOUR), statistics.most_failing(limit=5), longest, rows.slowest_executions(longest)


def test_ends_are_counted_in_the_transaction_that_records_them():
    ended = end(None, None, RuntimeError("broken"))
    by_hour, failing, slowest, named = figures()
    assert by_hour == {"completed": 2, "failed": 1}
    assert failing == [("tests.plain", 1)]
    assert slowest == [("tests.plain", 10.0, 10.0)]
    assert set(named.values()) <= {row.id for row in ended}


def test_a_batch_of_one_kind_is_one_row():
    rows = end(*[None] * 20)
    (row,) = HourlyStatistic.objects.all()
    assert (row.executions, row.seconds, row.is_merged) == (20, 200, False)
    assert row.group == rows[0].group_id


def test_a_late_result_is_not_counted():
    (row,) = end(None)
    record([Finished(row.id, outcomes.completed(None))], now=NOW)
    assert figures()[0] == {"completed": 1}


def test_folding_leaves_one_row_a_kind_and_changes_no_figure():
    for seconds in (3, 30, 5):
        end(None, RuntimeError("broken"), seconds=seconds)
    end(None, workflow="tests.other", seconds=50)
    before = figures()
    assert roll_up(now=NOW) == HourlyStatistic.objects.filter(is_merged=False).count() + 7
    assert figures() == before
    assert not HourlyStatistic.objects.filter(is_merged=False).exists()
    end(None, seconds=40)
    expected = figures()
    roll_up(now=NOW)
    assert figures() == expected


def test_the_slowest_is_named_whoever_came_first():
    end(None, seconds=5)
    roll_up(now=NOW)
    (slow,) = end(None, seconds=60)
    roll_up(now=NOW)
    end(None, seconds=7)
    roll_up(now=NOW)
    slowest = HourlyStatistic.objects.order_by("-slowest_seconds").first()
    assert (slowest.slowest_execution, slowest.slowest_seconds) == (slow.id, 60)


def test_a_large_heap_is_folded_in_batches(monkeypatch):
    monkeypatch.setattr(stage, "BATCH", 2)
    HourlyStatistic.objects.append(
        [Share(HOUR, number, "w", "completed", 1, 1.0, 1.0, number) for number in range(1, 6)]
    )
    assert [roll_up(now=NOW) for _ in range(4)] == [2, 2, 1, 0]
    assert HourlyStatistic.objects.filter(is_merged=True).count() == 5


def test_the_cleaner_folds_also_where_nothing_is_ever_removed(settings):
    settings.CHAINSCHED = {**settings.CHAINSCHED, "RETENTION": None}
    end(None)
    Cleaner().turn(NOW)
    assert HourlyStatistic.objects.get().is_merged


def test_statistics_outlive_executions_and_then_go():
    end(None)
    roll_up(now=NOW + KEPT_FOR - timedelta(hours=1))
    assert HourlyStatistic.objects.count() == 1
    roll_up(now=NOW + KEPT_FOR + timedelta(hours=2))
    assert not HourlyStatistic.objects.exists()
