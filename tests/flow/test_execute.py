"""Running the project's code: nothing that it does escapes."""

from dataclasses import dataclass

import pytest

from chainsched import RunContext
from chainsched.domain.outcomes import FailureType
from chainsched.domain.states import ExecutionState
from chainsched.flow.execute import claim, execute, hand_back
from chainsched.models import Metadata, Process
from chainsched.registry import Workflow, registry
from tests.factories import NOW, make_execution, make_manifest, make_process

pytestmark = pytest.mark.django_db


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


def test_claims_that_nobody_heard_about_are_given_back():
    process = make_process()
    known, stray = (
        make_execution(make_manifest(state={}), state=ExecutionState.IN_PROGRESS, process=process, started_at=NOW)
        for _ in range(2)
    )
    assert hand_back(process=process, known={known.id}) == 1
    stray.refresh_from_db()
    assert (stray.state, stray.process_id, stray.started_at) == (ExecutionState.PENDING, None, None)


def test_a_run_can_ask_whether_it_should_stop(run):
    asked = []

    def patient(run: RunContext) -> None:
        asked.append(run.is_cancelled())
        Metadata.objects.filter(id=run.execution_id).update(cancel_requested=True)
        asked.append(run.is_cancelled())

    run(patient)
    assert asked == [False, True]
