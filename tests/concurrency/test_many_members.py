"""Joins of very many members: one decision however they end, and a cost of each end that does not grow with them."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection

from chainsched.domain.joins import JoinOutcome
from chainsched.flow.run.fold_notes import settle
from chainsched.models import DueNote, GraphRun, JoinNote
from tests.concurrency.gathering import Gathering, parts
from tests.concurrency.rules import check_rules
from tests.concurrency.threads import at_once
from tests.drive import executions_of, new_bench

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("patience", "room")]


@pytest.fixture
def room(settings: Any) -> None:
    settings.CHAINSCHED = {"MAX_ACTIVE_JOBS": None}


@pytest.mark.postgres
@pytest.mark.usefixtures("no_deadlock")
@pytest.mark.parametrize(
    ("members", "managers"), [(400, 0), (400, 2), pytest.param(10_000, 1, marks=[pytest.mark.slow])]
)
def test_members_that_end_on_four_connections_fire_their_join_once(members, managers):
    """In no order, in batches of at most 100, beside managers that take their turns or before one does."""
    with new_bench() as bench:
        gathering = Gathering(bench, members=members)
        gathering.members_run()
        ids = gathering.running_members()
        random.Random(members).shuffle(ids)  # noqa: S311 - any order will do
        left = list(parts(ids, of=min(100, members // 20)))

        def record_some() -> int:
            ended = 0
            while left:
                try:
                    part = left.pop()
                except IndexError:
                    break
                ended += len(gathering.recording_of(part)())
            return ended

        def manage() -> int:
            while left:
                settle(now=bench.now)
            return 0

        counts = at_once(*[record_some] * 4, *[manage] * managers)
        assert sum(counts) == members
        settle(now=bench.now)
        assert (gathering.state().outcome, gathering.state().arrived) == (JoinOutcome.FIRED, members)
        bench.drain()
        assert gathering.firings() == len(executions_of("join")) == 1
        assert (JoinNote.objects.count(), DueNote.objects.count(), GraphRun.objects.open().count()) == (0, 0, 0)
        check_rules(bench)


class Counted:
    """The statements of a step, as they were sent, each with the number of rows that it returned or wrote."""

    def __init__(self) -> None:
        self.statements: list[tuple[str, int]] = []

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        result = execute(sql, params, many, context)
        self.statements.append((sql, context["cursor"].rowcount))
        return result


@contextmanager
def counted() -> Iterator[Counted]:
    counter = Counted()
    with connection.execute_wrapper(counter):
        yield counter


def cost_of_an_end(members: int, *, name: str) -> list[list[tuple[str, int]]]:
    """The statements for one end in the middle, and for the manager to count it."""
    with new_bench() as bench:
        gathering = Gathering(bench, members=members, name=name)
        gathering.members_run()
        ids = gathering.running_members()
        gathering.recording_of(ids[:3])()
        settle(now=bench.now)
        with counted() as of_record:
            gathering.recording_of(ids[5:6])()
        with counted() as of_settle:
            settle(now=bench.now)
        assert gathering.state().arrived == 4
        return [of_record.statements, of_settle.statements]


@pytest.mark.parametrize("members", [1000, pytest.param(10_000, marks=[pytest.mark.slow])])
def test_an_end_takes_the_same_statements_and_rows_however_many_members_there_are(members):
    few, more = cost_of_an_end(100, name="few-"), cost_of_an_end(members, name="many-")
    assert [len(statements) for statements in few] == [len(statements) for statements in more]
    assert few == more
