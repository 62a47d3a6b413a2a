"""Everything through a pooler of transactions: sessions are nobody's, and no notice is heard over them.

The tests that need the program ``pgbouncer`` are marked ``pooled_only``; in the others a wire that swallows notices
stands for it.
"""

import functools

import pytest
from django.db import connection

from chainsched.db.clock import database_now
from chainsched.domain.routing import Pool
from chainsched.domain.states import ExecutionState
from chainsched.flow.inspect.health import check_health
from chainsched.models import DeadLetter, Manifest, Metadata, Process
from tests.processes.command import database_url, stop
from tests.processes.pooler import PROGRAM, pooler
from tests.processes.proxy import proxy
from tests.testapp import misdeeds, workflows
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.postgres]
pooled_only = pytest.mark.skipif(PROGRAM is None, reason="needs the program pgbouncer, which is not installed")

TALKATIVE = {"CHAINSCHED_TEST_LOG_LEVEL": "INFO"}
SETTINGS = {"RETRY_DELAY": 1}
INTERVALS = ("MANAGER_INTERVAL", "DISPATCHER_INTERVAL", "WORKER_INTERVAL")


@pooled_only
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
    news = [line for line in logged if "Execution" not in line and "seeded" not in line]
    # A process that ends within the first seconds has not noticed it yet.
    assert all("hears no notices" in line for line in news)
    assert len(news) <= len(ends)


@pooled_only
def test_with_an_alias_that_connects_directly_all_is_heard(launch):
    """The intervals are so long that without notices the chain would never come to its end."""
    chain = declare_chain(3)
    with pooler() as directory:
        pooled = functools.partial(
            launch,
            settings={**dict.fromkeys(INTERVALS, 600), "LISTEN": "direct"},
            through=directory,
            environment={**TALKATIVE, "CHAINSCHED_TEST_DIRECT_URL": database_url()},
        )
        processes = [pooled("run_scheduler", "--processes", "0"), pooled("run_worker", "--processes", "1")]
        wait_until(lambda: Process.objects.exclude(turns={}).count() == 2 and _listeners() == 2)
        chain.trigger()
        wait_until(lambda: len(_completed()) == 3)
        ends = [stop(process) for process in processes]
    assert [code for code, _ in ends] == [0, 0], ends
    assert not any("notices" in output for _, output in ends)


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(lambda: proxy(swallows_notices=True), id="a wire that swallows notices"),
        pytest.param(pooler, id="a pooler", marks=pooled_only),
    ],
)
def test_without_notices_a_chain_does_not_wait_for_an_interval_at_each_step(launch, way, settings):
    """At the pace of the intervals the chain would take several times as long as the test waits."""
    settings.CHAINSCHED = {"MAX_JOB_DEPTH": 40}
    chain = declare_chain(30)
    with way() as found:
        directory = getattr(found, "directory", found)
        slow = functools.partial(
            launch, settings=dict.fromkeys(INTERVALS, 10), through=directory, environment=TALKATIVE
        )
        processes = [slow("run_scheduler", "--processes", "0"), slow("run_worker", "--processes", "1")]
        wait_until(lambda: Process.objects.filter(deaf_since__isnull=False).count() == 2)
        (note,) = check_health(pools=[Pool(["testapp.ping"])], now=database_now()).notes
        assert "hear no notices" in note
        chain.trigger()
        wait_until(lambda: len(_completed()) == 30)
        ends = [stop(process) for process in processes]
    assert [code for code, _ in ends] == [0, 0], ends
    assert [output.count("hears no notices") for _, output in ends] == [1, 1]


def test_a_process_that_hears_again_says_so_and_is_no_note_any_more(launch):
    with proxy(swallows_notices=True) as wire:
        process = launch("run_scheduler", "--processes", "1", through=wire.directory, environment=TALKATIVE)
        wait_until(lambda: Process.objects.filter(deaf_since__isnull=False).exists())
        assert wire.swallowed_notices > 0
        wire.swallows_notices = False
        wait_until(lambda: not Process.objects.filter(deaf_since__isnull=False).exists())
        code, output = stop(process)
    assert code == 0
    assert output.count("hears no notices") == output.count("hears notices again") == 1


def declare_chain(length: int) -> Manifest:
    """So many manifests, each of which runs after the one before it."""
    first = Manifest.objects.schedule(workflows.ping, "job-1", None, None)
    for number in range(2, length + 1):
        Manifest.objects.schedule_dependent(workflows.ping, f"job-{number}", None, depends_on=f"job-{number - 1}")
    return first


def _listeners() -> int:
    """How many processes listen over a session of their own, without a pooler in between."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s",
            ["chainsched listener"],
        )
        (number,) = cursor.fetchone()
    return int(number)


def _completed() -> list[str]:
    completed = Metadata.objects.filter(state=ExecutionState.COMPLETED)
    return sorted(completed.values_list("manifest_external_id", flat=True))
