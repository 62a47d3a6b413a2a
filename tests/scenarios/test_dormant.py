"""Dormant children: declared, never queued by themselves, woken by a run of their own parent."""

import pytest
from asgiref.sync import async_to_sync

from chainsched import Every
from chainsched.domain.results import Answer
from chainsched.domain.states import ExecutionState, Source
from chainsched.exceptions import ActivationError, InvalidInput, ProcessLost, UnknownManifest
from chainsched.flow.run.activate import activate
from chainsched.models import Process, WorkQueue
from chainsched.registry import registry
from tests.drive import executions_of, manifest
from tests.factories import make_execution, make_letter
from tests.testapp import workflows

pytestmark = pytest.mark.django_db


@pytest.fixture
def family(bench):
    chain = bench.schedules.schedule(workflows.activate_copy, "parent", None, Every.hours(1))
    chain.include(workflows.copy, "child", workflows.Slice("declared"), dormant=True)
    chain.include(workflows.ping, "awake")
    bench.schedules.schedule(workflows.ping, "stranger", None, Every.hours(1), enabled=False)
    bench.seed()
    return bench


@pytest.fixture
def run(family):
    """A run of the parent that is under way."""
    return make_execution(manifest("parent"), state=ExecutionState.IN_PROGRESS, process=family.process)


def call(run, activations, *, parent="parent", process_id=None):
    return activate(
        activations,
        parent_manifest_id=manifest(parent).id,
        execution_id=run.id,
        process_id=process_id or run.process_id,
    )


def test_a_run_wakes_its_child_with_the_input_of_the_moment(family):
    family.drain()
    parent, child = executions_of("parent")[0], executions_of("child")[0]
    assert parent.output is True
    assert child.input == {"table": "runtime", "size": 7}
    assert child.output == {"table": "runtime", "rows": 7}
    assert child.source == Source.ACTIVATION
    assert (child.parent_execution_id, child.root_execution_id, child.priority) == (parent.id, parent.id, 16)


def test_no_turn_queues_a_dormant_child(bench):
    bench.schedules.schedule(workflows.ping, "parent", None, Every.hours(1)).include(
        workflows.copy, "child", workflows.Slice("declared"), dormant=True
    )
    bench.seed()
    assert bench.drain() == ["parent"]


@pytest.mark.parametrize(
    ("external_id", "parent", "words"),
    [
        ("nobody", "parent", "no such manifest"),
        ("awake", "parent", "not dormant"),
        ("child", "stranger", "child of another manifest"),
    ],
)
def test_what_is_no_dormant_child_of_the_run_is_refused(run, external_id, parent, words):
    with pytest.raises(ActivationError, match=words) as caught:
        call(run, [(external_id, workflows.Slice("t"))], parent=parent)
    assert caught.value.external_id == external_id
    assert not WorkQueue.objects.exists()


def test_an_input_that_does_not_fit_the_child_is_refused(run):
    with pytest.raises(InvalidInput, match="size"):
        call(run, [("child", {"table": "t", "size": "many"})])


def test_one_bad_activation_leaves_none(run):
    with pytest.raises(ActivationError):
        call(run, [("child", workflows.Slice("t")), ("nobody", None)])
    assert not WorkQueue.objects.exists()


def test_a_child_that_is_queued_already_is_skipped_with_a_warning(run, caplog):
    assert call(run, [("child", workflows.Slice("t"))]) == ["child"]
    assert call(run, [("child", workflows.Slice("u"))]) == []
    assert "child is not activated: it is queued already" in caplog.text
    assert WorkQueue.objects.get().input == {"table": "t", "size": 500}


def test_activating_nothing_does_nothing(run):
    assert call(run, []) == []


def test_without_an_input_the_child_gets_its_declared_one(run):
    call(run, [("child", None)])
    assert WorkQueue.objects.get().input == {"table": "declared", "size": 500}


def test_a_run_that_was_taken_from_its_process_activates_nothing(run):
    Process.objects.update(lost_at=run.created_at)
    with pytest.raises(ProcessLost):
        call(run, [("child", workflows.Slice("t"))])
    assert not WorkQueue.objects.exists()


def test_a_retry_of_an_activated_child_keeps_its_input(family, monkeypatch):
    monkeypatch.setattr(registry.get("testapp.copy"), "function", lambda job: 1 / 0)
    family.drain()
    retry = WorkQueue.objects.queued().get(manifest_external_id="child")
    assert retry.input == {"table": "runtime", "size": 7}
    assert retry.parent_execution_id == executions_of("parent")[0].id


class TestByHand:
    def test_a_person_wakes_a_child_with_an_input(self, bench):
        bench.schedules.schedule(workflows.ping, "parent", None, None).include(
            workflows.copy, "child", workflows.Slice("declared"), dormant=True
        )
        bench.seed()
        assert manifest("child").activate(workflows.Slice("by hand", 3)) is Answer.QUEUED
        bench.drain()
        run = executions_of("child")[0]
        assert (run.input, run.source, run.priority) == ({"table": "by hand", "size": 3}, Source.ACTIVATION, 16)
        assert (run.parent_execution_id, run.root_execution_id) == (None, None)

    def test_without_an_input_it_gets_its_own(self, family):
        manifest("child").activate()
        family.dispatch()
        assert executions_of("child")[0].input == {"table": "declared", "size": 500}

    def test_a_retry_keeps_the_input(self, bench):
        bench.schedules.schedule(workflows.ping, "parent", None, None).include(
            workflows.stumble, "child", workflows.Slice("declared"), dormant=True
        )
        bench.seed()
        manifest("child").activate(workflows.Slice("by hand"))
        bench.run_for(minutes=6)
        assert [run.input["table"] for run in executions_of("child")] == ["by hand", "by hand"]

    def test_an_input_that_does_not_fit_is_refused_and_nothing_is_queued(self, family):
        with pytest.raises(InvalidInput, match="size"):
            manifest("child").activate({"table": "t", "size": "many"})
        assert not WorkQueue.objects.exists()

    @pytest.mark.parametrize("name", ["awake", "parent"])
    def test_what_is_not_dormant_is_refused(self, family, name):
        with pytest.raises(ActivationError, match="Trigger it instead") as caught:
            manifest(name).activate()
        assert caught.value.external_id == name

    def test_one_that_is_queued_running_or_dead_lettered_is_left_alone(self, family):
        child = manifest("child")
        assert child.activate() is Answer.QUEUED
        assert child.activate() is Answer.BUSY
        family.dispatch()
        assert child.activate() is Answer.BUSY
        family.work()
        make_letter(child)
        assert child.activate() is Answer.AWAITS_DEAD_LETTER
        assert len(executions_of("child")) == 1

    def test_one_that_is_gone_is_a_clear_error(self, family):
        child = manifest("child")
        child.__class__.objects.filter(id=child.id).purge()
        with pytest.raises(UnknownManifest):
            child.activate()

    def test_from_async_code(self, family):
        assert async_to_sync(manifest("child").aactivate)(workflows.Slice("t")) is Answer.QUEUED
