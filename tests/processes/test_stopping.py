"""Processes that are told to stop while PostgreSQL is in trouble, or that outlive a trouble of its tables."""

import time

import pytest
from django.db import connection

from chainsched.models import Process
from tests.processes.command import stop
from tests.processes.jobs import SHORT_LEASE, ended, trigger
from tests.processes.servers import own_postgres
from tests.testapp import workflows
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.postgres]

COMMANDS = ["run_scheduler", "run_worker"]
EXPIRY = SHORT_LEASE["PROCESS_EXPIRY"]
TIMEOUT = 3
# The lease may take some seconds more, and so may a machine that has much to do; whoever waits for a lease to run out,
# or for an answer, takes longer.
PATIENCE = TIMEOUT + 40
LONG_LEASE = {"SHUTDOWN_TIMEOUT": TIMEOUT, "PROCESS_EXPIRY": 600}
LEASE = {**SHORT_LEASE, "SHUTDOWN_TIMEOUT": TIMEOUT}


@pytest.mark.parametrize("command", COMMANDS)
def test_one_that_runs_nothing_stops_while_the_server_is_away(launch, command):
    with own_postgres() as postgres:
        process = launch(command, "--processes", "1", settings=LONG_LEASE)
        wait_until(lambda: Process.objects.exclude(turns={}).exists())
        with postgres.stopped():
            code, output = stop(process, timeout=PATIENCE)
    assert code == 0, output
    assert "did not finish" not in output
    assert "could not release its lease" in output


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("settings", "seconds"), [(LONG_LEASE, 0), (LONG_LEASE, 3), (LEASE, 2 * EXPIRY)])
def test_one_that_runs_nothing_stops_while_the_server_stands_still(launch, command, settings, seconds):
    with own_postgres() as postgres:
        process = launch(command, "--processes", "1", settings=settings)
        wait_until(lambda: Process.objects.exclude(turns={}).exists())
        postgres.pause()
        paused_at = time.monotonic()
        wait_until(lambda: time.monotonic() > paused_at + seconds)
        code, output = stop(process, timeout=PATIENCE)
    assert code == 0, output
    assert "did not finish" not in output


@pytest.mark.parametrize("command", COMMANDS)
def test_a_table_may_be_missing_for_a_while(launch, command):
    if command == "run_worker":
        launch("run_scheduler", "--processes", "0", settings=LEASE)
    process = launch(command, "--processes", "1", settings=LEASE)
    wait_until(lambda: Process.objects.exclude(turns={}).filter(pid=process.pid).exists())
    known = set(Process.objects.values_list("pk", flat=True))
    _rename("chainsched_process", "elsewhere")
    since = time.monotonic()
    try:
        wait_until(lambda: time.monotonic() > since + 2 * EXPIRY)
    finally:
        _rename("elsewhere", "chainsched_process")
    wait_until(lambda: Process.objects.trusted().filter(pid=process.pid).exclude(pk__in=known).exists())
    trigger(workflows.ping)
    wait_until(lambda: ended() == 1)
    code, output = stop(process)
    assert code == 0, output


def _rename(table, name):
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME TO {name}")
