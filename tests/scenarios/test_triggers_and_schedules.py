"""A wish for a run stands beside the schedule: when it goes, the schedule is as it was."""

from datetime import timedelta

import pytest

from chainsched import Cron, Every
from chainsched.models import Manifest
from tests.drive import manifest
from tests.testapp.workflows import ping

pytestmark = pytest.mark.django_db


def test_a_trigger_whose_time_has_come_leaves_no_alarm_behind_when_it_is_cancelled(bench):
    Manifest.objects.schedule(ping, "job", None, Every.hours(1))
    bench.drain()
    own = manifest("job").next_run_at
    manifest("job").trigger(delay=60)
    bench.advance(seconds=61)
    manifest("job").cancel()
    assert manifest("job").next_run_at == own
    assert bench.drain() == []


@pytest.mark.parametrize("schedule", [Every.hours(1), Cron.hourly()], ids=["interval", "cron"])
@pytest.mark.parametrize("delay", [timedelta(minutes=5), timedelta(hours=5)], ids=["before", "after"])
def test_a_trigger_does_not_make_up_for_what_was_missed_while_off(bench, schedule, delay):
    Manifest.objects.schedule(ping, "job", None, schedule)
    bench.run_for(hours=1)
    manifest("job").disable()
    bench.advance(days=3, minutes=20)
    manifest("job").enable()
    own = manifest("job").next_run_at
    manifest("job").trigger(delay=delay)
    assert manifest("job").next_run_at == min(own, bench.now + delay)
    assert bench.drain() == []
    manifest("job").cancel()
    assert manifest("job").next_run_at == own


def test_an_occurrence_that_has_come_outlives_a_trigger(bench):
    Manifest.objects.schedule(ping, "job", None, Cron.hourly())
    own = manifest("job").next_run_at
    bench.travel_to(own + timedelta(seconds=10))
    manifest("job").trigger(delay=600)
    assert manifest("job").next_run_at == own
    assert bench.drain() == ["job"]
