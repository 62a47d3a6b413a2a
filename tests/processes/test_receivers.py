"""Receivers of signals that do not return: they delay signals, and neither jobs nor leases."""

import functools
from datetime import timedelta

import pytest

from chainsched import api
from chainsched.db.clock import database_now
from chainsched.models import Manifest, Process
from tests.listeningapp.apps import VARIABLE, released
from tests.processes.command import PATIENCE, stop
from tests.processes.jobs import SHORT_LEASE, ended
from tests.testapp import workflows
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

EXPIRY = 10
SETTINGS = {**SHORT_LEASE, "PROCESS_EXPIRY": EXPIRY}
COMPLETED = ["a completed", "b completed", "c completed"]


@pytest.fixture
def heard(tmp_path):
    """The file in which the receiver writes what it hears, before it waits."""
    return tmp_path / "heard"


@pytest.fixture
def scheduler(launch, heard):
    """Start a scheduler with the receiver."""
    environment = {"CHAINSCHED_TEST_MORE_APPS": "tests.listeningapp", VARIABLE: str(heard)}

    def start(**settings):
        return launch("run_scheduler", "--processes", "1", settings={**SETTINGS, **settings}, environment=environment)

    return start


def run_three_jobs(heard):
    """One job after the other, while the receiver waits in the signal of the first."""
    for number, name in enumerate("abc", start=1):
        Manifest.objects.schedule(workflows.ping, name, None, None).trigger()
        wait_until(functools.partial(_have_ended, number))
    wait_until(heard.exists)


def _have_ended(number):
    return ended() == number


def waiting():
    return Process.objects.get().signals.get("waiting")


def test_a_receiver_that_blocks_costs_neither_the_lease_nor_a_job(scheduler, heard):
    process = scheduler()
    run_three_jobs(heard)
    blocked_at = database_now()
    wait_until(lambda: Process.objects.filter(heartbeat_at__gt=blocked_at + timedelta(seconds=EXPIRY)).exists())
    assert Process.objects.get().lost_at is None
    assert waiting() == 3
    assert heard.read_text().splitlines() == COMPLETED[:1]
    released(heard).touch()
    wait_until(lambda: heard.read_text().splitlines() == COMPLETED)
    wait_until(lambda: not waiting())
    code, output = stop(process)
    assert code == 0, output
    assert Process.objects.get().signals == {}


def test_a_stop_waits_for_receivers(scheduler, heard):
    process = scheduler(SHUTDOWN_TIMEOUT=PATIENCE)
    run_three_jobs(heard)
    process.terminate()
    # It beats as long as it drains.
    since = database_now()
    wait_until(lambda: Process.objects.get().heartbeat_at > since + timedelta(seconds=2))
    released(heard).touch()
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output
    assert heard.read_text().splitlines() == COMPLETED
    assert Process.objects.get().signals == {}


def test_a_stop_waits_for_no_receiver_longer_than_the_timeout(scheduler, heard):
    process = scheduler(SHUTDOWN_TIMEOUT=1)
    run_three_jobs(heard)
    code, output = stop(process)
    assert code == 0, output
    assert "3 signals were not sent before this process had to stop; they are dropped." in output
    row = Process.objects.get()
    assert row.stopped_at is not None
    assert row.signals["dropped"] == 3
    assert heard.read_text().splitlines() == COMPLETED[:1]


def test_health_names_the_process_whose_receivers_are_late(scheduler, heard, monkeypatch):
    monkeypatch.setattr("chainsched.domain.health.LATE_SIGNALS", timedelta(seconds=1))
    process = scheduler()
    run_three_jobs(heard)
    (note,) = wait_until(lambda: api.health().notes)
    assert f":{process.pid} wait for receivers of the project" in note
    released(heard).touch()
    wait_until(lambda: not api.health().notes)
    assert stop(process)[0] == 0
