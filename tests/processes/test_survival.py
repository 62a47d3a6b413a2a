"""Supervisors, children and leases as real processes: killed, frozen, drained, cut off from the database."""

import contextlib
import functools
import os
import signal
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db import connection

from chainsched.db.clock import database_now
from chainsched.domain.states import ExecutionState
from chainsched.models import Manifest, Metadata, Process, WorkQueue
from tests.processes import ticks
from tests.processes.command import PATIENCE, stop
from tests.processes.jobs import SHORT_LEASE, ended, running, trigger
from tests.processes.tree import descendants, is_running, send_all, switches
from tests.testapp import misdeeds, workflows
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

# Short enough to be waited for, and long enough not to be lost by a process that is not scheduled for a while.
EXPIRY = 10
LEASE = {**SHORT_LEASE, "PROCESS_EXPIRY": EXPIRY}


def test_children_die_with_their_supervisor(launch):
    trigger(misdeeds.oversleep, 2)
    process = launch("run_scheduler", "--processes", "2")
    wait_until(lambda: running() == 2)
    below = descendants(process.pid)
    assert len(below) == 3, "the fork server and two children"
    process.kill()
    process.wait()
    wait_until(lambda: not any(is_running(pid) for pid in below))


def test_what_a_killed_supervisor_had_taken_is_lost_once_and_runs_again_at_once(launch):
    process = launch("run_scheduler", "--processes", "1")
    _run_pings()
    fork_server, child = descendants(process.pid)
    wait_until(lambda: _stands_before(child, number=50))
    process.kill()
    process.wait()
    held, before = _taken(), ended()
    assert len(held) >= 50
    wait_until(lambda: not is_running(fork_server) and not is_running(child))
    again = launch("run_scheduler", "--processes", "2", settings={**LEASE, "RETRY_DELAY": 3600})
    wait_until(lambda: ended() == before + PINGS)
    assert stop(again)[0] == 0
    lost = Metadata.objects.filter(state=ExecutionState.FAILED).values_list("id", "failure_type", "attempt")
    assert set(lost) == {(id_, "lost", 1) for id_ in held}
    assert Metadata.objects.filter(state=ExecutionState.COMPLETED, attempt=2).count() == len(held)


PINGS = 60


def _run_pings(workflow=workflows.ping):
    """Let short jobs come and go: of what takes so little time, much is claimed ahead."""
    before = ended()
    trigger(workflow, PINGS)
    wait_until(lambda: ended() == before + PINGS)


def _stands_before(child, *, number, workflow=workflows.ping):
    """Whether a child that stands still is given so many jobs; if they seemed too long for that, it runs them."""
    before = ended()
    send_all([child], signal.SIGSTOP)
    trigger(workflow, PINGS)
    deadline = time.monotonic() + 5
    wait_until(lambda: len(_taken()) >= number or time.monotonic() > deadline)
    if len(_taken()) >= number:
        return True
    send_all([child], signal.SIGCONT)
    wait_until(lambda: ended() == before + PINGS)
    return False


def test_a_job_that_holds_pythons_lock_keeps_nothing_that_waits_behind_it(launch):
    process = launch("run_scheduler", "--processes", "2", settings={"KILL_GRACE": 1})
    _run_pings()
    _fork_server, *children = descendants(process.pid)
    send_all(children, signal.SIGSTOP)
    holder = Manifest.objects.schedule(misdeeds.hold_pythons_lock, "holder", None, None)
    holder.trigger()
    before = ended(ExecutionState.COMPLETED)
    trigger(workflows.ping, PINGS)
    wait_until(lambda: len(_taken()) > len(children))
    send_all(children, signal.SIGCONT)
    wait_until(lambda: ended(ExecutionState.COMPLETED) == before + PINGS)
    assert holder.executions.get().state == ExecutionState.IN_PROGRESS
    holder.cancel()
    wait_until(lambda: not Metadata.objects.active().exists())
    assert stop(process)[0] == 0


def _taken():
    """What processes have taken and not recorded, begun or not."""
    return set(Metadata.objects.in_progress().values_list("id", flat=True))


# What a busy machine may need on top to notice, to queue, to claim and to begin; without the settings it takes longer.
SLACK = timedelta(seconds=6)


def test_the_job_of_a_killed_worker_runs_elsewhere_in_time(launch):
    settings = {**LEASE, **dict.fromkeys(("MANAGER_INTERVAL", "DISPATCHER_INTERVAL", "WORKER_INTERVAL"), 0.2)}
    launch("run_scheduler", "--processes", "0", settings=settings)
    victim = launch("run_worker", "--processes", "1", settings=settings)
    trigger(misdeeds.oversleep)
    wait_until(lambda: running() == 1)
    launch("run_worker", "--processes", "1", settings=settings)
    wait_until(lambda: Process.objects.filter(kind="worker").exclude(turns={}).count() == 2)
    killed_at = database_now()
    victim.kill()
    wait_until(lambda: running() == 1 and Metadata.objects.count() == 2)
    lost, again = Metadata.objects.order_by("id")
    assert (lost.failure_type, again.attempt) == ("lost", 2)
    promised = timedelta(seconds=settings["PROCESS_EXPIRY"] + 2 * settings["REAP_INTERVAL"])
    assert again.started_at - killed_at < promised + SLACK


def test_sigterm_lets_what_runs_finish_and_gives_back_what_has_not_begun(launch):
    # So short that some of them are taken ahead.
    trigger(misdeeds.stay, 300, input=0.01)
    process = launch("run_scheduler", "--processes", "1")
    wait_until(lambda: Metadata.objects.in_progress().count() >= 2)
    code, output = stop(process)
    assert code == 0, output
    assert not Metadata.objects.active().exists()
    waiting = WorkQueue.objects.queued().count()
    assert waiting > 0
    assert ended() + waiting == 300


@pytest.fixture
def without_nohup():
    """Processes hear of a closed terminal also when the tests themselves were told not to."""
    former = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, former)


def test_a_closed_terminal_drains(launch, without_nohup, witness):
    trigger(misdeeds.tick)
    process = launch("run_scheduler", "--processes", "1")
    wait_until(lambda: running() == 1)
    group = os.getpgid(process.pid)
    for pid in [process.pid, *(pid for pid in descendants(process.pid) if os.getpgid(pid) == group)]:
        os.kill(pid, signal.SIGHUP)
    ticks.end(witness, Manifest.objects.get().external_id)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output
    assert ended(ExecutionState.COMPLETED) == 1


def test_a_second_signal_ends_it_at_once_with_its_children(launch):
    trigger(misdeeds.oversleep)
    process = launch("run_scheduler", "--processes", "1")
    wait_until(lambda: running() == 1)
    below = descendants(process.pid)
    # Signals that come too close to each other are one.
    wait_until(lambda: process.poll() is not None or process.send_signal(signal.SIGTERM))
    assert process.returncode == 128 + signal.SIGTERM
    wait_until(lambda: not any(is_running(pid) for pid in below))


@pytest.mark.parametrize(
    ("settings", "least"), [({"MAX_JOBS_PER_CHILD": 5}, 5), ({"MAX_CHILD_MEMORY": 1}, 25), ({}, 1)]
)
def test_children_are_replaced_by_count_and_by_memory(launch, settings, least):
    trigger(misdeeds.tell_pid, 25)
    process = launch("run_scheduler", "--processes", "1", settings=settings)
    wait_until(lambda: ended() == 25)
    assert stop(process)[0] == 0
    pids = set(Metadata.objects.values_list("output", flat=True))
    assert len(pids) >= least
    assert settings or len(pids) == 1


def test_a_frozen_process_loses_its_jobs_and_begins_anew(launch, witness):
    trigger(misdeeds.tick)
    frozen = launch("run_worker", "--processes", "1", settings=LEASE)
    wait_until(Process.objects.filter(kind="worker").exists)
    launch("run_scheduler", "--processes", "0", settings=LEASE)
    wait_until(lambda: running() == 1)
    everyone = [frozen.pid, *descendants(frozen.pid)]
    send_all(everyone, signal.SIGSTOP)
    helper = launch("run_worker", "--processes", "1", settings=LEASE)
    wait_until(lambda: ended(ExecutionState.FAILED) == 1)
    # What is thawed has a result at once.
    ticks.end(witness, Manifest.objects.get().external_id)
    send_all(everyone, signal.SIGCONT)
    wait_until(lambda: ended() == 1)
    wait_until(lambda: Process.objects.trusted().filter(pid=frozen.pid, lost_at__isnull=True).exists())
    assert Process.objects.filter(pid=frozen.pid).count() == 2, "it lives on under a new identity"
    (lost,) = Metadata.objects.filter(state=ExecutionState.FAILED)
    assert lost.failure_type == "lost"
    assert stop(frozen)[0] == 0
    assert stop(helper)[0] == 0


def test_a_thawed_child_begins_nothing_that_others_may_have(launch, witness):
    """Its supervisor is still frozen: nothing but its start tokens can tell it that its time is over."""
    launch("run_scheduler", "--processes", "0", settings=LEASE)
    frozen = launch("run_worker", "--processes", "1", settings=LEASE)
    _run_pings(misdeeds.leave_a_mark)
    fork_server, child = descendants(frozen.pid)
    wait_until(lambda: _stands_before(child, number=20, workflow=misdeeds.leave_a_mark))
    send_all([frozen.pid, fork_server], signal.SIGSTOP)
    held, before = _taken(), ended()
    helper = launch("run_worker", "--processes", "1", settings=LEASE)
    wait_until(lambda: ended() == before + PINGS)
    slept = switches(child)
    send_all([child], signal.SIGCONT)
    # Its reader and its main thread have come to their ends with all that was sent to it.
    wait_until(lambda: switches(child) >= slept + 2)
    send_all([frozen.pid, fork_server], signal.SIGCONT)
    wait_until(lambda: Process.objects.trusted().filter(pid=frozen.pid).exists())
    assert not held.intersection(run.execution for of_one in ticks.read(witness).values() for run in of_one)
    assert Metadata.objects.filter(state=ExecutionState.COMPLETED, attempt=2).count() == len(held)
    assert stop(frozen)[0] == 0
    assert stop(helper)[0] == 0


def test_a_scheduler_that_starts_takes_no_live_process_for_lost(launch, witness):
    """Even if all heartbeats look old, as after a jump of the database's clock: it has to watch them first."""
    rare_beats = {**LEASE, "HEARTBEAT_INTERVAL": 25, "PROCESS_EXPIRY": 60}
    trigger(misdeeds.tick)
    former = launch("run_scheduler", "--processes", "1", settings=rare_beats)
    wait_until(lambda: running() == 1)
    wait_until(Process.objects.exclude(turns={}).exists)
    lease = Process.objects.get()
    looked_old_at = lease.heartbeat_at - timedelta(hours=1)
    Process.objects.update(heartbeat_at=looked_old_at)
    other = launch("run_scheduler", "--processes", "1", settings={**rare_beats, "HEARTBEAT_INTERVAL": 0.5})
    wait_until(lambda: Process.objects.exclude(pk=lease.pk).exclude(turns={}).exists())
    wait_until(lambda: Process.objects.get(pk=lease.pk).heartbeat_at > looked_old_at)
    ticks.end(witness, Manifest.objects.get().external_id)
    wait_until(lambda: ended() == 1)
    assert Metadata.objects.get().process_id == lease.pk, "its first and only attempt"
    assert stop(other)[0] == 0
    assert stop(former)[0] == 0
    assert not Process.objects.filter(lost_at__isnull=False).exists()


def test_async_jobs_share_one_event_loop(launch):
    trigger(misdeeds.tell_loop, 6)
    process = launch("run_scheduler", "--processes", "1", "--threads", "6")
    wait_until(lambda: ended() == 6)
    assert stop(process)[0] == 0
    assert len({tuple(output) for output in Metadata.objects.values_list("output", flat=True)}) == 1


@pytest.mark.parametrize("command", ["run_scheduler", "run_worker"])
def test_nobody_has_to_read_what_a_process_says(launch, command):
    process = launch(command, "--processes", "1", "--for", "1")
    process.stdout.close()
    assert process.wait(PATIENCE) == 0


def test_jobs_run_in_threads_of_the_process_when_asked_to(launch):
    trigger(misdeeds.tell_pid, 3)
    process = launch("run_scheduler", "--processes", "2", "--in-process")
    wait_until(lambda: ended() == 3)
    assert set(Metadata.objects.values_list("output", flat=True)) == {process.pid}
    assert stop(process)[0] == 0


@pytest.mark.postgres
class TestPostgres:
    @pytest.mark.parametrize("command", [("run_scheduler",), ("run_worker",)])
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_signal_ends_the_wait_for_a_database_that_is_away(self, launch, tmp_path, command, number):
        process = launch(*command, "--processes", "1", through=tmp_path)
        assert "in trouble" in process.stdout.readline()
        below = descendants(process.pid)
        process.send_signal(number)
        assert process.wait(PATIENCE) == 0
        assert process.stdout.read() == ""
        wait_until(lambda: not any(is_running(pid) for pid in below))

    def test_terminated_connections_are_survived(self, launch):
        trigger(misdeeds.stay, 40, input=0.05)
        process = launch("run_scheduler", "--processes", "2", settings={**SHORT_LEASE, "PROCESS_EXPIRY": 30})
        for threshold in (3, 10, 20, 30):
            wait_until(functools.partial(_have_ended, threshold))
            _terminate_others()
        wait_until(lambda: ended() == 40)
        code, output = stop(process)
        assert code == 0, output
        assert ended(ExecutionState.FAILED) == 0

    def test_a_database_that_takes_no_writes_is_waited_for(self, launch, witness):
        # No heartbeat can be written, so the lease must outlast the refusals.
        process = launch("run_scheduler", "--processes", "2", settings={**SHORT_LEASE, "PROCESS_EXPIRY": 600})
        trigger(misdeeds.tick)
        wait_until(lambda: running() == 1)
        name = Manifest.objects.get().external_id
        trigger(workflows.ping, 5)
        with _read_only():
            ticks.end(witness, name)
            refused = _rolled_back()
            wait_until(lambda: _rolled_back() > refused + 20)
            finished = ended()
            wait_until(lambda: _rolled_back() > refused + 40)
            assert ended() == finished, "nothing can be written"
            assert process.poll() is None
        wait_until(lambda: ended() == 6)
        code, output = stop(process)
        assert code == 0, output
        assert ended(ExecutionState.FAILED) == 0, "what ran meanwhile is recorded afterwards"
        assert output.count("in trouble") <= 2, "once for the sessions that ended, once for the refusals"

    def test_a_result_is_written_without_waiting_for_an_interval(self, launch, witness):
        process = launch("run_scheduler", "--processes", "1", settings={"WORKER_INTERVAL": 600})
        trigger(misdeeds.tick)
        wait_until(lambda: ticks.read(witness))
        ticks.end(witness, Manifest.objects.get().external_id)
        wait_until(lambda: ended() == 1)
        assert stop(process)[0] == 0

    def test_other_processes_are_woken_without_waiting_for_their_interval(self, launch):
        slow = dict.fromkeys(("MANAGER_INTERVAL", "DISPATCHER_INTERVAL", "WORKER_INTERVAL"), 600)
        scheduler = launch("run_scheduler", "--processes", "0", settings=slow)
        worker = launch("run_worker", "--processes", "1", settings=slow)
        chain = Manifest.objects.schedule(workflows.ping, "first", None, None)
        Manifest.objects.schedule_dependent(workflows.ping, "second", None, depends_on="first")
        wait_until(lambda: _listeners() == 2)
        chain.trigger()
        wait_until(lambda: ended() == 2)
        assert stop(worker)[0] == 0
        assert stop(scheduler)[0] == 0

    def test_a_lost_listener_costs_time_and_no_work(self, launch):
        process = launch("run_scheduler", "--processes", "1")
        wait_until(lambda: _listeners() == 1)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name = 'chainsched listener'"
            )
        trigger(workflows.ping)
        wait_until(lambda: ended() == 1)
        wait_until(lambda: _listeners() == 1)
        assert stop(process)[0] == 0


@contextlib.contextmanager
def _read_only() -> Iterator[None]:
    """Let the sessions of all others be read-only."""
    _make_read_only(True)
    try:
        yield
    finally:
        _make_read_only(False)


def _make_read_only(is_on: bool) -> None:
    """Let every new session of others be read-only, and let them all connect anew."""
    with connection.cursor() as cursor:
        name = connection.ops.quote_name(connection.settings_dict["NAME"])
        cursor.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = {'on' if is_on else 'off'}")
    _terminate_others()


def _rolled_back() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


def _have_ended(number: int) -> bool:
    return ended() >= number


def _terminate_others() -> None:
    """End all sessions but our own, and wait until they have ended."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        others = [pid for (pid,) in cursor.fetchall()]
        cursor.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid", [others])
    wait_until(lambda: not _are_there(others))


def _are_there(sessions: list[int]) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = ANY(%s)", [sessions])
        return cursor.fetchone()[0] > 0


def _listeners() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s",
            ["chainsched listener"],
        )
        return int(cursor.fetchone()[0])
