"""Running the project's code: nothing that it does escapes."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from asgiref.sync import sync_to_async

from chainsched import RunContext
from chainsched.domain.outcomes import FailureType, Finished
from chainsched.domain.run_context import RUN_FACTS
from chainsched.domain.states import ExecutionState
from chainsched.exceptions import RunHasEnded
from chainsched.flow.run.claim import claim, note_progress
from chainsched.flow.run.execute import execute
from chainsched.flow.run.record import record
from chainsched.models import Metadata, Process
from chainsched.registry import Workflow, registry
from chainsched.runtime.workers.protocol import Decoder, encode, pack_claim, unpack_claim
from tests.factories import NOW, make_execution, make_manifest, make_process, store_input

pytestmark = pytest.mark.django_db

# What databases store, and Python or a reader on the way to a job does not read.
UNREADABLE = [
    pytest.param("[1" + "0" * 5_000 + "]", id="long"),
    pytest.param("[" * 600 + "]" * 600, id="deep"),
    pytest.param("[" * 1_900 + "]" * 1_900, id="deeper"),
    pytest.param("[" * 5_000 + "]" * 5_000, id="deepest", marks=pytest.mark.postgres),
]


@dataclass(frozen=True)
class Explosive:
    size: int

    def __post_init__(self) -> None:
        raise KeyError(self.size)


def explosive_input(job: Explosive) -> None: ...


def explosive_output():
    yield 1
    raise ZeroDivisionError


def not_json() -> object:
    return object()


def not_a_number() -> float:
    return float("nan")


kept: list[RunContext] = []


def keeps_its_context(run: RunContext) -> bool:
    kept[:] = [run]
    return run.is_cancelled()


async def keeps_its_context_async(run: RunContext) -> bool:
    return await sync_to_async(keeps_its_context)(run)


def keeps_its_context_and_yields(run: RunContext) -> Iterator[bool]:
    yield keeps_its_context(run)


def leaves() -> None:
    raise SystemExit(0)


def interrupts() -> None:
    raise KeyboardInterrupt


def groups() -> None:
    raise ExceptionGroup("several", [ValueError("a"), TypeError("b")])


@pytest.fixture
def run(monkeypatch):
    def run(function, value=None):
        workflow = Workflow(function, name="tests.throwaway", aliases=())
        monkeypatch.setattr(registry, "get", lambda name: workflow)
        make_execution(make_manifest(state={}, workflow="tests.throwaway"), input=value)
        (item,) = claim(process=make_process(), workflows=["tests.throwaway"], limit=1, now=NOW)
        return execute(item)

    return run


@pytest.mark.parametrize(
    ("function", "value", "failure_type"),
    [
        (explosive_input, {"size": 3}, "KeyError"),
        (explosive_output, None, "ZeroDivisionError"),
        (not_json, None, FailureType.BAD_OUTPUT),
        (not_a_number, None, FailureType.BAD_OUTPUT),
        (leaves, None, "SystemExit"),
        (interrupts, None, "KeyboardInterrupt"),
        (groups, None, "ExceptionGroup"),
        (explosive_input, {"size": "many"}, FailureType.BAD_INPUT),
    ],
)
def test_whatever_happens_becomes_an_outcome(run, function, value, failure_type):
    outcome = run(function, value)
    assert (outcome.state, outcome.failure_type) == (ExecutionState.FAILED, failure_type)
    assert outcome.failure_reason


@pytest.mark.parametrize(
    "call",
    [
        lambda context: context.join,
        lambda context: context.parents,
        lambda context: context.is_cancelled(),
        lambda context: context.activate("child"),
        lambda context: context.activate_many([("child", None)]),
        lambda context: context.progress(1),
    ],
    ids=["join", "parents", "is_cancelled", "activate", "activate_many", "progress"],
)
@pytest.mark.parametrize("function", [keeps_its_context, keeps_its_context_async, keeps_its_context_and_yields])
def test_a_context_that_was_kept_says_that_the_run_is_over(run, function, call):
    outcome = run(function)
    assert (outcome.state, bool(kept)) == (ExecutionState.COMPLETED, True), outcome
    with pytest.raises(RunHasEnded, match=f"The run of execution {kept[0].execution_id} is over"):
        call(kept[0])
    assert Metadata.objects.get().progress is None


def test_every_method_of_a_context_is_refused_after_its_run():
    own = {name for name in vars(RunContext) if not name.startswith("_")} - set(RUN_FACTS) - {"of_claim"}
    assert own == {"join", "parents", "is_cancelled", "activate", "activate_many", "progress"}


def test_a_workflow_that_this_process_does_not_know_fails_with_its_name():
    make_execution(make_manifest(state={}, workflow="old.name"))
    (item,) = claim(process=make_process(), workflows=["old.name"], limit=1, now=NOW)
    outcome = execute(item)
    assert outcome.failure_type == FailureType.UNKNOWN_WORKFLOW
    assert "'old.name'" in outcome.failure_reason


def test_claims_go_by_priority_and_say_who_has_them():
    low, high = (make_execution(make_manifest(state={}), priority=priority) for priority in (1, 9))
    process = make_process()
    assert [item.execution_id for item in claim(process=process, workflows=["testapp.ping"], limit=1)] == [high.id]
    high.refresh_from_db()
    assert (high.state, high.process, high.claims) == (ExecutionState.IN_PROGRESS, process, 1)
    assert high.claimed_at == high.started_at
    assert Metadata.objects.pending().get() == low


def test_a_process_that_was_declared_lost_claims_nothing():
    make_execution(make_manifest(state={}))
    process = make_process()
    Process.objects.update(lost_at=NOW)
    assert claim(process=process, workflows=["testapp.ping"], limit=5) == []


def test_only_known_workflows_are_claimed():
    make_execution(make_manifest(state={}, workflow="elsewhere.job"))
    assert claim(process=make_process(), workflows=["testapp.ping"], limit=5) == []


@pytest.mark.parametrize("text", UNREADABLE)
def test_an_input_that_cannot_be_read_fails_and_holds_up_no_other(text):
    bad, good = (make_execution(make_manifest(state={}), input={"n": 1}, priority=priority) for priority in (9, 0))
    store_input(bad, text)
    process = make_process()
    first, second = claim(process=process, workflows=["testapp.ping"], limit=5)
    assert (first.execution_id, second.execution_id, second.input) == (bad.id, good.id, {"n": 1})
    (message,) = Decoder().feed(encode({"run": [pack_claim(first)]}))
    outcome = execute(unpack_claim(message["run"][0]))
    assert (outcome.failure_type, outcome.is_permanent) == (FailureType.BAD_INPUT, True)
    recorded = record([Finished(bad.id, outcome)], by=process, now=NOW)
    assert (recorded.ended, recorded.dead_lettered) == ([bad.id], [bad.id])
    assert outcome.failure_reason.startswith("The stored input")


@pytest.mark.parametrize("refused", [object(), pytest.param("\ud800", marks=pytest.mark.postgres)])
def test_progress_that_is_refused_is_dropped_and_the_other_written(refused, caplog):
    process = make_process()
    first, bad, last = (
        make_execution(make_manifest(state={}), state=ExecutionState.IN_PROGRESS, process=process) for _ in range(3)
    )
    told = {first.id: {"done": 1}, bad.id: {"done": 2, "message": refused}, last.id: {"done": 3}}
    assert note_progress(told, process=process) == {}
    written = Metadata.objects.order_by("id").values_list("progress", flat=True)
    assert list(written) == [{"done": 1}, None, {"done": 3}]
    assert f"The progress of execution {bad.id} cannot be written" in caplog.text


def test_a_run_can_ask_whether_it_should_stop(run):
    asked = []

    def patient(run: RunContext) -> None:
        asked.append(run.is_cancelled())
        Metadata.objects.filter(id=run.execution_id).update(cancel_requested=True)
        asked.append(run.is_cancelled())

    run(patient)
    assert asked == [False, True]
