"""The examples of the seed documents in their Python form: what each declares, and what it does when it is driven.

000 is "Dependent Scheduling", 001 "Dependent Workflows", 003 "Scheduling". ``tests/flow/schedule/test_declare.py``
holds the rules of root and cursor, and each misuse of the builder; here are the documents' own examples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chainsched import Cron, Every, ManifestItem, RunContext
from chainsched.domain.states import DeadLetterStatus, ExecutionState, ScheduleType, Source
from chainsched.exceptions import ActivationError, CycleError, DeclarationError, ExecutionIsFinal
from chainsched.models import DeadLetter, Manifest, ManifestGroup, Metadata, WorkQueue
from chainsched.registry import registry
from chainsched.testing import Workbench
from tests.drive import executions_of, manifest
from tests.factories import make_letter
from tests.testapp.workflows import Slice, activate_copy, copy, fail, ping

pytestmark = pytest.mark.django_db

TEN = [str(number) for number in range(10)]


def stored_edges() -> dict[str, str | None]:
    return dict(Manifest.objects.values_list("external_id", "depends_on__external_id"))


def stored_groups() -> dict[str, str]:
    return dict(Manifest.objects.values_list("external_id", "group__name"))


def below(batch: str, ids: list[str], *, after: str) -> list[ManifestItem]:
    """Items of one batch, each after its counterpart in another."""
    return [ManifestItem(id_, Slice(f"{batch}-{id_}"), depends_on=f"{after}-{id_}") for id_ in ids]


class TestDependentScheduling:
    """Document 000."""

    def test_chained_dependencies_run_one_after_the_other(self, bench):
        (
            bench.schedules.schedule(copy, "etl-extract", Slice("extract"), Every.minutes(5), group="etl-pipeline")
            .then_include(copy, "etl-transform", Slice("transform"), group="etl-pipeline", priority=5)
            .then_include(copy, "etl-load", Slice("load"), group="etl-pipeline")
        )
        bench.seed()
        assert stored_edges() == {"etl-extract": None, "etl-transform": "etl-extract", "etl-load": "etl-transform"}
        assert set(stored_groups().values()) == {"etl-pipeline"}
        assert bench.drain() == ["etl-extract", "etl-transform", "etl-load"]
        priorities = dict(Metadata.objects.values_list("manifest_external_id", "priority"))
        assert priorities == {"etl-extract": 0, "etl-transform": 5 + 16, "etl-load": 16}

    def test_fan_out_lets_both_branches_run_after_the_root(self, bench):
        (
            bench.schedules.schedule(copy, "extract", Slice("e"), Every.hours(1), group="etl")
            .include(copy, "transform", Slice("t"), group="etl")
            .include(copy, "validate", Slice("v"), group="etl")
        )
        bench.seed()
        assert stored_edges() == {"extract": None, "transform": "extract", "validate": "extract"}
        assert bench.turn() == ["extract"]
        assert sorted(bench.turn()) == ["transform", "validate"]
        assert bench.drain() == []

    def test_mixed_fan_out_and_chaining_gives_the_documents_result(self, bench):
        """Result: Extract -> Transform -> Load, Extract -> Validate."""
        (
            bench.schedules.schedule(copy, "extract", Slice("e"), Every.hours(1), group="etl")
            .include(copy, "transform", Slice("t"), group="etl")
            .then_include(copy, "load", Slice("l"), group="etl")
            .include(copy, "validate", Slice("v"), group="etl")
        )
        bench.seed()
        assert stored_edges() == {
            "extract": None,
            "transform": "extract",
            "load": "transform",
            "validate": "extract",
        }
        assert bench.turn() == ["extract"]
        assert sorted(bench.turn()) == ["transform", "validate"]
        assert bench.turn() == ["load"]

    def test_a_batch_of_dependents_follows_a_batch_item_by_item(self, bench):
        """Creates: extract-0..extract-9, transform-0..transform-9."""
        bench.schedules.schedule_many(
            copy, "extract", [ManifestItem(i, Slice(i)) for i in TEN], Every.minutes(5)
        ).include_many(copy, "transform", below("transform", TEN, after="extract"))
        bench.seed()
        assert stored_edges() == {f"extract-{i}": None for i in TEN} | {f"transform-{i}": f"extract-{i}" for i in TEN}
        assert stored_groups() == {f"{name}-{i}": name for name in ("extract", "transform") for i in TEN}
        assert sorted(bench.turn()) == [f"extract-{i}" for i in TEN]
        assert sorted(bench.turn()) == [f"transform-{i}" for i in TEN]
        for i in TEN:
            (child,) = executions_of(f"transform-{i}")
            assert child.parent_execution_id == executions_of(f"extract-{i}")[0].id

    def test_batch_fan_out_lets_all_items_depend_on_the_root(self, bench):
        bench.schedules.schedule(copy, "extract-all", Slice("e"), Every.hours(1), group="extract").include_many(
            copy, None, [ManifestItem(f"load-{i}", Slice(i)) for i in TEN]
        )
        bench.seed()
        loads = {f"load-{i}" for i in TEN}
        assert stored_edges() == {"extract-all": None} | dict.fromkeys(loads, "extract-all")
        assert stored_groups() == {"extract-all": "extract"} | {name: name for name in loads}
        assert bench.turn() == ["extract-all"]
        assert set(bench.turn()) == loads

    def test_a_third_level_of_batches_needs_no_root_when_each_item_names_its_parent(self, bench):
        (
            bench.schedules.schedule_many(copy, "extract", [ManifestItem(i, Slice(i)) for i in "01"], Every.minutes(5))
            .include_many(copy, "transform", below("transform", ["0", "1"], after="extract"))
            .then_include_many(copy, "load", below("load", ["0", "1"], after="transform"))
        )
        bench.seed()
        assert sorted(bench.turn()) == ["extract-0", "extract-1"]
        assert sorted(bench.turn()) == ["transform-0", "transform-1"]
        assert sorted(bench.turn()) == ["load-0", "load-1"]

    def test_an_unnamed_batch_below_a_batch_takes_ids_as_they_are(self, bench):
        bench.schedules.schedule_many(copy, "extract", [ManifestItem("0", Slice("0"))], Every.minutes(5)).include_many(
            copy, None, [ManifestItem("anything", Slice("x"), depends_on="extract-0")], group="loads"
        )
        bench.seed()
        assert stored_edges()["anything"] == "extract-0"
        assert stored_groups()["anything"] == "loads"
        assert manifest("anything").batch == ""

    def test_a_named_batch_of_dependents_is_pruned_by_its_name(self, bench):
        chain = bench.schedules.schedule(copy, "root", Slice("r"), Every.hours(1))
        chain.include_many(copy, "load", [ManifestItem(i, Slice(i)) for i in "ab"])
        bench.seed()
        bench.schedules.clear()
        chain = bench.schedules.schedule(copy, "root", Slice("r"), Every.hours(1))
        chain.include_many(copy, "load", [ManifestItem("a", Slice("a"))])
        assert bench.seed().retired == ["load-b"]

    def test_then_include_many_refuses_an_item_without_a_parent_before_anything_is_written(self, bench):
        chain = bench.schedules.schedule(copy, "root", Slice("r"), Every.hours(1))
        chain.then_include_many(copy, "load", [ManifestItem("a", Slice("a"))])
        with pytest.raises(DeclarationError, match="'load-a' lacks depends_on"):
            bench.seed()
        assert not Manifest.objects.exists()

    def test_runtime_dependent_scheduling_runs_the_dependent_after_its_parent(self, bench):
        Manifest.objects.schedule(copy, "fetch-data", Slice("fetch"), Cron.hourly())
        made = Manifest.objects.schedule_dependent(copy, "process-data", Slice("process"), depends_on="fetch-data")
        assert made.depends_on == manifest("fetch-data")
        assert bench.drain() == []
        bench.advance(hours=1)
        assert bench.drain() == ["fetch-data", "process-data"]

    def test_a_runtime_dependent_of_an_unknown_parent_is_refused(self):
        with pytest.raises(DeclarationError, match="'process-data' depends on 'fetch-data'"):
            Manifest.objects.schedule_dependent(copy, "process-data", Slice("p"), depends_on="fetch-data")
        assert not Manifest.objects.exists()

    def test_the_dormant_option_declares_a_child_that_never_fires_by_itself(self, bench):
        bench.schedules.schedule(copy, "parent", Slice("p"), Every.minutes(5)).include(
            copy, "child", Slice("c"), dormant=True
        )
        bench.seed()
        assert manifest("child").schedule_type == ScheduleType.DORMANT_DEPENDENT
        assert manifest("child").depends_on == manifest("parent")
        assert bench.run_for(minutes=30) == ["parent"] * 7

    def test_a_dependent_has_no_schedule_of_its_own(self, bench):
        bench.schedules.schedule(ping, "parent", None, Every.minutes(5)).include(ping, "child")
        bench.seed()
        child = manifest("child")
        assert child.schedule_type == ScheduleType.DEPENDENT
        assert (child.cron_expression, child.interval_seconds, child.once_at) == ("", None, None)

    def test_groups_that_wait_for_each_other_are_refused_naming_them(self, bench):
        (
            bench.schedules.schedule(ping, "a", None, Every.hours(1), group="group-a")
            .then_include(ping, "b", group="group-b")
            .then_include(ping, "c", group="group-c")
            .then_include(ping, "a2", group="group-a")
        )
        with pytest.raises(CycleError, match=r"\[group-a, group-b, group-c\]") as caught:
            bench.seed()
        assert sorted(caught.value.members) == ["group-a", "group-b", "group-c"]
        assert not Manifest.objects.exists()


class TestActivation:
    """Document 000, IDormantDependentContext and its example."""

    @pytest.fixture
    def dispatching(self, bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], None]:
        """A parent that does in its run what the test says, and four dormant children."""

        def arrange(step: Callable[[RunContext], Any]) -> None:
            chain = bench.schedules.schedule(activate_copy, "parent", None, Every.hours(1), max_retries=1)
            for number in range(1, 5):
                chain.include(copy, f"child-{number}", Slice("declared"), dormant=True)
            bench.seed()
            # After declaring: by then the signature of the workflow is known and kept.
            monkeypatch.setattr(registry.get("testapp.activate_copy"), "function", step)

        return arrange

    def test_the_selective_dispatch_step_activates_one_and_then_a_batch(self, bench, dispatching):
        def step(run: RunContext) -> list[Any]:
            one = run.activate("child-1", Slice("runtime-1"))
            return [one, *run.activate_many((f"child-{item}", Slice(f"item-{item}")) for item in (2, 3))]

        dispatching(step)
        ran = bench.drain()
        assert (ran[0], sorted(ran[1:])) == ("parent", ["child-1", "child-2", "child-3"])
        (parent,) = executions_of("parent")
        assert parent.output == [True, "child-2", "child-3"]
        inputs = {number: executions_of(f"child-{number}")[0].input["table"] for number in (1, 2, 3)}
        assert inputs == {1: "runtime-1", 2: "item-2", 3: "item-3"}
        assert {executions_of(f"child-{number}")[0].parent_execution_id for number in (1, 2, 3)} == {parent.id}
        assert executions_of("child-4") == []

    def test_a_skipped_activation_does_not_undo_the_rest_of_its_batch(self, bench, dispatching):
        def step(run: RunContext) -> list[str]:
            run.activate("child-1", Slice("first"))
            return run.activate_many([("child-1", Slice("again")), ("child-2", Slice("second"))])

        dispatching(step)
        bench.drain()
        assert executions_of("parent")[0].output == ["child-2"]
        assert [execution.input["table"] for execution in executions_of("child-1")] == ["first"]
        assert len(executions_of("child-2")) == 1

    def test_an_invalid_activation_takes_its_whole_batch_back(self, bench, dispatching):
        def step(run: RunContext) -> None:
            run.activate_many([("child-1", Slice("x")), ("nobody", Slice("y"))])

        dispatching(step)
        assert bench.drain() == ["parent"]
        assert executions_of("parent")[0].failure_type.endswith(ActivationError.__name__)
        assert not WorkQueue.objects.filter(source=Source.ACTIVATION).exists()


class TestDependentWorkflows:
    """Document 001."""

    def test_then_captures_the_previous_call_as_parent(self, bench):
        bench.schedules.schedule(copy, "extract-data", Slice("api"), Every.hours(1), group="etl").then_include(
            copy, "transform-data", Slice("parquet"), group="etl"
        )
        bench.seed()
        assert stored_edges() == {"extract-data": None, "transform-data": "extract-data"}
        assert stored_groups() == {"extract-data": "etl", "transform-data": "etl"}
        assert bench.drain() == ["extract-data", "transform-data"]
        assert executions_of("transform-data")[0].input["table"] == "parquet"

    def test_if_the_first_of_a_chain_fails_nothing_downstream_fires(self, bench):
        (
            bench.schedules.schedule(fail, "extract", None, Every.hours(1), group="etl", max_retries=2)
            .then_include(ping, "transform", group="etl")
            .then_include(ping, "load", group="etl")
        )
        bench.seed()
        assert set(bench.run_for(hours=6)) == {"extract"}
        assert DeadLetter.objects.get().manifest == manifest("extract")

    def test_bulk_dependencies_queue_only_the_counterpart_of_what_succeeded(self, bench):
        hundred = [str(number) for number in range(100)]
        bench.schedules.schedule_many(
            copy, "extract", [ManifestItem(i, Slice(i)) for i in hundred], Every.minutes(30), enabled=False
        ).include_many(copy, "load", below("load", hundred, after="extract"))
        bench.seed()
        assert Manifest.objects.filter(group__name="extract").count() == 100
        assert Manifest.objects.filter(group__name="load").count() == 100
        manifest("extract-42").enable()
        assert bench.drain() == ["extract-42", "load-42"]

    def test_many_dependents_may_point_to_one_parent(self, bench):
        bench.schedules.schedule(ping, "extract-all", None, Every.hours(1)).then_include_many(
            ping, "load", [ManifestItem(i, depends_on="extract-all") for i in TEN]
        )
        bench.seed()
        assert bench.turn() == ["extract-all"]
        assert sorted(bench.turn()) == [f"load-{i}" for i in TEN]

    def test_a_chain_in_one_group_shares_its_dispatch_controls(self, bench):
        options: dict[str, Any] = {"group": "etl", "group_max_active_jobs": 1}
        chain = bench.schedules.schedule(ping, "extract", None, Every.hours(1), **options)
        for name in ("left", "right"):
            chain.include(ping, name, **options)
        bench.seed()
        assert ManifestGroup.objects.get().max_active_jobs == 1
        assert bench.turn() == ["extract"]
        bench.manage()
        assert len(bench.queued()) == 2
        assert bench.dispatch() == 1

    def test_a_single_runtime_dependent_is_an_upsert(self, bench):
        Manifest.objects.schedule(copy, "extract-customers", Slice("customers"), Every.hours(1))
        for size in (1, 2):
            Manifest.objects.schedule_dependent(
                copy, "load-customers", Slice("customers", size), depends_on="extract-customers"
            )
        assert Manifest.objects.count() == 2
        assert bench.drain() == ["extract-customers", "load-customers"]
        assert executions_of("load-customers")[0].input == {"table": "customers", "size": 2}

    def test_a_runtime_batch_of_dependents_is_pruned_and_written_whole(self, bench):
        tables = ["customers", "orders", "items"]
        Manifest.objects.schedule_many(copy, "extract", [ManifestItem(t, Slice(t)) for t in tables], Every.hours(1))
        made = Manifest.objects.schedule_many_dependent(copy, "load", below("load", tables, after="extract"))
        assert [one.external_id for one in made] == [f"load-{table}" for table in tables]
        assert {one.group.name for one in made} == {"load"}
        Manifest.objects.schedule_many_dependent(copy, "load", below("load", tables[:2], after="extract"), prune=True)
        assert Manifest.objects.get(retired_at__isnull=False).external_id == "load-items"
        bad = [*below("load", ["more"], after="extract"), *below("load", tables, after="extract")]
        with pytest.raises(DeclarationError, match="'load-more' depends on 'extract-more'"):
            Manifest.objects.schedule_many_dependent(copy, "load", bad)
        assert manifest("load-items").retired_at is not None
        assert set(bench.drain()) == {*(f"extract-{t}" for t in tables), "load-customers", "load-orders"}

    def test_dependencies_within_one_group_are_fine(self, bench):
        chain = bench.schedules.schedule(ping, "a", None, Every.hours(1), group="g")
        chain.then_include(ping, "b", group="other").include(ping, "c", group="g").then_include(ping, "d", group="g")
        bench.seed()
        assert bench.drain()[0] == "a"
        assert Metadata.objects.count() == 4

    def test_a_dead_letter_in_the_chain_keeps_what_comes_after_idle_on_every_later_success(self, bench):
        (
            bench.schedules.schedule(ping, "a", None, Every.hours(1))
            .then_include(fail, "b", max_retries=1)
            .then_include(ping, "c")
        )
        bench.seed()
        assert bench.run_for(hours=3) == ["a", "b", "a", "a", "a"]
        assert manifest("c").last_successful_run is None
        assert manifest("c").explain().code == "parent_not_ahead"


class TestWhatHappensWhen:
    """Document 001, its table row by row; the parent runs every five minutes."""

    @pytest.fixture
    def pair(self, bench: Workbench) -> Workbench:
        bench.schedules.schedule(ping, "parent", None, Every.minutes(5)).then_include(ping, "dependent")
        bench.seed()
        return bench

    def test_the_parent_succeeds_and_the_dependent_never_ran(self, pair):
        assert pair.turn() == ["parent"]
        pair.manage()
        pair.assert_queued("dependent")

    def test_the_dependent_already_ran_after_the_parents_last_success(self, pair):
        pair.drain()
        pair.advance(minutes=4)
        assert pair.manage() == 0
        pair.assert_queued()
        assert manifest("dependent").explain().code == "parent_not_ahead"

    def test_the_parent_never_succeeded(self, bench):
        bench.schedules.schedule(fail, "parent", None, Every.minutes(5)).then_include(ping, "dependent")
        bench.seed()
        assert set(bench.run_for(hours=3)) == {"parent"}
        assert manifest("dependent").explain().code == "parent_not_ahead"

    def test_the_parent_is_disabled(self, pair):
        pair.turn()
        manifest("parent").disable()
        assert pair.run_for(hours=1) == []
        assert manifest("dependent").explain().code == "parent_disabled"
        manifest("parent").enable()
        assert pair.drain() == ["dependent"]

    def test_the_dependent_has_a_dead_letter(self, pair):
        make_letter(manifest("dependent"))
        assert set(pair.run_for(hours=1)) == {"parent"}
        assert manifest("dependent").explain().code == "awaiting_dead_letter"

    @pytest.mark.parametrize("state", [ExecutionState.PENDING, ExecutionState.IN_PROGRESS])
    def test_the_dependent_has_an_active_execution(self, pair, state):
        pair.turn()
        pair.manage()
        pair.dispatch()
        if state is ExecutionState.IN_PROGRESS:
            executions = Metadata.objects.filter(manifest_external_id="dependent")
            executions.update(state=state, process=pair.process, started_at=pair.now)
        pair.advance(minutes=5)
        pair.manage()
        assert pair.queued() == ["parent"]
        assert len(executions_of("dependent")) == 1

    def test_the_parent_is_deleted(self, pair):
        pair.turn()
        manifest("parent").delete()
        assert manifest("dependent").depends_on is None
        assert pair.run_for(hours=1) == []
        assert manifest("dependent").explain().code == "parent_missing"


class TestScheduling:
    """Document 003."""

    def test_a_runtime_schedule_is_an_upsert_that_is_safe_to_repeat(self, bench):
        for _ in range(2):
            Manifest.objects.schedule(
                copy, "sync-customers-us-east", Slice("us-east", size=500), Every.hours(6), max_retries=3
            )
        made = Manifest.objects.get()
        assert (made.workflow, made.max_retries, made.interval_seconds) == ("testapp.copy", 3, 6 * 3600)
        assert made.input == {"table": "us-east", "size": 500}
        assert bench.run_for(hours=12) == ["sync-customers-us-east"] * 3

    def test_bulk_scheduling_from_a_collection_derives_the_ids(self, bench):
        tables = ["users", "orders"]
        bench.schedules.schedule_many(copy, "sync", [ManifestItem(t, Slice(t)) for t in tables], Every.minutes(5))
        bench.seed()
        bench.seed()
        assert stored_groups() == {"sync-users": "sync", "sync-orders": "sync"}
        assert sorted(bench.drain()) == ["sync-orders", "sync-users"]

    def test_every_attempt_leaves_a_row_of_its_own_up_to_the_dead_letter(self, bench, monkeypatch):
        runs: list[str] = []

        def run() -> str:
            runs.append("pong")
            if len(runs) > 1:
                raise TimeoutError("timeout")
            return runs[0]

        bench.schedules.schedule(ping, "sync-customers-us-east", None, Every.minutes(5), retry_delay=60)
        bench.seed()
        monkeypatch.setattr(registry.get("testapp.ping"), "function", run)
        bench.run_for(hours=1)
        trail = executions_of("sync-customers-us-east")
        assert [row.state for row in trail] == ["completed", "failed", "failed", "failed"]
        assert [row.attempt for row in trail] == [1, 1, 2, 3]
        letter = DeadLetter.objects.get()
        assert letter.status == DeadLetterStatus.AWAITING_INTERVENTION
        assert letter.reason.startswith("Max retries exceeded (3 failures >= 3 max retries)")
        assert (letter.execution_id, letter.dead_lettered_at) == (trail[-1].id, trail[-1].ended_at)
        assert bench.run_for(days=2) == [], "dead letters are not retried by themselves"

    def test_an_execution_record_cannot_be_deleted(self, bench):
        bench.schedules.schedule(ping, "job", None, Every.minutes(5))
        bench.seed()
        bench.drain()
        with pytest.raises(ExecutionIsFinal):
            executions_of("job")[0].delete()

    def test_a_dependent_manifest_is_declared_with_include(self, bench):
        bench.schedules.schedule(ping, "extract", None, Every.hours(1)).include(ping, "load")
        bench.seed()
        assert bench.run_for(hours=1) == ["extract", "load"] * 2

    def test_members_name_one_group_and_the_default_is_the_external_id(self, bench):
        bench.schedules.schedule(ping, "sync-data", None, Every.hours(1), group="data-sync").include(
            ping, "load-data", group="data-sync"
        )
        bench.schedules.schedule(ping, "alone", None, Every.hours(1))
        bench.seed()
        assert stored_groups() == {"sync-data": "data-sync", "load-data": "data-sync", "alone": "alone"}

    def test_a_group_at_its_cap_is_passed_over_and_the_others_go_on(self, bench):
        many: dict[str, Any] = {"group": "data-sync", "group_max_active_jobs": 2, "group_priority": 9}
        for number in range(4):
            bench.schedules.schedule(ping, f"sync-{number}", None, Every.hours(1), **many)
        bench.schedules.schedule(ping, "other", None, Every.hours(1))
        bench.seed()
        bench.manage()
        assert bench.dispatch() == 3
        started = list(Metadata.objects.values_list("manifest_external_id", flat=True))
        assert "other" in started
        assert len([name for name in started if name.startswith("sync-")]) == 2
