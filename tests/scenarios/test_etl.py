"""A warehouse that is loaded every night: slices in chains of three, a publication of each table, one report.

No job in it exists only to wait for others. The publication of a table begins after the last load of that table, in
every run: of some tables by the names of its loads, of the others as a fan-in over the tree below the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from chainsched import Cron, ManifestItem
from chainsched.api import retry_letters
from chainsched.domain.joins import JoinOutcome
from chainsched.domain.outcomes import Finished, Outcome
from chainsched.flow.run.record import record
from chainsched.models import DeadLetter, GraphRun, JoinState, Metadata
from chainsched.testing import Workbench
from tests.drive import manifest
from tests.scenarios.graphs import DONE, GIVEN_UP, check_all_closed, runs, start
from tests.testapp.workflows import Slice, copy, ping

pytestmark = pytest.mark.django_db

GROUP = {"group": "etl"}
STEPS = ("extract", "transform", "load")
POISONED = 4

Outcomes = Callable[[str], Outcome]


class Warehouse:
    """Tables with even numbers are published by a fan-in over their tree, those with odd ones by their loads' names.

    Of the latter every second one is published again for slices that come late.
    """

    def __init__(self, bench: Workbench, *, tables: int, slices: int) -> None:
        self.bench = bench
        self.tables = range(tables)
        self.slices = range(slices)

    def step(self, step: str, table: int) -> list[str]:
        return [f"{step}-{table}-{number}" for number in self.slices]

    def is_tree(self, table: int) -> bool:
        return table % 2 == 0

    def is_published_again(self, table: int) -> bool:
        return table % 4 == 1

    def declare(self) -> None:
        schedules = self.bench.schedules
        chain = schedules.schedule(ping, "nightly", None, Cron.daily(hour=2), **GROUP)
        heads = [ManifestItem(f"table-{table}") for table in self.tables if self.is_tree(table)]
        chain = chain.include_many(ping, None, heads, **GROUP)
        for table in self.tables:
            above = [f"table-{table}" if self.is_tree(table) else "nightly"] * len(self.slices)
            for step in STEPS:
                names = self.step(step, table)
                items = [
                    ManifestItem(name, Slice(f"t{table}"), depends_on=parent)
                    for name, parent in zip(names, above, strict=True)
                ]
                chain = chain.include_many(copy, None, items, **GROUP)
                above = names
            if self.is_tree(table):
                options = {"depends_on": f"table-{table}", "fan_in": "tree", "at_least": 1}
            else:
                options = {"depends_on": self.step("load", table), "at_least": "50%"}
            again = self.is_published_again(table)
            chain = chain.include(ping, f"publish-{table}", **options, again_on_late=again, **GROUP)
        publications = [f"publish-{table}" for table in self.tables]
        chain.include(ping, "report", depends_on=publications, at_least="90%", **GROUP)
        self.bench.seed()

    def work(self, outcome_of: Outcomes) -> list[str]:
        """Run what is due and all that follows from it, a minute for each round; returns the names of what ran.

        One load of each table is slow: it ends when nothing else is left to do.
        """
        slow = {self.step("load", table)[-1] for table in self.tables}
        ran: list[str] = []
        while True:
            start(self.bench)
            running = Metadata.objects.in_progress().order_by("id")
            active = list(running.values_list("id", "manifest_external_id"))
            if not active:
                return ran
            self.bench.advance(minutes=1)
            ending = [(id_, name) for id_, name in active if name not in slow] or active
            finished = [Finished(id_, outcome_of(name)) for id_, name in ending]
            assert len(record(finished, by=self.bench.process, now=self.bench.now).ended) == len(ending)
            ran += [name for _, name in ending]

    def broken(self, name: str) -> Outcome:
        """One load in twenty fails, and every extract of the poisoned table."""
        step, *numbers = name.split("-")
        if step == "extract" and int(numbers[0]) == POISONED:
            return GIVEN_UP
        is_unlucky = step == "load" and (int(numbers[0]) * len(self.slices) + int(numbers[1])) % 20 == 7
        return GIVEN_UP if is_unlucky else DONE

    def unlucky(self) -> list[str]:
        """The loads that fail each night; no load of the poisoned table is reached."""
        return [name for table in self.healthy for name in self.step("load", table) if self.broken(name) != DONE]

    @property
    def healthy(self) -> list[int]:
        return [table for table in self.tables if table != POISONED]

    def go_to_next_night(self) -> None:
        self.bench.travel_to(self.bench.now.replace(hour=2, minute=0) + timedelta(days=1))


@pytest.fixture(params=[pytest.param(12, id="small"), pytest.param(60, id="large", marks=pytest.mark.slow)])
def warehouse(bench, settings, request):
    settings.CHAINSCHED = {"MAX_ACTIVE_JOBS": 500}
    warehouse = Warehouse(bench, tables=request.param, slices=20)
    warehouse.declare()
    return warehouse


def check_night(warehouse: Warehouse, run: GraphRun, ran: Counter[str]) -> None:
    """All tables but the poisoned one were published once, each after its last load, and then the report was made."""
    ended: dict[str, datetime] = {}
    began: dict[str, datetime] = {}
    for execution in run.executions():
        assert execution.ended_at is not None
        ended[execution.manifest_external_id] = execution.ended_at
        began[execution.manifest_external_id] = execution.created_at
    for table in warehouse.healthy:
        loads = [ended[name] for name in warehouse.step("load", table)]
        assert began[f"publish-{table}"] >= max(loads)
        assert ran[f"publish-{table}"] == 1
    assert ran[f"publish-{POISONED}"] == 0
    assert outcome_of(f"publish-{POISONED}", run) == JoinOutcome.SHORT
    assert began["report"] >= max(ended[f"publish-{table}"] for table in warehouse.healthy)
    assert ran["report"] == 1
    assert run.closed_at is not None


def outcome_of(join: str, run: GraphRun) -> str:
    return JoinState.objects.get(join_id=manifest(join).id, run=run).outcome


@pytest.mark.slow_on_postgres
def test_two_nights_with_loads_that_fail_and_a_poisoned_table(warehouse):
    warehouse.go_to_next_night()
    ran = Counter(warehouse.work(warehouse.broken))
    (first,) = runs()
    check_night(warehouse, first, ran)
    assert DeadLetter.objects.awaiting().count() == len(warehouse.unlucky()) + len(warehouse.slices)

    # Loads that are repeated are late for their publication, which runs again where it asked for that.
    retry_letters(DeadLetter.objects.awaiting().filter(manifest__external_id__in=warehouse.unlucky()))
    tables = {int(name.split("-")[1]) for name in warehouse.unlucky()}
    again = [f"publish-{table}" for table in tables if warehouse.is_published_again(table)]
    assert again
    assert Counter(warehouse.work(lambda _: DONE)) == Counter([*warehouse.unlucky(), *again])

    # The letters of the first night stop the extracts of the poisoned table.
    warehouse.go_to_next_night()
    ran = Counter(warehouse.work(warehouse.broken))
    _, second = runs()
    check_night(warehouse, second, ran)
    assert not any(ran[name] for name in warehouse.step("extract", POISONED))

    # Once they are repeated, the poisoned table is published for both nights; the reports were made without it.
    retry_letters(DeadLetter.objects.awaiting())
    late = Counter(warehouse.work(lambda _: DONE))
    assert {late[name] for name in warehouse.step("extract", POISONED)} == {2}, "one for each night"
    assert late["report"] == 0
    for run in (first, second):
        names = Counter(run.executions().values_list("manifest_external_id", flat=True))
        assert names[f"publish-{POISONED}"] == 1
        assert names["report"] == 1
    check_all_closed(warehouse.bench)
