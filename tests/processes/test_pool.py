"""Processes whose settings ask for Django's connection pool, which has fewer connections than they have threads."""

from datetime import timedelta

import pytest
from django.db.models import F

from chainsched.models import Process
from tests.processes.command import stop
from tests.processes.jobs import SHORT_LEASE, ended, trigger
from tests.testapp import workflows
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.postgres]

POOL = {"CHAINSCHED_TEST_POOL": "true"}
EXPIRY = 10
LEASE = {**SHORT_LEASE, "PROCESS_EXPIRY": EXPIRY}


def test_processes_keep_their_leases_and_run_jobs_where_there_is_a_pool(launch):
    scheduler = launch("run_scheduler", "--processes", "1", settings=LEASE, environment=POOL)
    worker = launch("run_worker", "--processes", "1", settings=LEASE, environment=POOL)
    renewed = Process.objects.filter(heartbeat_at__gte=F("started_at") + timedelta(seconds=EXPIRY))
    wait_until(lambda: renewed.count() == 2)
    trigger(workflows.ping, 5)
    wait_until(lambda: ended() == 5)
    for process in (worker, scheduler):
        code, output = stop(process)
        assert code == 0, output
    assert list(Process.objects.order_by("kind").values_list("kind", "lost_at")) == [
        ("scheduler", None),
        ("worker", None),
    ]
