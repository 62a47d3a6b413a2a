"""Recall: what was dispatched and nobody can run any more waits again, and takes nobody's room."""

import math
from datetime import timedelta

import pytest

from chainsched.domain.routing import Pool
from chainsched.domain.states import ExecutionState, QueueStatus, Source
from chainsched.flow.inspect.explain import explain
from chainsched.flow.maintain import recall as stage
from chainsched.flow.maintain.fsck import run_fsck
from chainsched.flow.maintain.recall import MAX_RETURNS, Recalled, give_back, recall
from chainsched.flow.operate.take import take
from chainsched.flow.run.claim import claim
from chainsched.flow.run.dispatch import dispatch
from chainsched.flow.run.runs import Head, begin_runs
from chainsched.flow.run.tokens import TokenLedger
from chainsched.models import GraphRun, JoinNote, Manifest, Metadata, Process, TakenOver, WorkQueue
from chainsched.runtime.loops.reaper import Reaper
from chainsched.servers.inline import InlineServer
from tests.factories import (
    NOW,
    make_dependent,
    make_execution,
    make_letter,
    make_manifest,
    make_process,
    make_queue_row,
)

pytestmark = pytest.mark.django_db

NEW = "next.report"
OLD = ["testapp.ping"]
LONG_AGO = -math.inf


def make_dispatched(manifest=None, **columns):
    """An execution that waits for a worker that knows the new workflow, and the row it came from."""
    row = make_queue_row(manifest or make_manifest(state={}, workflow=NEW), **columns)
    dispatch(workflows=[NEW], now=NOW)
    row.refresh_from_db()
    assert row.execution_id
    return row, Metadata.objects.get(id=row.execution_id)


def make_dispatched_in_a_run():
    """The same as the head of a run that leads to a dependent."""
    head = make_manifest(state={}, workflow=NEW)
    make_dependent(head)
    item = begin_runs([Head(head.id, head.external_id, NOW)], ledger=TokenLedger(), now=NOW)[head.id]
    return make_dispatched(head, run_id=item.run_id, tokens=list(item.tokens), has_tokens=True)


def turn():
    return recall(workflows=OLD, now=NOW)


def test_it_waits_again_at_its_place_as_if_it_had_not_been_dispatched():
    manifest = make_manifest(state={}, workflow=NEW, priority=7)
    row, _ = make_dispatched(manifest, priority=7, turn=3, attempt=2, input={"a": 1}, not_before=NOW)
    before = {**vars(row), "status": QueueStatus.QUEUED, "execution_id": None}
    assert turn() == Recalled(queued=1)
    row.refresh_from_db()
    assert {**vars(row), "_state": None} == {**before, "_state": None}
    assert not Metadata.objects.exists(), "it never began, so it was no attempt"


def test_it_runs_when_somebody_can_run_it_again():
    row, _ = make_dispatched()
    turn()
    assert dispatch(workflows=OLD, now=NOW).execution_ids == [], "it does not go to and fro"
    assert len(dispatch(workflows=[NEW], now=NOW).execution_ids) == 1
    row.refresh_from_db()
    assert Metadata.objects.get().id == row.execution_id
    assert not run_fsck(now=NOW)


def test_what_somebody_can_run_stays_dispatched():
    make_dispatched()
    assert recall(workflows=[NEW], now=NOW) == Recalled()
    assert Metadata.objects.pending().count() == 1


@pytest.mark.parametrize("state", [state for state in ExecutionState if state is not ExecutionState.PENDING])
def test_what_runs_or_has_ended_stays(state):
    make_execution(make_manifest(state={}, workflow=NEW), state=state)
    assert turn() == Recalled()
    assert Metadata.objects.count() == 1


def test_a_claim_that_came_first_wins():
    _, execution = make_dispatched()
    claim(process=make_process(), workflows=[NEW], limit=1, now=NOW)
    assert turn() == Recalled()
    assert Metadata.objects.in_progress().get() == execution


def test_a_claim_that_comes_second_finds_nothing():
    make_dispatched()
    turn()
    assert claim(process=make_process(), workflows=[NEW], limit=1, now=NOW) == []


def test_a_job_without_a_manifest_waits_again_too():
    row = make_queue_row(None, workflow=NEW)
    dispatch(workflows=[NEW], now=NOW)
    assert turn() == Recalled(queued=1)
    assert WorkQueue.objects.queued().get() == row


def test_the_letter_behind_a_retry_names_no_execution_until_the_next_dispatch():
    manifest = make_manifest(state={}, workflow=NEW)
    letter = make_letter(manifest, status="retried", resolved_at=NOW)
    _, execution = make_dispatched(manifest, source=Source.DEAD_LETTER, dead_letter=letter)
    letter.refresh_from_db()
    assert letter.retry_execution_id == execution.id
    turn()
    letter.refresh_from_db()
    assert letter.retry_execution_id is None
    dispatch(workflows=[NEW], now=NOW)
    letter.refresh_from_db()
    assert letter.retry_execution_id == Metadata.objects.get().id


def test_a_row_follows_its_manifest_to_another_workflow():
    manifest = make_manifest(state={}, workflow=NEW)
    make_dispatched(manifest)
    Manifest.objects.filter(id=manifest.id).update(workflow="testapp.ping")
    turn()
    assert len(dispatch(workflows=OLD, now=NOW).execution_ids) == 1


def test_it_waits_again_in_the_runs_that_it_stood_for():
    row, execution = make_dispatched_in_a_run()
    TakenOver.objects.create(run_id=execution.run_id + 1, execution_id=execution.id)
    assert turn() == Recalled(queued=1)
    before = (row.run_id, row.tokens, row.has_tokens)
    row.refresh_from_db()
    assert (row.run_id, row.tokens, row.has_tokens) == before
    assert not TakenOver.objects.exists(), "the next execution of the row names them again"
    assert not JoinNote.objects.exists(), "it is open as before"
    assert not run_fsck(now=NOW)


def test_one_that_was_disabled_since_has_no_part_in_its_run_any_more():
    row, execution = make_dispatched_in_a_run()
    Manifest.objects.filter(id=execution.manifest_id).update(is_enabled=False)
    assert turn() == Recalled(queued=1)
    row.refresh_from_db()
    assert not row.has_tokens
    assert [(note.state_id, note.open) for note in JoinNote.objects.all()] == [(row.tokens[0], -1)]
    assert not run_fsck(now=NOW)


def ask_to_stop(execution):
    Metadata.objects.filter(id=execution.id).update(cancel_requested=True, cancel_reason="not needed")


def cancel_its_run(execution):
    GraphRun.objects.mark_cancelled(execution.run_id, reason="not needed", now=NOW)


def remove_its_manifest(execution):
    execution.manifest.delete()


def lose_its_row(execution):
    WorkQueue.objects.all().delete()


@pytest.mark.parametrize("happen", [ask_to_stop, cancel_its_run, remove_its_manifest, lose_its_row])
def test_what_cannot_or_must_not_wait_again_is_cancelled(happen):
    _, execution = make_dispatched_in_a_run()
    happen(execution)
    assert turn() == Recalled(cancelled=1)
    execution.refresh_from_db()
    assert execution.state == ExecutionState.CANCELLED
    assert execution.cancel_reason == ("not needed" if happen is ask_to_stop else stage.NO_PROCESS_CAN_RUN_IT)
    assert not WorkQueue.objects.queued().exists()
    assert turn() == Recalled()


def test_one_whose_manifest_has_another_row_in_the_queue_stays_and_harms_nobody(caplog):
    """Only a change by hand can bring it about."""
    crowded = make_manifest(state={}, workflow=NEW)
    make_dispatched(crowded)
    make_queue_row(crowded)
    row, _ = make_dispatched()
    assert turn() == Recalled(queued=1)
    row.refresh_from_db()
    assert row.status == QueueStatus.QUEUED
    assert Metadata.objects.get().manifest == crowded
    assert "cannot go back to the queue" not in caplog.text, "it is passed over, not refused"


def test_one_call_takes_back_a_limited_number_and_says_that_there_are_more(monkeypatch):
    monkeypatch.setattr(stage, "BATCH", 2)
    rows = [make_dispatched()[0] for _ in range(3)]
    assert turn() == Recalled(queued=2, has_more=True)
    assert list(WorkQueue.objects.queued().order_by("id")) == rows[:2]
    assert turn() == Recalled(queued=1)
    assert turn() == Recalled()


def test_what_runs_does_not_hide_what_waits(monkeypatch):
    monkeypatch.setattr(stage, "BATCH", 1)
    make_execution(make_manifest(state={}, workflow=NEW), state=ExecutionState.IN_PROGRESS)
    make_dispatched()
    assert turn().queued == 1


def test_many_that_cannot_be_taken_back_do_not_keep_the_loop_turning(monkeypatch):
    monkeypatch.setattr(stage, "BATCH", 1)
    manifest = make_manifest(state={}, workflow=NEW)
    make_dispatched(manifest)
    make_queue_row(manifest)
    assert turn().has_more is False


def test_one_line_says_what_nobody_can_run(caplog):
    for _ in range(3):
        make_dispatched()
    turn()
    turn()
    (line,) = caplog.messages
    assert line.startswith("The task server does not claim next.report: 3 pending executions")


def test_explain_says_before_and_after_that_a_worker_is_missing():
    row, _ = make_dispatched()
    told = []
    for _ in range(2):
        told.append(explain(row.manifest_id, pools=[Pool(OLD)], now=NOW))
        turn()
    assert {(it.code, it.reason) for it in told} == {
        ("no_capable_worker", "no live process can run 'next.report'; start a worker that knows it")
    }
    assert explain(row.manifest_id, pools=[Pool([NEW])], now=NOW).code == "queued"


def test_explain_says_that_one_whose_worker_lives_waits_for_it():
    row, _ = make_dispatched()
    assert explain(row.manifest_id, pools=[Pool([NEW])], now=NOW).code == "pending"


@pytest.fixture
def server(monkeypatch):
    """A task server that executions are submitted to, and that can run the new workflow."""
    server = InlineServer()
    monkeypatch.setattr(server, "recent_workflows", lambda *, now: [NEW])
    monkeypatch.setattr("chainsched.runtime.loops.reaper.get_server", lambda: server)
    return server


class TestTheLoop:
    """Which workflows count as those that can be run, and when none is judged."""

    def test_a_process_that_starts_has_one_expiry_to_show_what_it_can_run(self):
        make_dispatched()
        assert Reaper().turn(NOW).did == 0
        assert Metadata.objects.pending().count() == 1
        assert Reaper(began_at=LONG_AGO).turn(NOW).did == 1

    def test_an_execution_that_the_server_still_takes_stays(self, server, monkeypatch):
        make_dispatched()
        assert Reaper(began_at=LONG_AGO).turn(NOW).did == 0
        monkeypatch.setattr(server, "recent_workflows", lambda *, now: OLD)
        assert Reaper(began_at=LONG_AGO).turn(NOW).did == 1
        assert WorkQueue.objects.queued().count() == 1

    def test_workers_that_take_rows_for_themselves_get_what_another_server_left_pending(self):
        make_dispatched()
        worker = make_process(workflows=[NEW])
        assert Reaper(began_at=LONG_AGO).turn(NOW).did == 1
        assert len(take(process=worker, limit=5).claims) == 1

    def test_nothing_is_taken_back_after_the_clock_of_the_database_jumped(self, server, monkeypatch):
        make_dispatched()
        reaper = Reaper(began_at=LONG_AGO)
        assert reaper.turn(NOW).did == 0
        monkeypatch.setattr(server, "recent_workflows", lambda *, now: OLD)
        assert reaper.turn(NOW + timedelta(hours=1)).did == 0
        assert Metadata.objects.pending().count() == 1


def make_taken(worker, *, priority=0, **columns):
    """An execution that a worker has taken and not begun, and its row."""
    row = make_queue_row(make_manifest(state={}, priority=priority), priority=priority, **columns)
    (item,) = dispatch(workflows=OLD, now=NOW, taker=worker).claims
    return row, Metadata.objects.get(id=item.execution_id)


class TestGivingBack:
    """A worker returns executions that it has taken and not begun."""

    @pytest.fixture
    def worker(self):
        return make_process(workflows=OLD)

    def test_the_row_waits_at_its_place_and_no_attempt_is_used(self, worker):
        row, execution = make_taken(worker, priority=7, turn=3, attempt=2, input={"a": 1}, not_before=NOW)
        before = WorkQueue.objects.values().get()
        assert give_back([execution.id], process=worker, now=NOW) == set()
        back = {"status": QueueStatus.QUEUED, "execution_id": None, "claims": 1}
        assert WorkQueue.objects.values().get(id=row.id) == {**before, **back}
        assert not Metadata.objects.exists()
        assert not run_fsck(now=NOW)

    def test_it_takes_the_place_that_its_manifest_has_now(self, worker):
        row, execution = make_taken(worker, priority=7)
        Manifest.objects.update(priority=9)
        give_back([execution.id], process=worker, now=NOW)
        row.refresh_from_db()
        assert row.priority == 9

    def test_another_worker_takes_it(self, worker):
        row, execution = make_taken(worker)
        give_back([execution.id], process=worker, now=NOW)
        (item,) = dispatch(workflows=OLD, now=NOW, taker=make_process()).claims
        row.refresh_from_db()
        assert row.execution_id == item.execution_id

    def test_it_may_come_back_ten_times_and_is_lost_then(self, worker):
        make_queue_row(make_manifest(state={}))
        returned = 0
        while not Metadata.objects.filter(failure_type="lost").exists():
            (item,) = dispatch(workflows=OLD, now=NOW, taker=worker).claims
            give_back([item.execution_id], process=worker, now=NOW)
            returned += 1
        assert returned == MAX_RETURNS + 1
        assert WorkQueue.objects.queued().get().attempt == 2
        assert "took it 11 times" in Metadata.objects.get().failure_reason

    def test_one_that_was_asked_to_stop_is_cancelled(self, worker):
        _, execution = make_taken(worker)
        Metadata.objects.update(cancel_requested=True)
        assert give_back([execution.id], process=worker, now=NOW) == set()
        assert Metadata.objects.get().state == ExecutionState.CANCELLED
        assert not WorkQueue.objects.queued().exists()

    def test_one_without_its_manifest_ends(self, worker):
        _, execution = make_taken(worker)
        Manifest.objects.get().delete()
        assert give_back([execution.id], process=worker, now=NOW) == set()
        execution.refresh_from_db()
        assert (execution.state, execution.failure_type) == (ExecutionState.FAILED, "lost")
        assert not WorkQueue.objects.queued().exists()

    def test_a_process_that_was_declared_lost_returns_nothing(self, worker):
        _, execution = make_taken(worker)
        Process.objects.update(lost_at=NOW)
        assert give_back([execution.id], process=worker, now=NOW) == set()
        execution.refresh_from_db()
        assert execution.state == ExecutionState.IN_PROGRESS

    def test_a_process_returns_no_execution_of_another(self, worker):
        _, execution = make_taken(make_process(workflows=OLD))
        assert give_back([execution.id], process=worker, now=NOW) == set()
        execution.refresh_from_db()
        assert execution.state == ExecutionState.IN_PROGRESS

    def test_a_letter_whose_retry_comes_back_names_no_execution(self, worker):
        letter = make_letter(make_manifest())
        _, execution = make_taken(worker, dead_letter=letter)
        letter.refresh_from_db()
        assert letter.retry_execution_id == execution.id
        give_back([execution.id], process=worker, now=NOW)
        letter.refresh_from_db()
        assert letter.retry_execution_id is None
