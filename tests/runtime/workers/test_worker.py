"""The worker's turn when the database is in trouble: results are kept, claims are not forgotten."""

from datetime import timedelta

import pytest
from django.db import OperationalError

from chainsched.conf import get_config
from chainsched.db.clock import database_now
from chainsched.domain import outcomes
from chainsched.domain.outcomes import Finished
from chainsched.domain.states import ExecutionState
from chainsched.flow.run.dispatch import dispatch
from chainsched.flow.run.record import Recorded, record
from chainsched.models import Metadata
from chainsched.runtime.workers import worker as module
from chainsched.runtime.workers.runner import Collected
from chainsched.runtime.workers.worker import Worker
from chainsched.servers.database import DatabaseServer
from tests.factories import NOW, make_manifest, make_process, make_queue_row

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)


class Bench:
    """A runner that finishes what the test says."""

    def __init__(self, free=2):
        self.free = free
        self.started = []
        self.finished = []
        self.cancelled = set()
        self.collected = Collected()

    @property
    def running(self):
        return len(self.started) - len(self.finished)

    def start(self, *items):
        self.started += [item.execution_id for item in items]

    def collect(self):
        results = [Finished(execution_id, outcomes.completed("done")) for execution_id in self.finished]
        self.started = [execution_id for execution_id in self.started if execution_id not in self.finished]
        self.finished = []
        collected, self.collected = self.collected, Collected()
        collected.finished += results
        return collected

    def cancel(self, execution_ids):
        self.cancelled |= set(execution_ids)

    def withdraw(self):
        self.collected.withdrawn += self.started
        self.started = []


def queue_one():
    """A row that a worker can take."""
    return make_queue_row(make_manifest(state={}))


def only_execution():
    return Metadata.objects.get()


@pytest.fixture
def runner():
    return Bench()


@pytest.fixture
def worker(runner):
    return Worker(make_process(workflows=["testapp.ping"]), runner)


def test_a_result_is_kept_until_the_database_takes_it(worker, runner, monkeypatch):
    queue_one()
    worker.turn(NOW)
    execution = only_execution()
    runner.finished = [execution.id]
    monkeypatch.setattr(module, "record", unavailable)
    with pytest.raises(OperationalError):
        worker.turn(NOW)
    assert not worker.is_idle
    monkeypatch.setattr(module, "record", record)
    worker.turn(NOW)
    execution.refresh_from_db()
    assert (execution.state, execution.output) == (ExecutionState.COMPLETED, "done")
    assert worker.is_idle


def test_nothing_seems_to_have_ended_before_its_result_came(worker, runner):
    queue_one()
    worker.turn(NOW)
    execution = only_execution()
    runner.finished = [execution.id]
    came_at = database_now()
    worker.turn(came_at - MINUTE)
    execution.refresh_from_db()
    assert execution.ended_at >= came_at


class Losing(DatabaseServer):
    """Its reply is lost after the commit, the first time."""

    is_lost = True

    def take(self, **options):
        claims = super().take(**options | {"limit": 1})
        if Losing.is_lost:
            Losing.is_lost = False
            raise OperationalError("server closed the connection")
        return claims


def test_work_whose_commit_was_not_heard_of_is_returned_and_taken_again(worker, runner, monkeypatch):
    first, second = queue_one(), queue_one()
    monkeypatch.setattr(Losing, "is_lost", True)
    monkeypatch.setattr(module, "get_server", Losing)
    with pytest.raises(OperationalError):
        worker.turn(NOW)
    unheard = only_execution()
    assert unheard.state == ExecutionState.IN_PROGRESS
    for _ in range(2):
        worker.turn(NOW)
    assert unheard.id not in runner.started
    began = Metadata.objects.in_progress().values_list("work_queue_id", flat=True)
    assert sorted(began) == [first.id, second.id]
    assert sorted(runner.started) == sorted(Metadata.objects.values_list("id", flat=True))


def test_a_result_that_the_server_lost_in_a_failover_is_a_lost_attempt_and_runs_again(runner, caplog):
    """A server took another's place and knows nothing of our last commits: what had ended is in progress again.

    Its code ran, so its row stays.
    """
    process, other = make_process(workflows=["testapp.ping"]), make_process()
    worker = Worker(process, runner)
    worker.turn(NOW)
    row = queue_one()
    dispatch(workflows=["testapp.ping"], taker=process)
    forgotten = only_execution()
    queue_one()
    dispatch(workflows=["testapp.ping"], taker=other)
    worker.turn(NOW + timedelta(seconds=get_config().process_expiry))
    (again,) = runner.started
    forgotten.refresh_from_db()
    assert (forgotten.state, forgotten.failure_type) == (ExecutionState.FAILED, "lost")
    assert (Metadata.objects.get(id=again).manifest_id, Metadata.objects.get(id=again).attempt) == (row.manifest_id, 2)
    assert Metadata.objects.in_progress().filter(process=other).count() == 1
    assert "1 recorded executions are in progress again after a failover; they will run again." in caplog.text


def test_a_draining_worker_takes_nothing(worker, runner):
    queue_one()
    worker.drain()
    worker.turn(NOW)
    assert runner.started == []


def test_a_worker_that_stopped_claiming_keeps_its_jobs(worker, runner):
    queue_one()
    worker.turn(NOW)
    execution = only_execution()
    queue_one()
    worker.stop_claiming()
    worker.turn(NOW)
    assert runner.started == [execution.id]


def test_a_job_that_was_asked_to_stop_is_cancelled_when_it_comes_back(worker, runner):
    queue_one()
    worker.turn(NOW)
    execution = only_execution()
    Metadata.objects.update(cancel_requested=True)
    worker.turn(NOW + MINUTE)
    assert runner.cancelled == {execution.id}
    # It was on its way back when it was asked to stop, so that no job received the request.
    runner.withdraw()
    worker.turn(NOW + MINUTE)
    execution.refresh_from_db()
    assert execution.state == ExecutionState.CANCELLED
    assert not runner.started


def unavailable(*_args, **_options):
    raise OperationalError("no connection")


def test_results_whose_rows_somebody_holds_keep_no_others_waiting(runner, monkeypatch):
    asked, held = [], [1]

    def record_unless_held(finished, *, is_waiting=True, **_options):
        asked.append(([item.execution_id for item in finished], is_waiting))
        ids = [item.execution_id for item in finished]
        return Recorded(ended=[id_ for id_ in ids if id_ not in held], unwritten=[id_ for id_ in ids if id_ in held])

    monkeypatch.setattr(module, "record", record_unless_held)
    worker = Worker(make_process(workflows=[]), runner)
    runner.started = [1, 2, 3]
    for number, finished in enumerate([[1, 2], [3], []]):
        runner.finished = finished
        worker.turn(NOW + number * MINUTE)
        assert not worker.is_idle
    held.clear()
    worker.turn(NOW + 3 * MINUTE)
    assert worker.is_idle
    fresh, again = ([ids for ids, is_waiting in asked if ids and is_waiting is how] for how in (True, False))
    assert fresh == [[1, 2], [3]]
    assert again == [[1], [1], [1], [1]]
