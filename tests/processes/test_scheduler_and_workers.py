"""A scheduler and two workers as separate processes: each due occurrence runs exactly once."""

from collections import Counter

import pytest
from django.db import connection

from chainsched import Every, ManifestItem
from chainsched.db.clock import database_now
from chainsched.domain.states import ExecutionState
from chainsched.flow.schedule.declare import Schedules
from chainsched.flow.schedule.seed import seed
from chainsched.models import Metadata, Process, WorkQueue
from tests.processes.command import PATIENCE, stop
from tests.processes.tree import descendants
from tests.testapp import misdeeds, workflows
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


def completed(minimum):
    return lambda: Metadata.objects.filter(state=ExecutionState.COMPLETED).count() >= minimum


def test_each_due_occurrence_runs_exactly_once(launch):
    schedules = Schedules()
    # So long that one worker claims but a few of them ahead, and cannot do them all while the other is not scheduled.
    schedules.schedule(misdeeds.stay, "steady", 0.2, Every.seconds(1))
    schedules.schedule_many(misdeeds.stay, "many", [ManifestItem(str(n), 0.5) for n in range(60)], Every.hours(1))
    seed(schedules, now=database_now())
    workers = [launch("run_worker", "--processes", "2") for _ in range(2)]
    wait_until(lambda: Process.objects.exclude(turns={}).count() == 2 and all(map(_has_children, workers)))
    scheduler = launch("run_scheduler", "--processes", "0", settings={"MANAGER_INTERVAL": 0.5})
    wait_until(completed(65))
    ends = [stop(process) for process in (scheduler, *workers)]
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


def _has_children(worker):
    """Whether the fork server and both children have started."""
    return len(descendants(worker.pid)) == 3


def test_once_with_child_processes_waits_for_what_it_started(launch):
    schedules = Schedules()
    schedules.schedule_many(workflows.ping, "many", [ManifestItem(str(n)) for n in range(2)], Every.hours(1))
    seed(schedules, now=database_now())
    process = launch("run_scheduler", "--once", "--processes", "2")
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output
    assert list(Metadata.objects.values_list("state", "claims")) == [(ExecutionState.COMPLETED, 1)] * 2


def _assert_never_overlapping(executions):
    previous = None
    for execution in executions:
        if previous is not None:
            assert execution.created_at >= previous.ended_at
        previous = execution
