"""A PostgreSQL that has no connection to give: processes wait for one, longer each time, and none of them ends."""

import time
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from django.db import connection

from chainsched.domain.states import ExecutionState
from chainsched.models import Process
from tests.processes.command import database_url, stop
from tests.processes.jobs import SHORT_LEASE, ended, trigger
from tests.processes.servers import own_postgres
from tests.testapp import workflows
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.postgres]

# Less than the time without connections, and more than that for which a process may not be scheduled.
LEASE = {**SHORT_LEASE, "PROCESS_EXPIRY": 8}
SECONDS = 10
OTHERS = "FROM pg_stat_activity WHERE backend_type = 'client backend' AND application_name <> 'greedy'"


def test_too_few_connections_are_waited_for(launch):
    with own_postgres(max_connections="12"), ExitStack() as greed:
        processes = [
            launch("run_scheduler", "--processes", "1", settings=LEASE),
            launch("run_worker", "--processes", "1", settings=LEASE),
        ]
        wait_until(lambda: Process.objects.count() == 2)
        raids: list[float] = []
        wait_until(lambda: _take_all_connections(greed, raids))
        trigger(workflows.ping, 5)
        refused, since = _refused(), time.monotonic()
        wait_until(lambda: time.monotonic() > since + SECONDS and _refused() > refused + 5)
        # Fifteen threads that wait up to ten seconds, longer each time.
        assert _refused() - refused < 15 * (time.monotonic() - since)
        assert [process.poll() for process in processes] == [None, None]
        greed.close()
        wait_until(lambda: ended() == 5)
        for process in reversed(processes):
            code, output = stop(process)
            assert code == 0, output
            assert output.count("in trouble") <= 1 + len(raids), "at each raid, and when all want one again"
        assert ended(ExecutionState.FAILED) == 0


def _take_all_connections(greed: ExitStack, raids: list[float]) -> bool:
    """End the sessions of others and take their places; whether all are ours now."""
    raids.append(time.monotonic())
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(pg_terminate_backend(pid)) {OTHERS} AND pid <> pg_backend_pid()")
        try:
            while True:
                greed.enter_context(psycopg.connect(database_url(), application_name="greedy"))
        except psycopg.OperationalError:
            cursor.execute(f"SELECT count(*) {OTHERS}")
            return cursor.fetchone()[0] == 1


def _refused() -> int:
    """How often somebody was turned away."""
    return (Path(connection.settings_dict["HOST"]) / "server.log").read_text().count("too many clients")
