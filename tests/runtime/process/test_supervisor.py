"""A running process: it carries a job through, drains, and notices that it was given up."""

import threading

import pytest
from django.contrib.auth import get_user_model
from django.db import OperationalError, connections
from django.db.models import F

from chainsched import Every, workflow
from chainsched.db.clock import database_now
from chainsched.domain.loops import LOOPS
from chainsched.domain.states import BulkDecisionVerb, DeadLetterStatus, ExecutionState
from chainsched.flow.operate.bulk_decisions import request_bulk_decision
from chainsched.flow.schedule.declare import Schedules
from chainsched.flow.schedule.seed import seed
from chainsched.models import Metadata, Process
from chainsched.runtime.process.lease import Lease
from chainsched.runtime.process.supervisor import Roles, Supervisor
from chainsched.runtime.support.db_outage import outage
from chainsched.runtime.workers.worker import Worker
from tests.factories import make_letter, make_manifest
from tests.testapp import workflows
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

PATIENCE = 30
SHORT_BEAT = {"HEARTBEAT_INTERVAL": 0.05, "PROCESS_EXPIRY": 30}

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


def has_begun():
    """Whether a session has begun: its lease is there before it, and beats only from then on."""
    return Process.objects.trusted().filter(heartbeat_at__gt=F("started_at")).exists()


def turns(*names):
    """Whether one of these loops still turns."""
    return any(thread.name in {f"chainsched-{name}" for name in names} for thread in threading.enumerate())


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
    wait_until(lambda: not turns("manager", "dispatcher"))
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
    settings.CHAINSCHED = SHORT_BEAT
    supervisor = Supervisor(Roles("worker", (), processes=1))
    thread, codes = run_in_thread(supervisor)
    wait_until(Process.objects.exists)
    Process.objects.update(lost_at=database_now())
    thread.join(PATIENCE)
    assert codes == [1]


def test_a_process_whose_beat_is_never_answered_ends(settings, monkeypatch):
    settings.CHAINSCHED = SHORT_BEAT
    monkeypatch.setattr("chainsched.runtime.process.supervisor.WATCH_SECONDS", 0.1)

    def beat(_lease):
        # Not before: taking the lease may take longer.
        settings.CHAINSCHED = {**SHORT_BEAT, "PROCESS_EXPIRY": 1}
        return released.wait(PATIENCE)

    monkeypatch.setattr(Lease, "beat", beat)
    thread, codes = run_in_thread(Supervisor(Roles("worker", (), processes=1)))
    thread.join(PATIENCE / 2)
    assert codes == [1]


def test_one_that_runs_nothing_stops_at_once_while_the_database_is_away(monkeypatch, caplog):
    turned = threading.Event()

    def go_away():
        turned.set()
        raise OperationalError("server closed the connection unexpectedly")

    supervisor = Supervisor(Roles("worker", (), processes=1))
    thread, codes = run_in_thread(supervisor)
    wait_until(Process.objects.exists)
    monkeypatch.setattr("chainsched.runtime.loops.poller.database_now", go_away)
    assert turned.wait(PATIENCE)
    supervisor.stop()
    thread.join(PATIENCE / 2)
    assert codes == [0]
    assert "did not finish" not in caplog.text


def test_a_lease_that_nobody_takes_back_is_left_to_run_out(settings, monkeypatch, caplog):
    settings.CHAINSCHED = SHORT_BEAT
    monkeypatch.setattr("chainsched.runtime.process.worker_session.LAST_BEAT_SECONDS", 0.1)
    monkeypatch.setattr(Lease, "stop", lambda lease: lease.abandon() or released.wait(PATIENCE))
    supervisor = Supervisor(Roles("worker", (), processes=1))
    thread, codes = run_in_thread(supervisor)
    wait_until(has_begun)
    supervisor.stop()
    thread.join(PATIENCE / 2)
    assert codes == [0]
    assert "could not release its lease; it will expire: the database does not reply" in caplog.text


def test_one_that_waits_for_its_lease_can_be_stopped(monkeypatch):
    monkeypatch.setattr("chainsched.runtime.process.lease.database_now", wait_for_release)
    supervisor = Supervisor(Roles("worker", (), processes=1))
    thread, codes = run_in_thread(supervisor)
    assert started.wait(PATIENCE)
    supervisor.stop()
    thread.join(PATIENCE / 2)
    assert codes == [0]


def test_loops_that_hang_are_waited_for_together(settings, monkeypatch):
    settings.CHAINSCHED = {**SHORT_BEAT, "SHUTDOWN_TIMEOUT": 4}
    monkeypatch.setattr(
        "chainsched.runtime.loops.poller.database_now", lambda: released.wait(PATIENCE) and database_now()
    )
    supervisor = Supervisor(Roles("scheduler", LOOPS, processes=0))
    thread, codes = run_in_thread(supervisor)
    wait_until(has_begun)
    supervisor.stop()
    thread.join(PATIENCE / 2)
    assert codes == [0], "not as long for each of the six"


def test_one_that_runs_no_jobs_begins_anew_when_it_was_declared_lost(settings):
    settings.CHAINSCHED = SHORT_BEAT
    supervisor = Supervisor(Roles("scheduler", ("manager",), processes=0))
    thread, codes = run_in_thread(supervisor)
    wait_until(Process.objects.exists)
    Process.objects.update(lost_at=database_now())
    wait_until(has_begun)
    supervisor.stop()
    thread.join(PATIENCE)
    assert codes == [0]
    assert Process.objects.filter(stopped_at__isnull=False).count() == 1


def test_a_scheduler_without_workers_can_run_nothing_itself():
    declare(workflows.ping)
    Supervisor(Roles("scheduler", LOOPS, processes=0)).run_once()
    assert Process.objects.get().workflows == []
    assert not Metadata.objects.exists(), "no live process knows the workflow, so the row waits"


def test_one_round_carries_out_an_bulk_decision():
    letter = make_letter(make_manifest(state={}, schedule_type="on_demand"))
    asker = get_user_model().objects.create_user("ann")
    told = {"by": asker, "note": "back", "selection": "", "now": database_now()}
    request_bulk_decision(BulkDecisionVerb.RETRY, [letter.id], **told)
    Supervisor(Roles("scheduler", LOOPS, processes=1)).run_once()
    letter.refresh_from_db()
    assert letter.status == DeadLetterStatus.RETRIED
    assert Metadata.objects.get(manifest=letter.manifest).state == ExecutionState.COMPLETED


def test_a_lease_that_the_database_never_answers_for_is_asked_for_again(monkeypatch, settings, caplog):
    settings.CHAINSCHED = {"PROCESS_EXPIRY": 2, "HEARTBEAT_INTERVAL": 0.5}
    take_lease, asked = Supervisor._take_lease, []

    def take_lease_or_hang(supervisor):
        asked.append(1)
        if len(asked) == 1:
            released.wait(PATIENCE)
            raise OperationalError("the answer is of no use any more")
        return take_lease(supervisor)

    begin = outage.begin

    def begin_and_be_patient(error, *, at):
        settings.CHAINSCHED = {}
        begin(error, at=at)

    monkeypatch.setattr(Supervisor, "_take_lease", take_lease_or_hang)
    # The second answer may take its time, and so may the beats after it.
    monkeypatch.setattr(outage, "begin", begin_and_be_patient)
    supervisor = Supervisor(Roles("worker", (), processes=1))
    thread, codes = run_in_thread(supervisor)
    wait_until(Process.objects.exists)
    supervisor.stop()
    thread.join(PATIENCE)
    assert codes == [0]
    assert len(asked) == 2
    assert len([message for message in caplog.messages if "in trouble" in message]) == 1


def test_a_worker_that_hangs_loses_its_lease_and_begins_anew(monkeypatch, settings, caplog):
    settings.CHAINSCHED = {"HEARTBEAT_INTERVAL": 0.1}
    monkeypatch.setattr("chainsched.runtime.process.supervisor.WATCH_SECONDS", 0.1)
    turn, turns = Worker.turn, []
    abandon = Supervisor._abandon

    def turn_or_hang(worker, now):
        turns.append(worker)
        if len(turns) == 1:
            give_up_after(0.5)
            released.wait(PATIENCE)
        return turn(worker, now)

    def abandon_and_be_patient(supervisor, session):
        give_up_after(3600)
        abandon(supervisor, session)

    def give_up_after(seconds):
        monkeypatch.setattr("chainsched.runtime.process.supervisor.HUNG_SECONDS", seconds)

    monkeypatch.setattr(Worker, "turn", turn_or_hang)
    monkeypatch.setattr(Supervisor, "_abandon", abandon_and_be_patient)
    supervisor = Supervisor(Roles("worker", (), processes=1))
    # As if its jobs ran in children: threads could not be ended.
    supervisor._runner.is_killable = True
    thread, codes = run_in_thread(supervisor)
    wait_until(lambda: len(set(turns)) == 2)
    released.set()
    supervisor.stop()
    thread.join(PATIENCE)
    assert codes == [0]
    assert "Worker has had no database reply for" in caplog.text
    assert Process.objects.count() == 2
