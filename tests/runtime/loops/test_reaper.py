"""The reaper: it declares lost what it has watched, and nothing after it stood still itself."""

from datetime import timedelta

import pytest

from chainsched.domain.states import ExecutionState
from chainsched.models import Process
from chainsched.runtime.loops.reaper import Reaper
from tests.drive import Clock
from tests.factories import NOW, make_execution, make_manifest, make_process

pytestmark = pytest.mark.django_db

LONG_SILENT = NOW - timedelta(hours=1)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def reaper(clock):
    return Reaper(monotonic=clock)


def running(process):
    state = {"state": ExecutionState.IN_PROGRESS, "started_at": NOW}
    return make_execution(make_manifest(state={}), process=process, **state)


def turn_until(seconds, *, reaper, clock):
    """Take the turns of a reaper, each five seconds after the one before; returns the times at which it closed any."""
    return [at for at in clock.ticks(until=seconds) if reaper.turn(NOW + timedelta(seconds=at)).did]


def lost():
    return Process.objects.filter(lost_at__isnull=False).count()


def test_a_reaper_that_has_just_started_watches_for_one_expiry(reaper, clock):
    running(make_process(heartbeat_at=LONG_SILENT))
    assert turn_until(60, reaper=reaper, clock=clock) == [30]
    assert lost() == 1


def test_a_process_that_beats_keeps_its_jobs(reaper, clock):
    process = make_process(heartbeat_at=LONG_SILENT)
    running(process)
    for at in clock.ticks(until=100):
        if at % 25 == 0:
            Process.objects.filter(pk=process.pk).update(heartbeat_at=LONG_SILENT + timedelta(seconds=at))
        assert not reaper.turn(NOW + timedelta(seconds=at)).did
    assert lost() == 0


def test_a_process_that_beats_at_the_last_moment_keeps_its_lease(clock, reaper, monkeypatch):
    process = make_process(heartbeat_at=LONG_SILENT)
    running(process)
    turn_until(25, reaper=reaper, clock=clock)
    read = Process.objects.heartbeats()
    monkeypatch.setattr(type(Process.objects), "heartbeats", lambda _: read)
    Process.objects.filter(pk=process.pk).update(heartbeat_at=NOW)
    clock.seconds = 30
    assert not reaper.turn(NOW + timedelta(seconds=30)).did
    assert lost() == 0


def test_one_that_returns_from_a_pause_watches_anew(reaper, clock, caplog):
    running(make_process(heartbeat_at=LONG_SILENT))
    turn_until(25, reaper=reaper, clock=clock)
    clock.seconds = 500
    assert turn_until(600, reaper=reaper, clock=clock) == [530]
    assert [record.levelname for record in caplog.records if "stood still" in record.message] == ["WARNING"]


def test_a_clock_of_the_database_that_jumps_costs_nobody_a_lease(reaper, clock):
    process = make_process(heartbeat_at=NOW)
    running(process)
    for at in clock.ticks(until=100):
        by_the_database = NOW + timedelta(seconds=at, hours=1 if at >= 50 else 0)
        Process.objects.filter(pk=process.pk).update(heartbeat_at=by_the_database)
        assert not reaper.turn(by_the_database).did
    assert lost() == 0


def test_executions_of_processes_that_stopped_or_are_missing_are_closed_at_once(reaper):
    running(make_process(stopped_at=NOW))
    gone = make_process()
    running(gone)
    gone.delete()
    assert reaper.turn(NOW).did == 2
