"""The workbench that projects test with."""

from datetime import UTC, datetime, timedelta

import pytest

from chainsched import Cron, Every
from chainsched.db.clock import database_now
from chainsched.flow.schedule.declare import Schedules, schedules
from chainsched.models import Manifest, Process
from chainsched.testing import Workbench
from tests.testapp import workflows

pytestmark = pytest.mark.django_db

START = datetime(2026, 3, 28, 0, 0, tzinfo=UTC)


@pytest.fixture
def bench():
    with Workbench(START, declared=Schedules()) as bench:
        yield bench


def test_the_clock_stands_still_inside_and_runs_again_outside():
    with Workbench(START):
        assert database_now() == START
    assert database_now() != START


def test_time_passes_only_when_told(bench):
    bench.advance(minutes=5)
    assert database_now() == bench.now == START + timedelta(minutes=5)
    bench.travel_to(START)
    assert database_now() == START


def test_two_days_over_a_night_with_a_changing_clock_take_no_time(bench):
    """In Berlin 02:30 does not exist on 29 March 2026; the run comes at 03:00, which is 01:00 UTC."""
    bench.schedules.schedule(workflows.ping, "night", None, Cron.daily(hour=2, minute=30), timezone="Europe/Berlin")
    bench.seed()
    assert bench.run_for(days=2) == ["night", "night"]
    ended = [execution.ended_at for execution in Manifest.objects.get().executions.order_by("id")]
    assert ended == [datetime(2026, 3, 28, 1, 30, tzinfo=UTC), datetime(2026, 3, 29, 1, 0, tzinfo=UTC)]
    assert bench.now == START + timedelta(days=2)


def test_retries_are_reached_by_travelling(bench):
    bench.schedules.schedule(workflows.fail, "bad", None, Every.days(1), max_retries=3)
    bench.seed()
    assert bench.run_for(hours=1) == ["bad", "bad", "bad"]


def test_what_waits_can_be_asserted(bench):
    bench.schedules.schedule(workflows.ping, "a", None, Every.hours(1))
    bench.seed()
    bench.assert_queued()
    bench.manage()
    bench.assert_queued("a")
    with pytest.raises(AssertionError, match=r"Queued are \['a'\], not \['b'\]"):
        bench.assert_queued("b")


def test_what_a_view_triggers_runs_when_drained(bench):
    Manifest.objects.schedule(workflows.copy, "sync", workflows.Slice("t"), None).trigger()
    assert bench.queued() == ["sync"]
    assert bench.drain() == ["sync"]


def test_a_job_that_never_comes_to_rest_is_reported(bench, monkeypatch):
    monkeypatch.setattr("chainsched.testing.MAX_ROUNDS", 5)
    monkeypatch.setattr(bench, "turn", lambda: ["restless"])
    with pytest.raises(AssertionError, match="Still running after 5 turns"):
        bench.drain()


def test_by_default_it_seeds_what_the_project_declares():
    schedules.schedule(workflows.ping, "declared", None, Every.hours(1))
    try:
        with Workbench(START) as bench:
            bench.seed()
            assert bench.drain() == ["declared"]
    finally:
        schedules.clear()
    assert Process.objects.get().kind == "test"
