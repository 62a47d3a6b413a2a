"""What one job does to the process that runs it is not felt by those that come after it."""

import pytest

from chainsched.domain.states import ExecutionState
from chainsched.models import Manifest, Metadata
from tests.processes.command import stop
from tests.testapp import misdeeds
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


def run(launch, *jobs, threads=1):
    """Run jobs one after the other in one child; returns how the last attempt of each ended."""
    process = launch("run_scheduler", "--processes", "1", "--threads", str(threads), settings={"KILL_GRACE": 1})
    for number, (workflow, value, timeout) in enumerate(jobs):
        name = f"{number}-{workflow.__name__}"
        Manifest.objects.schedule(workflow, name, value, None, max_retries=1, timeout=timeout).trigger()
        wait_until(_ended(name).exists, timeout=20)
    code, output = stop(process)
    assert code == 0, output
    return list(Metadata.objects.order_by("manifest_external_id")), output


def test_progress_that_cannot_be_stored_holds_nothing_up(launch):
    (first,), output = run(launch, (misdeeds.boast, None, None))
    assert (first.state, first.output) == (ExecutionState.COMPLETED, "boasted")
    assert first.progress == {"done": None, "total": None, "message": "a\ufffdb\ufffd"}
    assert "failed" not in output


def test_a_copy_of_the_process_speaks_for_no_job(launch):
    (first,), _ = run(launch, (misdeeds.part_ways, None, None))
    assert (first.state, first.output) == (ExecutionState.COMPLETED, "whole"), first.failure_reason


def _ended(name):
    return Metadata.objects.filter(manifest_external_id=name, ended_at__isnull=False)
