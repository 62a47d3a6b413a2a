"""Whatever lets a queued row start wakes the dispatcher, in whichever process it happens."""

from datetime import timedelta

import pytest

from chainsched import Every
from chainsched.db import notify
from chainsched.domain import outcomes
from chainsched.domain.outcomes import Finished
from chainsched.flow.maintain.fsck import reconcile, run_fsck
from chainsched.flow.maintain.recall import recall
from chainsched.flow.run.claim import claim
from chainsched.flow.run.record import record
from chainsched.models import DeadLetter, Manifest, ManifestGroup, Metadata, WorkQueue
from chainsched.registry import registry
from tests.drive import executions_of, manifest
from tests.testapp import workflows

pytestmark = pytest.mark.django_db

HOURLY = Every.hours(1)


def group() -> ManifestGroup:
    return ManifestGroup.objects.get(name="g")


def queue(bench, **options):
    """A manifest whose row waits."""
    Manifest.objects.schedule(workflows.ping, "job", None, HOURLY, group="g", **options)
    bench.manage()


def run(bench, **options):
    """A manifest that runs."""
    queue(bench, **options)
    bench.dispatch()
    claim(process=bench.process, workflows=registry.names(), limit=10, now=bench.now)


def fail(bench, **options):
    """A manifest whose run has failed."""
    run(bench, **options)
    (execution,) = executions_of("job")
    record([Finished(execution.id, outcomes.raised(RuntimeError("broken")))], by=bench.process, now=bench.now)


def a_limit_that_is_raised(bench):
    queue(bench, group_max_active_jobs=1)
    return lambda: group().set_limits(max_active_jobs=5, priority=0)


def a_group_that_is_enabled(bench):
    queue(bench)
    group().disable()
    return group().enable


def a_manifest_that_is_enabled(bench):
    queue(bench)
    manifest("job").disable()
    return manifest("job").enable


def a_trigger_of_a_manifest(bench):
    Manifest.objects.schedule(workflows.ping, "job", None, None, group="g")
    return manifest("job").trigger


def a_trigger_of_a_retry_that_waits(bench):
    fail(bench, max_retries=3)
    return manifest("job").trigger


def a_row_that_is_brought_forward(bench):
    fail(bench, max_retries=3)
    return WorkQueue.objects.queued().get().bring_forward


def a_letter_that_is_retried(bench):
    fail(bench, max_retries=0)
    return DeadLetter.objects.get().retry


def let_another_wait(bench):
    Manifest.objects.schedule(workflows.ping, "other", None, HOURLY, group="g")
    bench.manage()


def a_run_that_ends(bench):
    run(bench, group_max_active_jobs=1)
    let_another_wait(bench)
    (execution,) = executions_of("job")
    return lambda: record([Finished(execution.id, outcomes.completed(None))], by=bench.process, now=bench.now)


def a_pending_execution_that_is_cancelled(bench):
    queue(bench, group_max_active_jobs=1)
    bench.dispatch()
    let_another_wait(bench)
    return Metadata.objects.get().cancel


def a_run_from_here(bench):
    Manifest.objects.schedule(workflows.ping, "head", None, HOURLY, group="g")
    Manifest.objects.schedule_dependent(workflows.ping, "job", None, depends_on="head", group="g")
    bench.drain()
    return executions_of("job")[0].run_from_here


def a_declaration_that_raises_the_limit(bench):
    queue(bench, group_max_active_jobs=1)
    return lambda: Manifest.objects.schedule(workflows.ping, "job", None, HOURLY, group="g", group_max_active_jobs=5)


def a_declaration_that_enables(bench):
    queue(bench)
    manifest("job").disable()
    return lambda: Manifest.objects.schedule(workflows.ping, "job", None, HOURLY, group="g", enabled=True)


def a_manifest_that_is_due(bench):
    Manifest.objects.schedule(workflows.ping, "job", None, HOURLY, group="g")
    return bench.manage


def a_declaration_that_raises_the_priority(bench):
    queue(bench)
    return lambda: Manifest.objects.schedule(workflows.ping, "job", None, HOURLY, group="g", priority=9)


def a_declaration_that_moves_to_another_group(bench):
    queue(bench, group_max_active_jobs=1)
    return lambda: Manifest.objects.schedule(workflows.ping, "job", None, HOURLY, group="other")


def a_declaration_of_another_workflow(bench):
    queue(bench)
    return lambda: Manifest.objects.schedule(workflows.fail, "job", None, HOURLY, group="g")


def an_activation(bench):
    Manifest.objects.schedule(workflows.ping, "parent", None, None, group="g")
    Manifest.objects.schedule_dependent(workflows.ping, "job", None, depends_on="parent", dormant=True, group="g")
    return manifest("job").activate


def a_recall(bench):
    queue(bench)
    bench.dispatch()
    return lambda: recall(workflows=["another"], now=bench.now)


def put_aside(bench):
    """A row that could not be dispatched."""
    queue(bench)
    WorkQueue.objects.put_aside({WorkQueue.objects.get().id: "it does not fit"}, now=bench.now)


def a_row_that_was_put_aside_and_is_brought_forward(bench):
    put_aside(bench)
    return WorkQueue.objects.get().bring_forward


def a_trigger_of_a_row_that_was_put_aside(bench):
    put_aside(bench)
    return manifest("job").trigger


def a_repair_of_what_was_put_aside(bench):
    put_aside(bench)
    return lambda: run_fsck(now=bench.now, repair=True)


def a_reconciliation_of_what_was_put_aside(bench):
    put_aside(bench)
    return lambda: reconcile(now=bench.now + timedelta(hours=1))


WAYS = [
    a_limit_that_is_raised,
    a_group_that_is_enabled,
    a_manifest_that_is_enabled,
    a_trigger_of_a_manifest,
    a_trigger_of_a_retry_that_waits,
    a_row_that_is_brought_forward,
    a_letter_that_is_retried,
    a_run_that_ends,
    a_pending_execution_that_is_cancelled,
    a_run_from_here,
    a_declaration_that_raises_the_limit,
    a_declaration_that_enables,
    a_manifest_that_is_due,
    a_declaration_that_raises_the_priority,
    a_declaration_that_moves_to_another_group,
    a_declaration_of_another_workflow,
    an_activation,
    a_recall,
    a_row_that_was_put_aside_and_is_brought_forward,
    a_trigger_of_a_row_that_was_put_aside,
    a_repair_of_what_was_put_aside,
    a_reconciliation_of_what_was_put_aside,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.replace("_", " "))
def test_the_dispatcher_is_woken_by(bench, way, monkeypatch, django_capture_on_commit_callbacks):
    act = way(bench)
    woken: list[str] = []
    monkeypatch.setattr(notify, "send", woken.append)
    with django_capture_on_commit_callbacks(execute=True):
        act()
    assert notify.DISPATCHER in woken


def test_a_declaration_that_changes_nothing_wakes_no_one(bench, monkeypatch, django_capture_on_commit_callbacks):
    queue(bench)
    woken: list[str] = []
    monkeypatch.setattr(notify, "send", woken.append)
    with django_capture_on_commit_callbacks(execute=True):
        Manifest.objects.schedule(workflows.ping, "job", None, HOURLY, group="g")
    assert woken == []
