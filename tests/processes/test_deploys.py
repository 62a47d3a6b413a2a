"""Two versions of the code at once, as in a rolling deploy."""

import pytest

from chainsched.models import Manifest, ManifestGroup, Metadata, Process
from tests.nextapp import workflows as next_workflows
from tests.processes.command import stop
from tests.processes.jobs import ended, trigger
from tests.testapp import workflows
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

NEXT = {"CHAINSCHED_TEST_MORE_APPS": "tests.nextapp"}


def test_what_only_the_next_version_knows_waits_for_it(launch):
    old = launch("run_scheduler", "--processes", "1")
    wait_until(lambda: Process.objects.exclude(turns={}).exists())
    greeting = Manifest.objects.schedule(next_workflows.greet, "greeting", None, None)
    greeting.trigger()
    trigger(workflows.ping, 5)
    wait_until(lambda: ended() == 5)
    assert greeting.explain().code == "no_capable_worker"
    assert not Metadata.objects.filter(manifest=greeting).exists(), "it was not dispatched, let alone failed"

    new = launch("run_worker", "--processes", "1", environment=NEXT)
    wait_until(lambda: ended() == 6)
    run = Metadata.objects.get(manifest=greeting)
    assert (run.output, run.process.pid, run.attempt) == ("hello", new.pid, 1)

    assert stop(new)[0] == 0
    greeting.trigger()
    ManifestGroup.objects.get(name="ping").trigger()
    wait_until(lambda: ended() == 11)
    assert greeting.explain().code == "no_capable_worker"
    code, output = stop(old)
    assert code == 0, output
    assert Metadata.objects.filter(manifest=greeting).count() == 1
