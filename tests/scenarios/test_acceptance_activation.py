"""F of the acceptance list: dormant children, woken by a run of their own parent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from chainsched import Every, RunContext, workflow
from chainsched.domain.due import Reason
from chainsched.domain.states import ExecutionState, Source
from chainsched.exceptions import ActivationError, ProcessLost
from chainsched.flow.run.activate import activate
from chainsched.flow.run.claim import claim
from chainsched.flow.run.execute import execute
from chainsched.models import DeadLetter, Manifest, Metadata, Process, WorkQueue
from chainsched.registry import registry
from chainsched.testing import Workbench
from tests.drive import executions_of, manifest, start_running
from tests.factories import make_execution
from tests.testapp.workflows import Slice, copy, ping

pytestmark = pytest.mark.django_db


@dataclass(frozen=True)
class Wakes:
    """Which children to wake, with the table each is to copy; None for what it declares."""

    children: dict[str, str | None] = field(default_factory=dict)
    size: Any = 7
    fails_afterwards: bool = False


@workflow(name="tests.wake")
def wake(job: Wakes, run: RunContext) -> list[str]:
    woken = run.activate_many(
        (name, table and {"table": table, "size": job.size}) for name, table in job.children.items()
    )
    if job.fails_afterwards:
        raise RuntimeError("after waking them")
    return woken


@pytest.fixture
def family(bench: Workbench) -> Workbench:
    """A parent that runs when asked, two dormant children, one that is awake, and a stranger's child."""
    Manifest.objects.schedule(wake, "parent", Wakes(), None, max_retries=1)
    for name in ("one", "two"):
        Manifest.objects.schedule_dependent(copy, name, Slice("declared"), depends_on="parent", dormant=True)
    Manifest.objects.schedule_dependent(ping, "awake", None, depends_on="parent", enabled=False)
    Manifest.objects.schedule(ping, "stranger", None, None)
    Manifest.objects.schedule_dependent(ping, "foreign", None, depends_on="stranger", dormant=True)
    return bench


def run_parent(bench: Workbench, **wakes: Any) -> Metadata:
    """Let the parent run, and nothing of what it wakes."""
    manifest("parent").trigger(input=Wakes(**wakes))
    bench.dispatch()
    bench.work()
    return executions_of("parent")[-1]


class TestActivating:
    """Activated by a run of the parent: queued with the runtime input, boost, parent and root."""

    def test_a_woken_child_runs_with_the_input_of_the_moment_in_the_tree_of_the_run(self, family):
        parent = run_parent(family, children={"one": "now", "two": None})
        assert parent.output == ["one", "two"]
        rows = WorkQueue.objects.queued().filter(source=Source.ACTIVATION)
        assert set(rows.values_list("priority", "parent_execution_id", "root_execution_id")) == {
            (16, parent.id, parent.id)
        }
        assert sorted(family.drain()) == ["one", "two"]
        outputs = {name: executions_of(name)[0].output for name in ("one", "two")}
        assert outputs == {"one": {"table": "now", "rows": 7}, "two": {"table": "declared", "rows": 500}}

    def test_the_root_is_that_of_the_parents_own_tree(self, bench):
        Manifest.objects.schedule(ping, "root", None, Every.hours(9))
        Manifest.objects.schedule_dependent(wake, "parent", Wakes({"child": None}), depends_on="root")
        Manifest.objects.schedule_dependent(copy, "child", Slice("t"), depends_on="parent", dormant=True)
        assert bench.drain() == ["root", "parent", "child"]
        root, parent, child = (executions_of(name)[0] for name in ("root", "parent", "child"))
        assert (child.parent_execution_id, child.root_execution_id) == (parent.id, root.id)
        assert (child.causation_id, child.root_correlation_id) == (str(parent.external_id), str(root.external_id))

    def test_no_turn_ever_queues_one_by_itself(self, family):
        run_parent(family)
        family.drain()
        assert family.run_for(days=30) == []
        assert manifest("one").explain().code == Reason.DORMANT
        manifest("one").disable()
        manifest("one").enable()
        assert family.drain() == []

    def test_what_was_woken_runs_although_its_parent_then_failed(self, family):
        assert run_parent(family, children={"one": "now"}, fails_afterwards=True).state == ExecutionState.FAILED
        assert family.drain() == ["one"]

    def test_a_disabled_child_that_is_woken_waits_until_it_is_enabled(self, family):
        manifest("one").disable()
        run_parent(family, children={"one": "now"})
        assert family.drain() == []
        manifest("one").enable()
        assert family.drain() == ["one"]

    def test_a_child_may_be_woken_by_every_run(self, family):
        for table in ("first", "second"):
            run_parent(family, children={"one": table})
            assert family.drain() == ["one"]
        assert [run.input["table"] for run in executions_of("one")] == ["first", "second"]

    def test_a_retry_and_a_retried_letter_reuse_the_input_of_the_activation(self, family, monkeypatch):
        monkeypatch.setattr(registry.get("testapp.copy"), "function", lambda job: 1 / 0)
        Manifest.objects.filter(external_id="one").update(max_retries=2, retry_delay_seconds=60)
        parent = run_parent(family, children={"one": "now"})
        ran = family.run_for(minutes=5)
        DeadLetter.objects.get().retry()
        assert [*ran, *family.drain()] == ["one"] * 3
        runs = executions_of("one")
        assert {run.input["table"] for run in runs} == {"now"}
        assert {run.parent_execution_id for run in runs} == {parent.id}

    def test_activating_nothing_does_nothing(self, family):
        assert run_parent(family).output == []
        assert family.drain() == []


class TestRefusing:
    """Unknown, not dormant, another parent's child, an input that does not fit: raise, and the batch leaves nothing."""

    @pytest.mark.parametrize(
        ("wakes", "error", "words"),
        [
            ({"children": {"one": "t", "nobody": "t"}}, "ActivationError", "no such manifest"),
            ({"children": {"one": "t", "awake": "t"}}, "ActivationError", "not dormant"),
            ({"children": {"one": "t", "stranger": "t"}}, "ActivationError", "not dormant but on_demand"),
            ({"children": {"one": "t", "foreign": "t"}}, "ActivationError", "child of another manifest"),
            ({"children": {"one": "t", "two": "t"}, "size": "many"}, "InvalidInput", "size"),
        ],
        ids=["unknown", "awake", "on demand", "foreign", "bad input"],
    )
    def test_one_that_may_not_be_woken_fails_the_run_and_wakes_none(self, family, wakes, error, words):
        parent = run_parent(family, **wakes)
        assert (parent.state, parent.failure_type) == (ExecutionState.FAILED, error)
        assert words in parent.failure_reason
        assert not WorkQueue.objects.filter(source=Source.ACTIVATION).exists()

    def test_a_job_without_a_manifest_has_no_children(self, family):
        run = make_execution(None, state=ExecutionState.IN_PROGRESS, process=family.process)
        with pytest.raises(ActivationError, match="child of another manifest"):
            activate([("one", None)], parent_manifest_id=None, execution_id=run.id, process_id=family.process.id)

    @pytest.mark.parametrize("end", ["lost", "stopped", "ended"])
    def test_outside_its_run_nobody_activates(self, family, end):
        """A run that has ended in the database or was taken from its process, while its function goes on."""
        refused: list[str] = []
        manifest("parent").trigger()
        family.dispatch()
        (item,) = claim(process=family.process, workflows=registry.names(), limit=1, now=family.now)
        found = registry.get("tests.wake")
        arguments = found.arguments

        def keep(value: Any, *, run: Callable[[], RunContext]) -> dict[str, Any]:
            if end == "ended":
                assert manifest("parent").cancel().running == 1
                Metadata.objects.in_progress().update(state=ExecutionState.CANCELLED, ended_at=family.now)
            else:
                Process.objects.update(**{f"{end}_at": family.now})
            with pytest.raises(ProcessLost) as caught:
                run().activate("one", Slice("too late"))
            refused.append(str(caught.value))
            return arguments(value, run=run)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(found, "arguments", keep)
            execute(item)
        assert len(refused) == 1
        assert not WorkQueue.objects.filter(source=Source.ACTIVATION).exists()


# What a child may have open when it is to be woken again; each leaves "one" in that state.


def queued(bench: Workbench) -> None: ...


def pending(bench: Workbench) -> None:
    bench.dispatch()


def running(bench: Workbench) -> None:
    bench.dispatch()
    start_running(bench)


def waiting_for_its_retry(bench: Workbench) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(registry.get("testapp.copy"), "function", lambda job: 1 / 0)
        bench.turn()
    assert WorkQueue.objects.queued().get().attempt == 2


def awaiting_a_decision(bench: Workbench) -> None:
    Manifest.objects.filter(external_id="one").update(max_retries=1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(registry.get("testapp.copy"), "function", lambda job: 1 / 0)
        bench.turn()
    assert DeadLetter.objects.awaiting().exists()


class TestSkipping:
    """Already queued or active: skipped with a warning; a skip is not an error and costs the batch nothing."""

    @pytest.mark.parametrize("prepare", [queued, pending, running, waiting_for_its_retry, awaiting_a_decision])
    def test_a_busy_child_is_skipped_with_a_warning_and_the_others_are_woken(
        self, family: Workbench, caplog: pytest.LogCaptureFixture, prepare: Callable[[Workbench], None]
    ):
        run_parent(family, children={"one": "first"})
        prepare(family)
        caplog.clear()
        before = WorkQueue.objects.filter(manifest_external_id="one").count()
        held = Metadata.objects.in_progress().update(state=ExecutionState.PENDING, workflow="nobody.knows")
        Metadata.objects.pending().update(workflow="nobody.knows")
        assert run_parent(family, children={"one": "again", "two": "second"}).output == ["two"]
        assert "one is not activated" in caplog.text
        assert WorkQueue.objects.filter(manifest_external_id="one").count() == before
        assert held == (1 if prepare is running else 0)

    def test_one_that_is_named_twice_is_refused_and_no_other_queued(self, family):
        """It could run for one of the inputs only."""
        run = make_execution(manifest("parent"), state=ExecutionState.IN_PROGRESS, process=family.process)
        with pytest.raises(ActivationError, match="'one' cannot be activated: it is named twice") as caught:
            activate(
                [("two", Slice("c")), ("one", Slice("a")), ("one", Slice("b"))],
                parent_manifest_id=manifest("parent").id,
                execution_id=run.id,
                process_id=family.process.id,
            )
        assert caught.value.external_id == "one"
        assert not WorkQueue.objects.exists()


def test_a_dormant_child_that_somebody_triggers_runs_with_its_declared_input(family):
    """DESIGN 6 leaves waking to its parent and to operators; a trigger is an operator's."""
    manifest("one").trigger()
    assert family.drain() == ["one"]
    assert executions_of("one")[0].input["table"] == "declared"
    assert family.run_for(days=1) == []
    assert family.now - timedelta(days=1) == executions_of("one")[0].ended_at
