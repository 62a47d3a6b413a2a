"""Every request is honoured or refused: the table in the reference, row by row, and the runs that follow."""

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from chainsched import Every
from chainsched.domain.inputs import OWN_INPUT
from chainsched.domain.results import Answer
from chainsched.domain.states import Source
from chainsched.models import Manifest, ManifestGroup, WorkQueue
from chainsched.testing import Workbench
from tests.drive import executions_of, manifest, new_bench
from tests.testapp.workflows import Slice, copy, describe_run, ping, stumble

pytestmark = pytest.mark.django_db

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "api.md"
DELAY = timedelta(hours=1)
LATER = timedelta(hours=3)
OWN, OTHER, NEW = Slice("own"), Slice("other"), Slice("new")


@pytest.fixture
def bench() -> Iterator[Workbench]:
    with new_bench() as bench:
        yield bench


class Promises:
    """The job, the requests that were accepted, and the executions that there were when they were."""

    def __init__(self, bench: Workbench) -> None:
        self.bench = bench
        self.accepted: list[tuple[Any, Any, int]] = []
        Manifest.objects.schedule(copy, "parent", Slice("parent"), None)
        Manifest.objects.schedule(copy, "job", OWN, None, group="jobs")

    def ask(self, given: Slice | None = None, delay: timedelta | None = None) -> Answer:
        newest = max((execution.id for execution in executions_of("job")), default=0)
        answer = manifest("job").trigger(delay, input=OWN_INPUT if given is None else given)
        if not answer.is_refusal:
            self.accepted.append((self.bench.now + (delay or timedelta(0)), (given or OWN).table, newest))
        return answer

    def check(self) -> None:
        """Let everything run, and look for the run of each request that was accepted."""
        ManifestGroup.objects.get(name="jobs").enable()
        self.bench.drain()
        self.bench.advance(hours=4)
        self.bench.drain()
        runs = [(execution.ended_at, execution.input, execution.id) for execution in executions_of("job")]
        for at, table, newest in self.accepted:
            assert any(
                ended_at and ended_at >= at and id_ > newest and (given or {}).get("table", "own") == table
                for ended_at, given, id_ in runs
            ), f"{table} at {at} did not run: {runs}"


def is_idle(_: Promises) -> None:
    pass


def is_disabled(_: Promises) -> None:
    manifest("job").disable()


def has_disabled_group(_: Promises) -> None:
    ManifestGroup.objects.get(name="jobs").disable()


def is_above_a_join(_: Promises) -> None:
    Manifest.objects.schedule_dependent(copy, "job", OWN, depends_on="parent", group="jobs")
    Manifest.objects.schedule_dependent(ping, "beside", None, depends_on="parent")
    Manifest.objects.schedule_dependent(describe_run, "join", None, depends_on=["job", "beside"])


def is_due_for_its_parent(promises: Promises) -> None:
    Manifest.objects.schedule_dependent(copy, "job", OWN, depends_on="parent", group="jobs")
    manifest("parent").trigger()
    promises.bench.dispatch()
    promises.bench.work()
    assert not WorkQueue.objects.queued().exists()


def is_queued(promises: Promises) -> None:
    assert promises.ask() is Answer.QUEUED


def is_queued_with_another_input(promises: Promises) -> None:
    assert promises.ask(OTHER) is Answer.QUEUED


def is_running(promises: Promises) -> None:
    promises.ask()
    promises.bench.dispatch()


def awaits_a_decision(promises: Promises) -> None:
    Manifest.objects.schedule(stumble, "job", OWN, None, max_retries=1)
    manifest("job").trigger()
    promises.bench.drain()


def waits(given: Slice | None = None, delay: timedelta | None = None) -> Callable[[Promises], object]:
    return lambda promises: promises.ask(given, delay)


def becomes_due(given: Slice | None = None) -> Callable[[Promises], None]:
    """A request that waited for the end of a run, which the manager has not seen yet."""

    def prepare(promises: Promises) -> None:
        is_running(promises)
        promises.ask(given)
        promises.bench.work()

    return prepare


# What each row of the table begins with, and what is done to get there.
STATES: dict[str, list[Callable[[Promises], object]]] = {
    "nothing open": [is_idle],
    "disabled": [is_disabled],
    "its group is disabled": [has_disabled_group],
    "nothing open, in the middle of a graph above a join": [is_above_a_join],
    "due for an outcome of its parent": [is_due_for_its_parent],
    "queued, with its own input": [is_queued],
    "queued, with another input": [is_queued_with_another_input],
    "dispatched or running": [is_running],
    "its last run awaits a decision": [awaits_a_decision],
    "nothing open; `trigger(delay=…)` waits": [waits(delay=LATER)],
    "nothing open; `trigger()` is due": [becomes_due()],
    "nothing open; `trigger(input=…)` is due": [becomes_due(OTHER)],
    "queued, with its own input; `trigger(input=…)` waits": [is_queued, waits(OTHER)],
    "running; `trigger()` waits": [is_running, waits()],
    "running; `trigger(input=…)` waits": [is_running, waits(OTHER)],
    "running; `trigger(delay=…)` waits": [is_running, waits(delay=LATER)],
    "its group is disabled; `trigger()` waits": [has_disabled_group, waits()],
}
REQUESTS: dict[str, dict[str, Any]] = {
    "`trigger()`": {},
    "`trigger(input=…)`": {"given": NEW},
    "`trigger(delay=…)`": {"delay": DELAY},
}


def documented() -> dict[tuple[str, str], Answer]:
    """The answers in the table of the reference, by state and request."""
    text = REFERENCE.read_text(encoding="utf-8").partition("(answers-to-a-trigger)=")[2]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    table = []
    for row in cells:
        if len(row) != len(cells[0]):
            break
        table.append(row)
    head, _, *rows = table
    return {
        (row[0], request): Answer(re.sub("`", "", cell))
        for row in rows
        for request, cell in zip(head[1:], row[1:], strict=True)
    }


DOCUMENTED = documented()


def test_the_table_has_all_states_and_requests() -> None:
    assert {state for state, _ in DOCUMENTED} == STATES.keys()
    assert {request for _, request in DOCUMENTED} == REQUESTS.keys()


@pytest.mark.parametrize(("state", "request_"), DOCUMENTED)
def test_a_request_gets_the_documented_answer_and_its_run(bench: Workbench, state: str, request_: str) -> None:
    promises = Promises(bench)
    for step in STATES[state]:
        step(promises)
    assert promises.ask(**REQUESTS[request_]) is DOCUMENTED[state, request_]
    promises.check()


def test_a_request_for_the_same_as_the_one_that_waits_joins_it(bench: Workbench) -> None:
    promises = Promises(bench)
    is_running(promises)
    assert [promises.ask(NEW) for _ in range(3)] == [Answer.WILL_RUN_AGAIN] * 3
    promises.check()
    assert [execution.input["table"] for execution in executions_of("job")] == ["own", "new"]


def test_a_request_for_the_same_time_joins_the_one_that_waits(bench: Workbench) -> None:
    promises = Promises(bench)
    assert [promises.ask(delay=DELAY) for _ in range(2)] == [Answer.DELAYED] * 2
    promises.check()
    assert len(executions_of("job")) == 1


def test_of_five_requests_with_five_inputs_two_run_and_three_are_refused(bench: Workbench) -> None:
    promises = Promises(bench)
    answers = [promises.ask(Slice(str(number))) for number in range(5)]
    assert answers == [Answer.QUEUED, Answer.WILL_RUN_AGAIN, *[Answer.OTHER_REQUEST_WAITS] * 3]
    promises.check()
    assert [execution.input["table"] for execution in executions_of("job")] == ["0", "1"]


def test_an_outcome_comes_before_a_request_with_an_input_and_then_a_plain_one_joins_it(bench: Workbench) -> None:
    """The request with an input waits for its turn; the plain one is for what is due, and takes nothing from it."""
    promises = Promises(bench)
    is_due_for_its_parent(promises)
    assert promises.ask(OTHER) is Answer.WILL_RUN_AGAIN
    assert promises.ask() is Answer.ALREADY_QUEUED
    promises.check()
    assert [execution.input["table"] for execution in executions_of("job")] == ["own", "other"]


def test_an_outcome_of_a_cancelled_run_takes_no_request_along(bench: Workbench) -> None:
    promises = Promises(bench)
    is_due_for_its_parent(promises)
    assert promises.ask(OTHER) is Answer.WILL_RUN_AGAIN
    run = executions_of("parent")[0].run
    assert run is not None
    type(run).objects.update(cancelled_at=bench.now)
    assert promises.ask() is Answer.WILL_RUN_AGAIN
    promises.check()
    assert [execution.input["table"] for execution in executions_of("job")] == ["other", "own"]


def test_no_input_is_the_own_one_of_a_job_that_has_none(bench: Workbench) -> None:
    Manifest.objects.schedule(ping, "ping", None, None)
    job = manifest("ping")
    assert [job.trigger(input=None) for _ in range(2)] == [Answer.QUEUED, Answer.ALREADY_QUEUED]
    bench.dispatch()
    assert [job.trigger(input=None), job.trigger(), job.trigger(input=None)] == [Answer.WILL_RUN_AGAIN] * 3
    assert bench.drain() == ["ping"] * 2


def test_an_activation_leaves_the_request_that_waits(bench: Workbench) -> None:
    promises = Promises(bench)
    Manifest.objects.schedule_dependent(copy, "job", OWN, depends_on="parent", group="jobs", dormant=True)
    is_running(promises)
    promises.ask()
    bench.work()
    assert manifest("job").activate(OTHER) is Answer.QUEUED
    promises.check()
    assert [execution.input["table"] for execution in executions_of("job")] == ["own", "other", "own"]


def test_going_on_in_a_run_leaves_the_request_that_waits(bench: Workbench) -> None:
    promises = Promises(bench)
    Manifest.objects.schedule_dependent(ping, "next", None, depends_on="job")
    is_running(promises)
    promises.ask()
    bench.work()
    assert executions_of("job")[0].run_from_here() is Answer.QUEUED
    promises.check()
    assert len(executions_of("job")) == 3


@pytest.mark.parametrize("call", ["trigger", "bring_forward"])
@pytest.mark.parametrize(("is_enabled", "source"), [(True, Source.SCHEDULE), (False, Source.TRIGGER)])
def test_a_row_that_is_brought_forward_keeps_its_source_unless_it_is_disabled(
    bench: Workbench, call: str, is_enabled: bool, source: Source
) -> None:
    Promises(bench)
    Manifest.objects.schedule(copy, "job", OWN, Every.hours(1), group="jobs")
    bench.manage()
    Manifest.objects.filter(external_id="job").update(is_enabled=is_enabled)
    row = WorkQueue.objects.get()
    assert manifest("job").trigger() is Answer.ALREADY_QUEUED if call == "trigger" else row.bring_forward()
    row.refresh_from_db()
    assert row.source == source
    assert bench.dispatch() == 1
