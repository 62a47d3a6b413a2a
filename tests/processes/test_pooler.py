"""Everything through a pooler that pools transactions: sessions are nobody's, and nothing is heard over them."""

import functools

import pytest

from chainsched.domain.states import ExecutionState
from chainsched.models import DeadLetter, Manifest, Metadata, Process
from tests.processes.command import stop
from tests.processes.pooler import PROGRAM, pooler
from tests.testapp import misdeeds, workflows
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
    pytest.mark.postgres,
    pytest.mark.skipif(PROGRAM is None, reason="needs the program pgbouncer, which is not installed"),
]

TALKATIVE = {"CHAINSCHED_TEST_LOG_LEVEL": "INFO"}
SETTINGS = {"RETRY_DELAY": 1}


def test_everything_works_through_a_pooler_of_transactions(launch):
    chain = Manifest.objects.schedule(workflows.ping, "first", None, None)
    Manifest.objects.schedule_dependent(workflows.ping, "second", None, depends_on="first")
    again = Manifest.objects.schedule(workflows.stumble, "again", workflows.Slice("t"), None)
    hopeless = Manifest.objects.schedule(workflows.fail, "hopeless", None, None, max_retries=2)
    endless = Manifest.objects.schedule(misdeeds.stop_when_told, "endless", None, None)
    with pooler() as directory:
        pooled = functools.partial(launch, settings=SETTINGS, through=directory, environment=TALKATIVE)
        scheduler, worker = pooled("run_scheduler", "--processes", "2"), pooled("run_worker", "--processes", "2")
        wait_until(lambda: Process.objects.exclude(turns={}).count() == 2)
        for manifest in (chain, again, hopeless, endless):
            manifest.trigger()
        wait_until(lambda: Metadata.objects.in_progress().filter(progress__done__gt=1).exists())
        endless.cancel()
        wait_until(lambda: DeadLetter.objects.exists() and _completed() == ["again", "first", "second"])
        wait_until(lambda: not Metadata.objects.active().exists())
        ends = [stop(process) for process in (worker, scheduler)]
    assert [code for code, _ in ends] == [0, 0], ends
    assert Metadata.objects.get(manifest_external_id="endless").state == ExecutionState.CANCELLED
    assert DeadLetter.objects.get().execution.manifest_external_id == "hopeless"
    assert not Process.objects.filter(lost_at__isnull=False).exists()
    logged = [line for _, output in ends for line in output.splitlines() if " chainsched." in line]
    assert [line for line in logged if "Execution" not in line and "seeded" not in line] == []


def _completed() -> list[str]:
    completed = Metadata.objects.filter(state=ExecutionState.COMPLETED)
    return sorted(completed.values_list("manifest_external_id", flat=True))
