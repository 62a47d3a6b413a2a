"""Processes cut off from PostgreSQL: nothing runs beside itself, nothing late is written, and all goes on by itself."""

import functools
import time

import pytest
from django.db.models import F

from chainsched.domain.states import ExecutionState
from chainsched.models import Manifest, Metadata, Process
from tests.processes import ticks
from tests.processes.command import stop
from tests.processes.jobs import SHORT_LEASE, ended, running, trigger
from tests.processes.proxy import proxy
from tests.processes.servers import own_postgres
from tests.testapp import misdeeds, workflows
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.postgres]

# What is cut off has the time of one heartbeat to end before others may take its jobs, a quarter of the expiry at most:
# enough for a process that is not scheduled for a while.
EXPIRY = 20
LEASE = {
    **SHORT_LEASE,
    "HEARTBEAT_INTERVAL": EXPIRY / 4,
    "PROCESS_EXPIRY": EXPIRY,
    "MANAGER_INTERVAL": 0.5,
    "SHUTDOWN_TIMEOUT": 5,
}
# Some heartbeats are missed during a short cut, and the lease is far from running out.
LONG_LEASE = {**LEASE, "HEARTBEAT_INTERVAL": 1, "PROCESS_EXPIRY": 60}
SHORT_CUT = 4
LONG_CUT = 1.5 * EXPIRY
RECORDING = b'"ended_at" = '


@pytest.fixture
def wire():
    with proxy() as made:
        yield made


def test_a_result_whose_commit_was_not_answered_is_recorded_once(launch, wire):
    first = Manifest.objects.schedule(workflows.ping, "first", None, None)
    Manifest.objects.schedule_dependent(workflows.ping, "second", None, depends_on="first")
    process = launch("run_scheduler", "--processes", "1", settings=LONG_LEASE, through=wire.directory)
    wait_until(lambda: Process.objects.exclude(turns={}).exists())
    for number in range(1, 4):
        wire.lose_commit_after(RECORDING)
        first.trigger()
        wait_until(functools.partial(_has_happened, wire, number))
        wait_until(functools.partial(_have_ended, 2 * number))
    code, output = stop(process)
    assert code == 0, output
    assert wire.lost_answers == 3
    assert ended() == Metadata.objects.count() == 6, "three of each, and no attempt more"
    assert output.count("came too late") == 3, "what was written is found written"


def _has_happened(wire, number):
    return wire.lost_answers == number


def _have_ended(number):
    return ended() == number


@pytest.mark.parametrize(
    ("seconds", "is_for_ever"), [(SHORT_CUT, False), (EXPIRY, False), (LONG_CUT, False), (LONG_CUT, True)]
)
def test_a_worker_that_is_cut_off(launch, wire, witness, seconds, is_for_ever):
    is_lost = seconds >= EXPIRY
    settings = LEASE if is_lost else LONG_LEASE
    launch("run_scheduler", "--processes", "0", settings=settings)
    cut_off = launch("run_worker", "--processes", "3", settings=settings, through=wire.directory)
    trigger(misdeeds.tick, 3)
    wait_until(lambda: running() == 3)
    helper = launch("run_worker", "--processes", "3", settings=settings)
    wait_until(lambda: Process.objects.filter(kind="worker").exclude(turns={}).count() == 2)
    first, *others = Manifest.objects.order_by("id").values_list("external_id", flat=True)

    first_identity = _identity(cut_off)
    wire.cut()
    cut_at = time.monotonic()
    if is_for_ever:
        wire.forget()
    ticks.end(witness, first)
    if seconds > EXPIRY:
        wait_until(lambda: running() == 2 and ended() == 1 and ended(ExecutionState.FAILED) == 3)
    wait_until(lambda: time.monotonic() > cut_at + seconds)
    wire.mend()
    for other in others:
        ticks.end(witness, other)
    wait_until(lambda: ended() == 3)

    assert ticks.overlaps(witness) == []
    assert _late() == []
    assert not is_lost or max(run.ended for run in _runs_of(cut_off, witness)) < cut_at + EXPIRY
    assert (ended(ExecutionState.FAILED) > 0) is is_lost
    wait_until(lambda: _identity(cut_off) not in (None, first_identity) if is_lost else True)
    assert is_lost or _identity(cut_off) == first_identity
    assert stop(helper)[0] == 0
    trigger(workflows.ping)
    wait_until(lambda: ended() == 4)
    code, output = stop(cut_off)
    assert code == 0, output
    assert output.count("in trouble") <= 1


def test_a_database_that_stands_still(launch, witness):
    with own_postgres() as postgres:
        scheduler = launch("run_scheduler", "--processes", "0", settings=LEASE)
        workers = [launch("run_worker", "--processes", "2", settings=LEASE) for _ in range(2)]
        wait_until(lambda: Process.objects.exclude(turns={}).count() == 3)
        trigger(misdeeds.tick, 4)
        wait_until(lambda: running() == 4)

        postgres.pause()
        paused_at = time.monotonic()
        wait_until(lambda: time.monotonic() > paused_at + LONG_CUT)
        postgres.resume()
        assert max(run.ended for runs in ticks.read(witness).values() for run in runs) < paused_at + EXPIRY
        for manifest in Manifest.objects.values_list("external_id", flat=True):
            ticks.end(witness, manifest)
        wait_until(lambda: ended() == 4)

        assert ticks.overlaps(witness) == []
        assert _late() == []
        assert ended(ExecutionState.FAILED) == 4, "lost, each once"
        for process in (*workers, scheduler):
            code, output = stop(process)
            assert code == 0, output
            assert output.count("in trouble") <= 1


def _late():
    """What a process took or finished after others had declared it lost."""
    completed = Metadata.objects.filter(state=ExecutionState.COMPLETED, ended_at__gt=F("process__lost_at"))
    return [*completed, *Metadata.objects.filter(claimed_at__gt=F("process__lost_at"))]


def _runs_of(worker, witness):
    """The runs under the first identity of a worker, by what they said themselves."""
    process = Process.objects.filter(pid=worker.pid).earliest("id")
    theirs = set(Metadata.objects.filter(process=process).values_list("id", flat=True))
    return [run for runs in ticks.read(witness).values() for run in runs if run.execution in theirs]


def _identity(worker):
    """The id under which a worker is trusted."""
    return Process.objects.trusted().filter(pid=worker.pid).values_list("id", flat=True).last()
