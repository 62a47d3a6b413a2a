"""Each beat tells when the loops and the worker of a process last got through a turn."""

import threading
from datetime import datetime

import pytest
from django.db import OperationalError, connections

from chainsched.models import Process
from chainsched.runtime.process.supervisor import Roles, Supervisor
from chainsched.servers.database import DatabaseServer
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _often(settings):
    settings.CHAINSCHED = {"HEARTBEAT_INTERVAL": 0.05, "WORKER_INTERVAL": 0.05, "REAP_INTERVAL": 0.05}


def turn(supervisor):
    supervisor.run()
    connections.close_all()


@pytest.fixture
def run():
    """Start a process in a thread, which ends with the test."""
    running = []

    def start(*, processes):
        supervisor = Supervisor(Roles("worker", ("reaper",), processes=processes))
        thread = threading.Thread(target=turn, args=[supervisor])
        running.append((supervisor, thread))
        thread.start()

    yield start
    for supervisor, thread in running:
        supervisor.stop()
        thread.join(30)


def told(*, since=None):
    """What the process tells of its turns, once it has told of one of the reaper after that time."""
    turns = Process.objects.values_list("turns", flat=True).first() or {}
    times = {name: datetime.fromisoformat(at) for name, at in turns.items()}
    return times if "reaper" in times and (since is None or times["reaper"] > since) else None


def test_a_worker_that_turns_is_told_of(run):
    run(processes=1)
    first = wait_until(told)
    wait_until(lambda: told()["worker"] > max(first.values()))


def test_a_worker_whose_turns_fail_stands_still_while_the_others_go_on(run, monkeypatch):
    monkeypatch.setattr(DatabaseServer, "take", refuse)
    run(processes=1)
    first = wait_until(told)
    later = wait_until(lambda: told(since=first["reaper"]))
    assert later["worker"] == first["worker"] == Process.objects.get().started_at


def refuse(*_args, **_kwargs):
    raise OperationalError("could not extend file")


def test_a_process_that_runs_no_jobs_has_no_worker_to_tell_of(run):
    run(processes=0)
    assert set(wait_until(told)) == {"reaper"}
