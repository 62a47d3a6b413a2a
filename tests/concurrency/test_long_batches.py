"""A batch in which a session idles for longer than it may is written in smaller parts, and not for ever again."""

import importlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import pytest
from django.db import connection

from chainsched.domain import outcomes
from chainsched.domain.outcomes import Finished
from chainsched.domain.states import ExecutionState
from chainsched.flow.run.consume import consume
from chainsched.flow.run.dispatch import dispatch
from chainsched.flow.run.evaluate import evaluate
from chainsched.flow.run.fold_notes import fold_notes
from chainsched.flow.run.record import record
from chainsched.flow.transactions import LostMidway, in_parts, transact
from chainsched.models import DueNote, JoinNote, ManifestState, Metadata, WorkQueue
from tests.factories import NOW, make_execution, make_manifest, make_process, make_queue_row
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.postgres,
    pytest.mark.usefixtures("patience"),
]

ROWS = 6


def idle_too_long() -> None:
    """Let PostgreSQL end the session of this thread's transaction, as it does when that idles past its limit."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL idle_in_transaction_session_timeout = '1ms'")
    wait_until_gone(session())


def lose_connection() -> None:
    """Let the session end without a word, as behind a pooler that keeps a limit of its own."""
    connection.connection.close()


def session() -> int:
    pid: int = connection.connection.info.backend_pid
    return pid


def wait_until_gone(pid: int) -> None:
    with closing(connection.copy()) as observer:

        def is_gone() -> bool:
            with observer.cursor() as cursor:
                cursor.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [pid])
                return cursor.fetchone() is None

        wait_until(is_gone)


@pytest.mark.parametrize("end", [idle_too_long, lose_connection])
def test_the_parts_become_smaller_until_they_are_written(end):
    sizes = []

    def write(part):
        sizes.append(len(part))
        with transact():
            list(ManifestState.objects.all())
            if len(part) > 1:
                end()
            list(ManifestState.objects.all())
        return list(part)

    parts = in_parts(range(4), write)
    assert sorted(item for part in parts.results for item in part) == [0, 1, 2, 3]
    assert (parts.refused, parts.busy) == ([], [])
    assert sizes == [4, 2, 1, 1, 2, 1, 1]


def test_one_row_that_takes_too_long_by_itself_is_left_and_the_others_are_written():
    def write(part):
        with transact():
            if 2 in part:
                lose_connection()
            list(ManifestState.objects.all())
        return list(part)

    parts = in_parts(range(4), write)
    assert sorted(item for part in parts.results for item in part) == [0, 1, 3]
    assert [(item, type(error)) for item, error in parts.busy] == [(2, LostMidway)]
    assert parts.unwritable == []


@dataclass(frozen=True)
class Stage:
    """A stage, a step in the middle of its transaction with one element for each row, and how many rows are left."""

    step: str
    prepare: Callable[[], Callable[[], object]]
    left: Callable[[], int]

    @property
    def name(self) -> str:
        return self.step.split(".")[-2]


def to_evaluate():
    for _ in range(ROWS):
        make_manifest()
    return lambda: evaluate(now=NOW)


def to_dispatch():
    for at in range(ROWS):
        make_queue_row(make_manifest(state={}), turn=at)
    return lambda: dispatch(workflows=["testapp.ping"], now=NOW)


def to_record():
    process = make_process()
    columns = {"state": ExecutionState.IN_PROGRESS, "process": process}
    running = [make_execution(make_manifest(state={}), **columns) for _ in range(ROWS)]
    return lambda: record([Finished(row.id, outcomes.completed(None)) for row in running], by=process, now=NOW)


def to_consume():
    for _ in range(ROWS):
        DueNote.objects.create(child_id=make_manifest(state={}).id)
    return lambda: consume(now=NOW)


def to_fold():
    for state_id in range(1, ROWS + 1):
        JoinNote.objects.create(state_id=state_id, open=1)
    return lambda: fold_notes(now=NOW)


STAGES = [
    Stage("evaluate.enqueue", to_evaluate, lambda: ROWS - WorkQueue.objects.queued().count()),
    Stage("dispatch._create", to_dispatch, lambda: ROWS - Metadata.objects.count()),
    Stage("record.decide_verdicts", to_record, lambda: Metadata.objects.in_progress().count()),
    Stage("consume.apply", to_consume, DueNote.objects.count),
    Stage("fold_notes._drop_notes_of_missing", to_fold, JoinNote.objects.count),
]


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_a_stage_gets_done_although_a_batch_idles_too_long(stage, monkeypatch):
    act = stage.prepare()
    module, _, step = f"chainsched.flow.run.{stage.step}".rpartition(".")
    original = getattr(importlib.import_module(module), step)

    def slow_step(*arguments, **options):
        if len(arguments[0]) > 1:
            idle_too_long()
        return original(*arguments, **options)

    monkeypatch.setattr(f"{module}.{step}", slow_step)
    act()
    assert stage.left() == 0
    assert not ManifestState.objects.aside().exists()
    assert not WorkQueue.objects.aside().exists()
