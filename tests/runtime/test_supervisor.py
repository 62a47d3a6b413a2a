"""A running process: it carries a job through, drains, and notices that it was given up."""

import threading

import pytest
from django.contrib.auth import get_user_model
from django.db import connections

from chainsched import Every, workflow
from chainsched.domain.states import DeadLetterStatus, ErrandVerb, ExecutionState
from chainsched.flow.commission import commission
from chainsched.flow.declare import Schedules
from chainsched.flow.seed import seed
from chainsched.models import Metadata, Process
from chainsched.models.clock import database_now
from chainsched.runtime.lease import Lease
from chainsched.runtime.loops import LOOPS
from chainsched.runtime.supervisor import Roles, Supervisor
from tests.factories import make_letter, make_manifest
from tests.testapp import workflows
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

PATIENCE = 30

started = threading.Event()
released = threading.Event()


@workflow(name="tests.wait")
def wait_for_release() -> str:
    started.set()
    released.wait(PATIENCE)
    return "released"


@pytest.fixture(autouse=True)
def events():
    started.clear()
    released.clear()
    others = set(threading.enumerate())
    yield
    released.set()
    for thread in set(threading.enumerate()) - others:
        thread.join(PATIENCE)


def declare(function):
    schedules = Schedules()
    schedules.schedule(function, "job", None, Every.hours(1)).then_include(workflows.ping, "after")
    seed(schedules, now=database_now())


def run_in_thread(supervisor):
    codes = []

    def run():
        codes.append(supervisor.run())
        connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    return thread, codes


def test_one_round_of_everything_runs_what_is_due():
    declare(workflows.ping)
    Supervisor(Roles("scheduler", LOOPS, processes=1)).run_once()
    assert Metadata.objects.get().state == ExecutionState.COMPLETED
    assert Process.objects.get().stopped_at is not None


def test_a_stopped_process_finishes_what_it_runs_and_gives_its_lease_back():
    declare(wait_for_release)
    supervisor = Supervisor(Roles("scheduler", LOOPS, processes=1))
    thread, codes = run_in_thread(supervisor)
    assert started.wait(PATIENCE)
    supervisor.stop()
    released.set()
    thread.join(PATIENCE)
    assert codes == [0]
    execution = Metadata.objects.get(manifest_external_id="job")
    assert (execution.state, execution.output) == (ExecutionState.COMPLETED, "released")
    assert Process.objects.get().stopped_at is not None
    assert not Metadata.objects.filter(manifest_external_id="after").exists(), "a draining process starts nothing"


def test_a_job_that_outlives_the_shutdown_is_left_to_be_reaped(settings):
    settings.CHAINSCHED = {"SHUTDOWN_TIMEOUT": 0.2}
    declare(wait_for_release)
    supervisor = Supervisor(Roles("scheduler", LOOPS, processes=1))
    thread, codes = run_in_thread(supervisor)
    assert started.wait(PATIENCE)
    supervisor.stop()
    thread.join(PATIENCE)
    assert codes == [1]
    assert Metadata.objects.get().state == ExecutionState.IN_PROGRESS


def test_a_process_that_was_declared_lost_ends(settings):
    settings.CHAINSCHED = {"HEARTBEAT_INTERVAL": 0.05, "PROCESS_EXPIRY": 30}
    supervisor = Supervisor(Roles("worker", (), processes=1))
    thread, codes = run_in_thread(supervisor)
    wait_until(Process.objects.exists)
    Process.objects.update(lost_at=database_now())
    thread.join(PATIENCE)
    assert codes == [1]


def test_a_process_whose_beat_is_never_answered_ends(settings, monkeypatch):
    settings.CHAINSCHED = {"HEARTBEAT_INTERVAL": 0.05, "PROCESS_EXPIRY": 1}
    monkeypatch.setattr(Lease, "beat", lambda _: released.wait(PATIENCE))
    thread, codes = run_in_thread(Supervisor(Roles("worker", (), processes=1)))
    thread.join(PATIENCE / 2)
    assert codes == [1]


def test_one_that_runs_no_jobs_begins_anew_when_it_was_declared_lost(settings):
    settings.CHAINSCHED = {"HEARTBEAT_INTERVAL": 0.05, "PROCESS_EXPIRY": 30}
    supervisor = Supervisor(Roles("scheduler", ("manager",), processes=0))
    thread, codes = run_in_thread(supervisor)
    wait_until(Process.objects.exists)
    Process.objects.update(lost_at=database_now())
    wait_until(Process.objects.trusted().exists)
    supervisor.stop()
    thread.join(PATIENCE)
    assert codes == [0]
    assert Process.objects.filter(stopped_at__isnull=False).count() == 1


def test_a_scheduler_without_workers_can_run_nothing_itself():
    declare(workflows.ping)
    Supervisor(Roles("scheduler", LOOPS, processes=0)).run_once()
    assert Process.objects.get().workflows == []
    assert not Metadata.objects.exists(), "no live process knows the workflow, so the row waits"


def test_one_round_carries_out_an_errand():
    letter = make_letter(make_manifest(state={}, schedule_type="on_demand"))
    asker = get_user_model().objects.create_user("ann")
    told = {"by": asker, "note": "back", "selection": "", "now": database_now()}
    commission(ErrandVerb.RETRY, [letter.id], **told)
    Supervisor(Roles("scheduler", LOOPS, processes=1)).run_once()
    letter.refresh_from_db()
    assert letter.status == DeadLetterStatus.RETRIED
    assert Metadata.objects.get(manifest=letter.manifest).state == ExecutionState.COMPLETED
