"""Reaping: dead processes lose their jobs, live ones never do."""

from datetime import timedelta

import pytest

from chainsched.domain.states import ExecutionState
from chainsched.flow.maintain.reap import Reaped
from chainsched.models import Metadata, Process, WorkQueue
from tests.drive import reap_silent
from tests.factories import NOW, make_execution, make_manifest, make_process

pytestmark = pytest.mark.django_db

EXPIRED = NOW - timedelta(seconds=31)


def running(process, **columns):
    return make_execution(
        make_manifest(state={}),
        **{"state": ExecutionState.IN_PROGRESS, "process": process, "started_at": NOW, **columns},
    )


def test_a_silent_process_loses_its_jobs_which_are_retried_at_once():
    execution = running(make_process(heartbeat_at=EXPIRED))
    assert reap_silent(now=NOW) == Reaped(processes=1, lost=1)
    execution.refresh_from_db()
    assert (execution.state, execution.failure_type) == (ExecutionState.FAILED, "lost")
    assert Process.objects.get().lost_at == NOW
    assert WorkQueue.objects.get().not_before == NOW


def test_a_live_process_keeps_its_jobs():
    execution = running(make_process(heartbeat_at=NOW - timedelta(seconds=29)))
    assert reap_silent(now=NOW) == Reaped()
    execution.refresh_from_db()
    assert execution.state == ExecutionState.IN_PROGRESS


def test_jobs_of_a_stopped_or_vanished_process_are_lost_too():
    running(make_process(stopped_at=NOW))
    gone = make_process()
    running(gone)
    gone.delete()
    assert reap_silent(now=NOW).lost == 2


def test_each_job_that_a_lost_process_took_has_used_an_attempt():
    """Whether its code had begun is not known: so a job that kills its worker at once is not run for ever."""
    execution = running(make_process(heartbeat_at=EXPIRED), claimed_at=EXPIRED, started_at=EXPIRED)
    assert reap_silent(now=NOW) == Reaped(processes=1, lost=1)
    execution.refresh_from_db()
    assert (execution.state, execution.started_at) == (ExecutionState.FAILED, EXPIRED)
    assert WorkQueue.objects.get().attempt == 2


def test_reaping_twice_does_nothing_more():
    running(make_process(heartbeat_at=EXPIRED))
    reap_silent(now=NOW)
    assert reap_silent(now=NOW) == Reaped()
    assert Metadata.objects.count() == 1
