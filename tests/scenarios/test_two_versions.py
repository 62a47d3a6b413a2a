"""Rolling deploys: values that only a newer version knows are passed over and stay as they are; all else goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import Q
from django.test import Client
from django.urls import reverse

from chainsched.domain.due import Reason
from chainsched.domain.outcomes import Finished, Outcome
from chainsched.domain.retention import Policy
from chainsched.domain.routing import Pool
from chainsched.domain.states import ExecutionState, ScheduleType, Source
from chainsched.flow.inspect.causes import find_causes
from chainsched.flow.inspect.explain import explain, explain_row
from chainsched.flow.maintain.clean import clean
from chainsched.flow.maintain.fsck import reconcile, run_fsck
from chainsched.flow.maintain.reap import reap
from chainsched.flow.maintain.recall import recall
from chainsched.flow.maintain.roll_up import roll_up
from chainsched.flow.operate.bulk_decisions import carry_out
from chainsched.flow.operate.trigger import TriggerRequest, trigger, trigger_group
from chainsched.flow.run.record import record
from chainsched.flow.schedule.near import refresh_near
from chainsched.models import (
    BulkDecision,
    BulkDecisionItem,
    DeadLetter,
    Dependency,
    DueNote,
    GraphRun,
    JoinNote,
    JoinState,
    Manifest,
    ManifestState,
    Metadata,
    WorkQueue,
)
from chainsched.models.join_reports import describe_joins
from chainsched.models.run_reports import describe_run, find_arrivals
from chainsched.registry import registry
from chainsched.testing import Workbench
from tests.drive import executions_of
from tests.factories import (
    NOW,
    make_dependent,
    make_execution,
    make_group,
    make_letter,
    make_manifest,
    make_process,
    make_queue_row,
)

pytestmark = pytest.mark.django_db

NEW = "seventh"
NEW_CONDITION = 9
OLD = NOW - timedelta(days=40)


@pytest.fixture(autouse=True)
def _checks_as_a_newer_version_has_them() -> Iterator[None]:
    """Without the checks of columns: the migration of the newer version has widened them."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
            cursor.execute(
                "SELECT conrelid::regclass::text, conname FROM pg_constraint "
                "WHERE contype = 'c' AND conrelid::regclass::text LIKE 'chainsched_%'"
            )
            for table, name in cursor.fetchall():
                cursor.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
        else:
            cursor.execute("PRAGMA ignore_check_constraints = ON")
    yield
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA ignore_check_constraints = OFF")


def strange(**columns: Any) -> Manifest:
    """A manifest that is due, of a group of its own."""
    return make_manifest(f"strange-{Manifest.objects.count()}", group=make_group(), **columns)


def busy(**columns: Any) -> Manifest:
    """One without an alarm, as while it has something open."""
    return strange(state={}, **columns)


def make_parent(**state: Any) -> Manifest:
    """One that runs only when it is triggered."""
    return make_manifest("parent", state=state, schedule_type=ScheduleType.ON_DEMAND)


def write(row: Any, **columns: Any) -> Any:
    """Write what a newer version would, past the trigger that guards executions."""
    type(row).objects.filter(pk=row.pk).update(**columns)
    row.refresh_from_db()
    return row


def a_manifest_with(column: str, value: Any) -> Callable[[], Any]:
    def make() -> Manifest:
        return write(strange(), **{column: value})

    return make


def a_dependent_that_is_due() -> Manifest:
    parent = make_parent(finished_execution=5, succeeded_execution=5)
    child = make_dependent(parent, "strange-child", state={"due_execution": 5, "next_run_at": NOW})
    Dependency.objects.filter(child=child).update(condition=NEW_CONDITION)
    return write(child, run_condition=NEW_CONDITION)


def a_join(value: str = "siblings") -> tuple[Manifest, JoinState]:
    """A fan-in in a run in which all has arrived; a note says so."""
    parent = make_parent()
    make_dependent(parent, "member")
    join = make_dependent(parent, "strange-join", fan_in="siblings")
    refresh_near({parent.id})
    run = GraphRun.objects.create(
        head=parent, head_external_id="parent", version=9, scheduled_for=NOW, created_at=NOW, closed_at=NOW
    )
    JoinState.objects.create(run=run, join_id=0, outcome="closed", decided_at=NOW)
    state = JoinState.objects.create(run=run, join_id=join.id, arrived=1, is_gated=True, newest=3, deadline_at=NOW)
    JoinNote.objects.create(state_id=state.id, open=0, arrived=0)
    return write(join, fan_in=value), state


def a_join_of_an_unknown_kind() -> Manifest:
    return a_join("cousins")[0]


def a_join_that_stands_unknown() -> JoinState:
    return write(a_join()[1], outcome="held")


def a_row_of_an_unknown_source() -> WorkQueue:
    return make_queue_row(busy(), source=NEW)


def a_row_of_an_unknown_source_in_a_run() -> WorkQueue:
    """It holds a token although its manifest is disabled, which another source would not."""
    _, state = a_join()
    JoinNote.objects.all().delete()
    JoinState.objects.filter(id=state.id).update(open=1, deadline_at=None)
    GraphRun.objects.update(closed_at=None)
    columns = {"run_id": state.run_id, "tokens": [state.id], "has_tokens": True}
    return make_queue_row(busy(is_enabled=False), source=NEW, **columns)


def a_row_of_an_unknown_source_that_is_put_aside() -> WorkQueue:
    return write(a_row_of_an_unknown_source(), put_aside_at=OLD, put_aside_reason="no room")


def an_unknown_manifest_that_is_put_aside() -> Manifest:
    manifest = write(busy(), schedule_type=NEW)
    write(manifest.state, put_aside_at=OLD, put_aside_reason="no words")
    return manifest


def a_parked_row() -> WorkQueue:
    return make_queue_row(busy(), status="parked")


def a_row_of_an_unknown_manifest() -> WorkQueue:
    manifest = write(busy(), schedule_type=NEW)
    return make_queue_row(manifest)


def dispatched(manifest: Manifest, **columns: Any) -> Metadata:
    row = make_queue_row(manifest)
    execution = make_execution(manifest, work_queue=row, **columns)
    WorkQueue.objects.filter(id=row.id).update(status="dispatched", execution=execution)
    return execution


def a_pending_execution_of_an_unknown_source() -> Metadata:
    return dispatched(busy(), source=NEW)


def a_pending_execution_of_an_unknown_manifest() -> Metadata:
    return dispatched(write(busy(), schedule_type=NEW))


def an_execution_whose_newer_process_is_lost() -> Metadata:
    process = make_process(lost_at=NOW)
    return dispatched(busy(), source=NEW, state=ExecutionState.IN_PROGRESS, process=process, started_at=NOW)


def a_paused_execution() -> Metadata:
    return write(dispatched(busy()), state="paused")


def an_execution_that_ended_long_ago() -> Metadata:
    execution = make_execution(busy(schedule_type=ScheduleType.ON_DEMAND))
    return write(execution, state="skipped", ended_at=OLD)


def a_snoozed_letter() -> DeadLetter:
    return write(make_letter(busy()), status="snoozed")


def a_bulk_decision_with(**columns: Any) -> Callable[[], BulkDecision]:
    def make() -> BulkDecision:
        letter = make_letter(busy())
        user = User.objects.create_superuser("asker")
        bulk = BulkDecision.objects.create(verb="retry", total=1, note="", created_at=NOW, asked_by=user)
        BulkDecisionItem.objects.create(bulk_decision=bulk, dead_letter=letter)
        return write(bulk, **columns)

    return make


def an_item_with_an_unknown_outcome() -> BulkDecisionItem:
    bulk = BulkDecision.objects.create(verb="retry", total=1, note="", created_at=NOW, status="done", finished_at=NOW)
    item = BulkDecisionItem.objects.create(bulk_decision=bulk, dead_letter=make_letter(busy()))
    return write(item, outcome="held")


def a_note_to_an_unknown_dependent() -> Manifest:
    parent = make_parent()
    child = write(make_dependent(parent, "strange-child"), schedule_type=NEW)
    DueNote.objects.create(child_id=child.id, parent_execution_id=4, tokens=[])
    return child


@dataclass(frozen=True)
class Case:
    """A row with a value of a newer version; its label on pages, and whether it is the reason why nothing happens."""

    make: Callable[[], Any]
    label: str
    is_reason: bool = True


CASES = {
    "schedule type": Case(a_manifest_with("schedule_type", NEW), f"unknown: {NEW}"),
    "misfire policy": Case(a_manifest_with("misfire_policy", "later"), "later"),
    "run condition": Case(a_dependent_that_is_due, f"unknown: {NEW_CONDITION}"),
    "fan-in": Case(a_join_of_an_unknown_kind, "unknown: cousins"),
    "outcome of a join": Case(a_join_that_stands_unknown, "unknown: held", is_reason=False),
    "source of a queued row": Case(a_row_of_an_unknown_source, NEW),
    "source of a queued row in a run": Case(a_row_of_an_unknown_source_in_a_run, NEW),
    "source of a row that is put aside": Case(a_row_of_an_unknown_source_that_is_put_aside, NEW),
    "type of a manifest that is put aside": Case(an_unknown_manifest_that_is_put_aside, NEW, is_reason=False),
    "status of a queue row": Case(a_parked_row, "unknown: parked"),
    "manifest of a queued row": Case(a_row_of_an_unknown_manifest, NEW),
    "source of a pending execution": Case(a_pending_execution_of_an_unknown_source, NEW),
    "manifest of a pending execution": Case(a_pending_execution_of_an_unknown_manifest, f"unknown: {NEW}"),
    "source of a running execution": Case(an_execution_whose_newer_process_is_lost, NEW),
    "state of an execution": Case(a_paused_execution, "unknown: paused"),
    "state of an ended execution": Case(an_execution_that_ended_long_ago, "unknown: skipped", is_reason=False),
    "status of a dead letter": Case(a_snoozed_letter, "unknown: snoozed"),
    "verb of a bulk decision": Case(a_bulk_decision_with(verb="forward"), "forward", is_reason=False),
    "status of a bulk decision": Case(a_bulk_decision_with(status="held"), "unknown: held", is_reason=False),
    "outcome of an item": Case(an_item_with_an_unknown_outcome, "unknown: held", is_reason=False),
    "type of a dependent with a note": Case(a_note_to_an_unknown_dependent, f"unknown: {NEW}"),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))


def rows_of_the_newer_version() -> dict[str, list[Any]]:
    """All that belongs to what only the newer version knows."""
    of_manifest = Q(manifest__external_id__startswith="strange")
    watched = {
        Manifest: Q(external_id__startswith="strange"),
        ManifestState: of_manifest,
        WorkQueue: of_manifest,
        Metadata: of_manifest,
        DeadLetter: of_manifest,
        JoinState: Q(join_id__in=Manifest.objects.filter(external_id__startswith="strange").values("id")),
        **dict.fromkeys((BulkDecision, BulkDecisionItem, Dependency, DueNote, JoinNote), Q()),
    }
    return {
        model.__name__: list(model.objects.filter(condition).order_by("pk").values())  # type: ignore[attr-defined]
        for model, condition in watched.items()
    }


def turn_all_loops(bench: Workbench) -> None:
    reap(now=bench.now)
    reconcile(now=bench.now)
    bench.manage()
    bench.dispatch()
    bench.work()
    recall(workflows=registry.names(), now=bench.now)
    carry_out(now=bench.now)
    clean(Policy.of(30 * 24 * 3600, 0), now=bench.now)
    roll_up(now=bench.now)


@each_case
def test_the_loops_pass_over_it_and_go_on(bench: Workbench, case: Case, caplog: pytest.LogCaptureFixture) -> None:
    case.make()
    make_manifest("plain")
    before = rows_of_the_newer_version()
    for _ in range(2):
        turn_all_loops(bench)
    assert rows_of_the_newer_version() == before
    assert [run.state for run in executions_of("plain")] == [ExecutionState.COMPLETED]
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


@each_case
def test_fsck_repairs_others_and_leaves_it(bench: Workbench, case: Case) -> None:
    case.make()
    make_manifest("plain", state={})
    before = rows_of_the_newer_version()
    repaired = {finding.subject for finding in run_fsck(now=bench.now, repair=True) if finding.is_repaired}
    assert rows_of_the_newer_version() == before
    assert "plain" in repaired


@pytest.mark.parametrize("case", [case for case in CASES.values() if case.is_reason], ids=lambda case: case.label)
def test_explain_says_which_value_is_unknown(bench: Workbench, case: Case) -> None:
    row = case.make()
    manifest = row if isinstance(row, Manifest) else row.manifest
    explained = [explain(manifest.id, pools=[Pool(registry.names())], now=bench.now)]
    if isinstance(row, WorkQueue):
        explained.append(explain_row(row, pools=[Pool(registry.names())], now=bench.now))
    for explanation in explained:
        assert explanation.code == Reason.UNKNOWN_VALUE
        assert case.label.removeprefix("unknown: ") in explanation.reason
        assert "a newer version must have written it" in explanation.reason


@each_case
def test_the_pages_show_it(case: Case) -> None:
    row = case.make()
    shown = GraphRun.objects.get() if isinstance(row, JoinState) else row
    if case.make is a_pending_execution_of_an_unknown_manifest:
        shown = row.manifest
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    name = f"admin:chainsched_{shown._meta.model_name}"
    listed = client.get(reverse(f"{name}_changelist") + "?status=all")
    assert listed.status_code in (200, 302)
    page = client.get(reverse(f"{name}_change", args=[shown.pk]))
    assert page.status_code == 200
    assert case.label in page.content.decode()
    if getattr(shown, "manifest", None):
        assert client.get(reverse("admin:chainsched_manifest_change", args=[shown.manifest.pk])).status_code == 200
    assert client.get(reverse("admin:index")).status_code == 200


class TestOutcomes:
    """An older worker ends a run that leads to what only a newer version knows."""

    def finish(self, manifest: Manifest, **columns: Any) -> Metadata:
        process = make_process()
        execution = make_execution(manifest, state="in_progress", process=process, started_at=NOW, **columns)
        done = record([Finished(execution.id, Outcome(ExecutionState.COMPLETED))], by=process, now=NOW)
        assert done.ended == [execution.id]
        return execution

    @pytest.mark.parametrize("column", ["condition", "child"])
    def test_what_follows_over_an_unknown_edge_is_left_out_and_logged(
        self, bench: Workbench, column: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        parent = make_parent()
        child, other = make_dependent(parent, "strange-child"), make_dependent(parent, "other")
        if column == "condition":
            Dependency.objects.filter(child=child).update(condition=NEW_CONDITION)
        else:
            write(child, schedule_type=NEW)
        before = rows_of_the_newer_version()
        self.finish(parent)
        assert rows_of_the_newer_version() == before
        assert ManifestState.objects.get(manifest=other).next_run_at == NOW
        assert f"does not reach manifest {child.id}" in caplog.text

    def test_a_dependent_with_another_unknown_value_gets_a_note(self, bench: Workbench) -> None:
        parent = make_parent()
        child = write(make_dependent(parent, "strange-child"), misfire_policy="later")
        execution = self.finish(parent)
        bench.manage()
        note = DueNote.objects.get()
        assert (note.child_id, note.parent_execution_id) == (child.id, execution.id)
        write(child, misfire_policy="")
        bench.manage()
        assert WorkQueue.objects.get(manifest=child).source == Source.DEPENDENCY, "the newer version takes the note"

    def test_the_end_of_an_unknown_manifest_is_recorded_and_its_alarm_left_to_a_newer_version(self) -> None:
        manifest = write(busy(), schedule_type=NEW)
        self.finish(manifest)
        assert ManifestState.objects.get(manifest=manifest).next_run_at is None

    def test_a_result_of_a_paused_execution_is_kept_until_it_is_over(self) -> None:
        process = make_process()
        execution = make_execution(busy(), state="in_progress", process=process, started_at=NOW)
        other = make_execution(busy(), state="in_progress", process=process, started_at=NOW)
        results = [Finished(it.id, Outcome(ExecutionState.COMPLETED)) for it in (execution, other)]
        write(execution, state="paused")
        done = record(results, by=process, now=NOW)
        assert (done.ended, done.unwritten, done.late) == ([other.id], [execution.id], [])
        write(execution, state="in_progress")
        assert record(results[:1], by=process, now=NOW).ended == [execution.id]

    def test_a_retry_of_an_unknown_source_is_a_plain_retry(self) -> None:
        process = make_process()
        execution = make_execution(busy(), state="in_progress", process=process, started_at=NOW, source=NEW)
        record([Finished(execution.id, Outcome(ExecutionState.FAILED))], by=process, now=NOW)
        assert WorkQueue.objects.get(manifest=execution.manifest).source == Source.RETRY


def test_the_row_waits_for_a_version_that_knows_its_source(bench: Workbench) -> None:
    row = a_row_of_an_unknown_source()
    turn_all_loops(bench)
    write(row, source=Source.SCHEDULE)
    bench.drain()
    assert [run.state for run in Metadata.objects.filter(manifest=row.manifest)] == [ExecutionState.COMPLETED]


def test_requests_of_an_older_process_leave_the_run_to_a_newer_one(bench: Workbench) -> None:
    manifest = write(strange(), schedule_type=NEW)
    trigger({manifest.id: TriggerRequest()}, now=bench.now)
    bench.dispatch()
    assert WorkQueue.objects.get(manifest=manifest).status == "queued"
    assert trigger_group(manifest.group_id, now=bench.now).total() == 1


def test_a_chain_of_causes_with_unknown_links_can_be_told() -> None:
    root = write(make_execution(strange(), source=NEW), state="paused")
    child = make_execution(strange(), source=Source.DEPENDENCY, parent_execution=root, root_execution=root)
    told = find_causes(child.id).in_words
    assert NEW in told
    assert find_arrivals(child) == []


def test_a_run_with_unknown_members_can_be_described() -> None:
    join, state = a_join()
    run = GraphRun.objects.get()
    member = Manifest.objects.get(external_id="member")
    Dependency.objects.filter(parent=member).update(condition=NEW_CONDITION)
    write(make_execution(member, run=run), state="paused")
    write(state, outcome="held")
    assert "held" in describe_run(run).in_words
    assert [report.outcome for report in describe_joins(run).reports] == ["held"]
    assert explain(join.id, pools=[Pool(registry.names())], now=NOW).code == Reason.PARENT_NOT_AHEAD


def test_an_unknown_schedule_has_no_next_runs() -> None:
    manifest = write(strange(), schedule_type=NEW)
    assert explain(manifest.id, pools=[Pool(registry.names())], now=NOW).next_runs == ()
