"""A scheduler and two workers as separate processes: each due occurrence runs exactly once."""

from collections import Counter

import pytest
from django.db import connection

from chainsched import Every, ManifestItem
from chainsched.domain.states import ExecutionState
from chainsched.flow.declare import Schedules
from chainsched.flow.seed import seed
from chainsched.models import Metadata, Process, WorkQueue
from chainsched.models.clock import database_now
from tests.processes.command import start, stop
from tests.testapp import workflows
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


def completed(minimum):
    return lambda: Metadata.objects.filter(state=ExecutionState.COMPLETED).count() >= minimum


def test_each_due_occurrence_runs_exactly_once():
    schedules = Schedules()
    schedules.schedule(workflows.copy, "steady", workflows.Slice("t"), Every.seconds(1))
    schedules.schedule_many(workflows.ping, "many", [ManifestItem(str(n)) for n in range(60)], Every.hours(1))
    seed(schedules, now=database_now())
    processes = [start("run_worker", "--processes", "2"), start("run_worker", "--processes", "2")]
    processes.append(start("run_scheduler", "--processes", "0"))
    try:
        wait_until(completed(65))
    finally:
        ends = [stop(process) for process in reversed(processes)]
    assert [code for code, _ in ends] == [0, 0, 0], ends

    rows = WorkQueue.objects.filter(execution__isnull=False).values_list("execution_id", flat=True)
    assert len(rows) == len(set(rows)) == Metadata.objects.count()
    runs = Counter(Metadata.objects.values_list("manifest_external_id", flat=True))
    assert {name for name, number in runs.items() if number > 1} <= {"steady"}
    assert sum(runs.values()) - runs["steady"] == 60
    _assert_never_overlapping(Metadata.objects.filter(manifest_external_id="steady").order_by("id"))
    assert Process.objects.filter(stopped_at__isnull=True).count() == 0
    if connection.vendor == "postgresql":
        assert Metadata.objects.filter(ended_at__isnull=False).values("process").distinct().count() == 2


def _assert_never_overlapping(executions):
    previous = None
    for execution in executions:
        if previous is not None:
            assert execution.created_at >= previous.ended_at
        previous = execution


def test_a_killed_worker_loses_its_job_to_another_one(settings):
    schedules = Schedules()
    schedules.schedule(workflows.ping, "job", None, Every.hours(1))
    seed(schedules, now=database_now())
    worker = start("run_worker", "--processes", "1")
    wait_until(lambda: Process.objects.filter(kind="worker").exists())
    worker.kill()
    worker.communicate()
    # What a process that died in the middle of its job leaves behind.
    dead = Process.objects.get(kind="worker")
    Process.objects.update(heartbeat_at="2020-01-01T00:00Z")
    scheduler = start("run_scheduler", "--processes", "1")
    try:
        wait_until(completed(1))
    finally:
        code, output = stop(scheduler)
    assert code == 0, output
    dead.refresh_from_db()
    assert dead.lost_at is not None
