"""A storm of retries: everything fails at once, and neither the loops nor the log run hot."""

import logging
import threading
from collections import Counter

import pytest
from django.db import connections

from chainsched.domain.loops import LOOPS
from chainsched.domain.states import ExecutionState
from chainsched.models import DeadLetter, Metadata
from chainsched.runtime.loops.poller import Poller
from chainsched.runtime.process.supervisor import Roles, Supervisor
from tests.processes.jobs import trigger
from tests.testapp import workflows
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

JOBS = 1000
ATTEMPTS = 3


@pytest.fixture
def turns(monkeypatch):
    """How many turns each loop took."""
    counted: Counter[str] = Counter()
    take_turn = Poller._take_turn

    def count(poller):
        counted[poller.name] += 1
        return take_turn(poller)

    monkeypatch.setattr(Poller, "_take_turn", count)
    return counted


@pytest.mark.timeout(360)
def test_jobs_that_all_fail_make_neither_turns_nor_lines_without_end(turns, caplog, settings):
    settings.CHAINSCHED = {"RETRY_DELAY": 2, "MAX_RETRIES": ATTEMPTS}
    trigger(workflows.fail, JOBS)
    supervisor = Supervisor(Roles("scheduler", LOOPS, processes=8))
    thread = threading.Thread(target=_run, args=(supervisor,))
    with caplog.at_level(logging.INFO, "chainsched"):
        thread.start()
        try:
            wait_until(lambda: DeadLetter.objects.count() == JOBS, timeout=240, interval=0.5)
        finally:
            supervisor.stop()
            thread.join(60)
    assert not thread.is_alive()
    assert Metadata.objects.filter(state=ExecutionState.FAILED).count() == JOBS * ATTEMPTS
    _assert_waits_grow()
    # The worker turns for results, some at a time; the others for what it brings, or for the next alarm.
    for loop, number in turns.items():
        assert number < JOBS * ATTEMPTS, (loop, number)
    assert len(caplog.records) < JOBS * ATTEMPTS / 4


def _run(supervisor):
    supervisor.run()
    connections.close_all()


def _assert_waits_grow():
    """Each attempt comes after the wait before it, less what chance may take from it."""
    waits = {2: 2 * 0.9, 3: 4 * 0.9}
    ends = dict(Metadata.objects.values_list("manifest_external_id", "ended_at").filter(attempt=1))
    for attempt, least in waits.items():
        rows = Metadata.objects.filter(attempt=attempt).values_list("manifest_external_id", "started_at", "ended_at")
        found = {name: (started, ended) for name, started, ended in rows}
        assert all((started - ends[name]).total_seconds() >= least for name, (started, _) in found.items())
        ends = {name: ended for name, (_, ended) in found.items()}
