"""What becomes of jobs and processes when the fork server is killed, frozen or left alone."""

import os
import signal

import pytest

from chainsched.domain.states import ExecutionState
from chainsched.models import Metadata, Process
from tests.processes.command import PATIENCE, stop
from tests.processes.jobs import SHORT_LEASE, ended, running, trigger
from tests.processes.tree import descendants, is_running
from tests.testapp import misdeeds
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

# So that only its own end can set a job free.
LEASE = {**SHORT_LEASE, "PROCESS_EXPIRY": 60, "HEARTBEAT_INTERVAL": 5}


@pytest.fixture
def busy(launch):
    """A scheduler, a worker with a job that takes long, and the fork server of that worker."""
    launch("run_scheduler", "--processes", "0", settings=LEASE)
    worker = launch("run_worker", "--processes", "1", settings={**LEASE, "SHUTDOWN_TIMEOUT": 3, "RETRY_DELAY": 0})
    trigger(misdeeds.start_and_wait)
    wait_until(lambda: running() == 1)
    fork_server, *_ = descendants(worker.pid)
    return worker, fork_server


def test_a_worker_fails_its_running_jobs_and_exits_when_its_fork_server_is_killed(busy):
    worker, fork_server = busy
    os.kill(fork_server, signal.SIGKILL)
    output, _ = worker.communicate(timeout=PATIENCE)
    assert worker.returncode == 1, output
    execution = Metadata.objects.get(state=ExecutionState.FAILED)
    assert execution.failure_type == "killed"
    assert Process.objects.get(pk=execution.process_id or 0).stopped_at is not None


def test_a_worker_with_a_frozen_fork_server_can_be_stopped(busy):
    worker, fork_server = busy
    os.kill(fork_server, signal.SIGSTOP)
    stop(worker)
    assert not is_running(fork_server)
    assert Process.objects.filter(pid=worker.pid, stopped_at__isnull=False).exists()


def test_who_kills_the_group_of_a_worker_leaves_nobody_behind(busy):
    worker, _ = busy
    # ForkServer, child, shell and what it started.
    below = wait_until(lambda: len(found := descendants(worker.pid)) == 4 and found)
    os.killpg(worker.pid, signal.SIGKILL)
    wait_until(lambda: not [pid for pid in below if is_running(pid)])


def test_a_process_ends_although_its_threads_do_not(launch):
    launch("run_scheduler", "--processes", "0", settings=LEASE)
    settings = {**LEASE, "SHUTDOWN_TIMEOUT": 1}
    worker = launch("run_worker", "--in-process", "--processes", "1", settings=settings)
    trigger(misdeeds.block_a_thread)
    wait_until(lambda: running() == 1)
    code, output = stop(worker)
    assert code == 1, output
    assert ended() == 0
