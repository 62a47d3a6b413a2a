"""Connections to PostgreSQL that are dead without anybody knowing: a scheduler goes on over new ones."""

import time

import pytest
from django.db import connection

from chainsched.models import Manifest, Process
from tests.processes.command import stop
from tests.processes.jobs import SHORT_LEASE, ended
from tests.processes.proxy import proxy
from tests.testapp import workflows
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.postgres]

EXPIRY = 4
LEASE = {**SHORT_LEASE, "PROCESS_EXPIRY": EXPIRY, "MANAGER_INTERVAL": 0.5, "DISPATCHER_INTERVAL": 0.5}


@pytest.mark.parametrize("is_lost", ["before", "during"])
def test_a_scheduler_goes_on_after_all_its_connections_went_silent(launch, is_lost):
    with proxy() as wire:
        scheduler = launch("run_scheduler", "--processes", "1", settings=LEASE, through=wire.directory)
        manifest = Manifest.objects.schedule(workflows.ping, "job", None, None)
        manifest.trigger()
        wait_until(lambda: ended() == 1)

        wire.cut()
        cut_at = time.monotonic()
        if is_lost == "before":
            wire.forget()
        wait_until(lambda: time.monotonic() > cut_at + 2 * EXPIRY)
        if is_lost == "during":
            wire.forget()
        wire.mend()
        manifest.trigger()
        wait_until(lambda: ended() == 2)

        wait_until(lambda: Process.objects.trusted().count() == 1)
        code, output = stop(scheduler)
    assert code == 0, output
    assert "lost its lease" in output


@pytest.mark.parametrize("command", ["run_scheduler", "run_worker"])
def test_a_connection_that_is_lost_during_the_start_is_renewed(launch, command):
    held = connection.copy()
    try:
        held.set_autocommit(False)
        with held.cursor() as cursor:
            cursor.execute("LOCK TABLE django_migrations IN ACCESS EXCLUSIVE MODE")
        process = launch(command, "--processes", "1", settings=LEASE)
        wait_until(_end_whoever_waits)
    finally:
        held.close()
    wait_until(lambda: Process.objects.trusted().exists())
    assert stop(process)[0] == 0


def _end_whoever_waits():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return cursor.fetchone()[0]
