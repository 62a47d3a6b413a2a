"""fsck: each invariant is broken on purpose, found with its evidence and repaired; a sound database has no findings."""

import json
from collections.abc import Callable
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.models import F

from chainsched import Every
from chainsched.db import audit_guard
from chainsched.domain import outcomes
from chainsched.domain.outcomes import Finished
from chainsched.domain.parking import ParkedFor
from chainsched.domain.states import ExecutionState, QueueStatus, RunCondition, ScheduleType, Source
from chainsched.flow.maintain.fsck import CHECKS, RECONCILED, reconcile, run_fsck
from chainsched.flow.maintain.fsck_executions import queue_and_executions_agree
from chainsched.flow.run.claim import claim
from chainsched.flow.run.dispatch import dispatch
from chainsched.flow.run.fold_notes import settle
from chainsched.flow.run.record import record
from chainsched.models import (
    DeadLetter,
    Dependency,
    GraphRun,
    JoinState,
    Manifest,
    ManifestState,
    Metadata,
    Near,
    Process,
    WorkQueue,
)
from chainsched.registry import registry
from tests.drive import executions_of, manifest
from tests.factories import make_dependent, make_execution, make_letter, make_manifest, make_process, make_queue_row
from tests.testapp import workflows

pytestmark = [pytest.mark.django_db, pytest.mark.slow_on_postgres]

GROUP = {"group": "g"}


@pytest.fixture
def family(bench):
    """Something of everything: a root with a chain, two members and a continuation, all run once."""
    root = bench.schedules.schedule(workflows.ping, "root", None, Every.hours(1), **GROUP)
    for name in "ab":
        root = root.include(workflows.ping, name, **GROUP)
    root.include(workflows.ping, "join", fan_in=True, **GROUP)
    root.then_include(workflows.ping, "child", **GROUP).then_include(workflows.ping, "leaf", **GROUP)
    bench.seed()
    bench.drain()
    return bench


def state(name: str):
    return ManifestState.objects.filter(manifest__external_id=name)


def without_constraint(name: str) -> None:
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
            cursor.execute(f"ALTER TABLE chainsched_manifeststate DROP CONSTRAINT {name}")
        else:
            cursor.execute("PRAGMA ignore_check_constraints = ON")


@pytest.fixture(autouse=True)
def _check_constraints_again():
    yield
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA ignore_check_constraints = OFF")


def alarm_lost(bench):
    state("root").update(next_run_at=None)


def wish_lost(bench):
    state("leaf").update(trigger_at=bench.now, next_run_at=None)


def dependent_forgotten(bench):
    state("child").update(covered_execution=0, next_run_at=None)


def alarm_beside_queued_row(bench):
    make_queue_row(manifest("root"))


def alarm_on_disabled(bench):
    Manifest.objects.filter(external_id="root").update(is_enabled=False)


def alarm_on_idle_dependent(bench):
    state("child").update(next_run_at=bench.now + timedelta(hours=1))


def queued_beside_running(bench):
    state("root").update(next_run_at=None)
    make_queue_row(manifest("root"))
    make_execution(manifest("root"), state=ExecutionState.PENDING)


def queued_beside_letter(bench):
    state("root").update(next_run_at=None)
    make_queue_row(manifest("root"))
    make_letter(manifest("root"))


def letter_beside_running(bench):
    state("root").update(next_run_at=None)
    make_letter(manifest("root"))
    make_execution(manifest("root"), state=ExecutionState.PENDING)


def covered_ahead_of_due(bench):
    without_constraint("chainsched_state_due_not_behind")
    newest = executions_of("root")[0].id
    state("child").update(due_execution=newest - 1, covered_execution=newest)


def due_ahead_of_parent(bench):
    state("child").update(due_execution=10**6, covered_execution=10**6)


def edge_lost(bench):
    Dependency.objects.filter(child=manifest("child")).delete()


def edge_with_another_condition(bench):
    Dependency.objects.filter(child=manifest("child")).update(condition=RunCondition.FAILURE)


def edge_that_is_not_declared(bench):
    Dependency.objects.create(child=manifest("leaf"), parent=manifest("a"), condition=RunCondition.SUCCESS)


def gate_taken_for_a_member(bench):
    Dependency.objects.filter(child=manifest("join"), parent=manifest("root")).update(is_gate=False)


def member_lost(bench):
    Dependency.objects.filter(child=manifest("join"), parent=manifest("a")).delete()


def member_of_another_family(bench):
    edge = {"condition": RunCondition.COMPLETION, "is_derived": True}
    Dependency.objects.create(child=manifest("join"), parent=manifest("leaf"), **edge)


def join_ahead_lost(bench):
    Near.objects.filter(manifest=manifest("a")).delete()


def wrong_join_ahead(bench):
    Near.objects.create(manifest=manifest("root"), join_id=manifest("leaf").id)


def members_under_way(bench):
    """A run whose root is done: its members wait in the queue, and the continuation for them."""
    manifest("root").trigger()
    bench.manage()
    bench.dispatch()
    bench.work()
    bench.manage()
    assert set(bench.queued()) == {"a", "b"}


def waiting_join():
    return JoinState.objects.waiting().filter(join_id=manifest("join").id)


def token_counted_twice(bench):
    """The continuation waits for an item that nobody has."""
    members_under_way(bench)
    waiting_join().update(open=F("open") + 1)


def token_not_counted(bench):
    members_under_way(bench)
    waiting_join().update(open=F("open") - 1)


def row_lost_with_its_tokens(bench):
    members_under_way(bench)
    WorkQueue.objects.queued().filter(manifest=manifest("a")).delete()
    state("a").update(next_run_at=None)


def run_open_though_over(bench):
    GraphRun.objects.update(closed_at=None)


def run_closed_too_soon(bench):
    members_under_way(bench)
    GraphRun.objects.open().update(closed_at=bench.now)


def join_not_decided(bench):
    """All that it waited for has ended, and nothing will make it look."""
    members_under_way(bench)
    rows = WorkQueue.objects.queued()
    for row in rows:
        JoinState.objects.filter(id__in=row.tokens).update(open=F("open") - 1)
    rows.update(tokens=[], has_tokens=False, run=None)


def part_of_a_disabled_member(bench):
    """The continuation waits for a member that was disabled by hand, in SQL."""
    members_under_way(bench)
    Manifest.objects.filter(external_id="a").update(is_enabled=False)


def part_of_a_disabled_member_that_is_due(bench):
    members_under_way(bench)
    row = WorkQueue.objects.queued().get(manifest=manifest("a"))
    due = {"due_run": row.run_id, "due_tokens": row.tokens, "due_has_tokens": True, "next_run_at": None}
    WorkQueue.objects.filter(id=row.id).delete()
    state("a").update(covered_execution=0, **due)
    Manifest.objects.filter(external_id="a").update(is_enabled=False)


def no_part_of_a_member_that_may_run(bench):
    members_under_way(bench)
    row = WorkQueue.objects.queued().get(manifest=manifest("a"))
    JoinState.objects.filter(id__in=row.tokens).update(open=F("open") - 1)
    WorkQueue.objects.filter(id=row.id).update(has_tokens=False)


def process_gone(bench):
    manifest("root").trigger()
    bench.manage()
    bench.dispatch()
    claim(process=bench.process, workflows=registry.names(), limit=1, now=bench.now)
    Process.objects.filter(pk=bench.process.pk).update(lost_at=bench.now)


def process_missing(bench):
    state("root").update(next_run_at=None)
    make_execution(manifest("root"), state=ExecutionState.IN_PROGRESS, started_at=bench.now)


def manifest_gone_behind_our_back(bench):
    row = make_queue_row(manifest("leaf"))
    WorkQueue.objects.filter(id=row.id).update(manifest=10**9)


def execution_gone(bench):
    row = make_queue_row(manifest("leaf"))
    WorkQueue.objects.filter(id=row.id).update(status=QueueStatus.DISPATCHED, execution=10**9)


def row_names_nobody(bench):
    row = make_queue_row(manifest("leaf"))
    make_execution(manifest("leaf"), work_queue=row)


def row_names_another(bench):
    first = executions_of("root")[0]
    row = make_queue_row(None)
    WorkQueue.objects.filter(id=row.id).update(status=QueueStatus.DISPATCHED, execution=first)
    make_execution(None, work_queue=row)


def row_missing(bench):
    make_execution(None, work_queue_id=10**9)


def depth_wrong(bench):
    Manifest.objects.filter(external_id="leaf").update(depth=7)


def wrong_root(bench):
    parent = executions_of("child")[0]
    make_execution(None, parent_execution=parent, root_execution=parent)


def root_missing(bench):
    make_execution(None, parent_execution=executions_of("child")[0])


def root_without_parent(bench):
    make_execution(None, root_execution=executions_of("root")[0])


def queued_with_wrong_root(bench):
    parent = executions_of("child")[0]
    make_queue_row(manifest("leaf"), source=Source.DEPENDENCY, parent_execution=parent, root_execution=parent)


def cycle(bench):
    edge = {"condition": RunCondition.SUCCESS, "since": 0}
    Dependency.objects.create(child=manifest("root"), parent=manifest("leaf"), **edge)
    Manifest.objects.filter(external_id="root").update(
        depends_on=manifest("leaf"),
        schedule_type=ScheduleType.DEPENDENT,
        run_condition=RunCondition.SUCCESS,
        interval_seconds=None,
    )
    state("root").update(next_run_at=None)


def guard_removed(bench):
    with connection.cursor() as cursor:
        for statement in audit_guard._REMOVE[connection.vendor]:
            cursor.execute(statement)


def state_row_missing(bench):
    state("leaf").delete()


def manifest_put_aside(bench):
    ManifestState.objects.put_aside({manifest("root").id: "it does not fit"}, now=bench.now)


def row_put_aside(bench):
    bench.travel_to(bench.now + timedelta(hours=1))
    bench.manage()
    row = WorkQueue.objects.queued().get(manifest=manifest("root"))
    WorkQueue.objects.put_aside({row.id: "it does not fit"}, now=bench.now)


def row_parked(bench):
    bench.travel_to(bench.now + timedelta(hours=1))
    bench.manage()
    WorkQueue.objects.queued().filter(manifest=manifest("root")).update(parked_for=ParkedFor.DISABLED)


BROKEN: list[tuple[str, Callable[..., None], str]] = [
    ("alarm_missing", alarm_lost, "root"),
    ("alarm_missing", wish_lost, "leaf"),
    ("alarm_missing", dependent_forgotten, "child"),
    ("alarm_forbidden", alarm_beside_queued_row, "root"),
    ("alarm_forbidden", alarm_on_disabled, "root"),
    ("alarm_forbidden", alarm_on_idle_dependent, "child"),
    ("open_items", queued_beside_running, "root"),
    ("open_items", queued_beside_letter, "root"),
    ("open_items", letter_beside_running, "root"),
    ("numbers", covered_ahead_of_due, "child"),
    ("numbers", due_ahead_of_parent, "child"),
    ("edges", edge_lost, "child"),
    ("edges", edge_with_another_condition, "child"),
    ("edges", edge_that_is_not_declared, "leaf"),
    ("edges", gate_taken_for_a_member, "join"),
    ("members", member_lost, "join"),
    ("members", member_of_another_family, "join"),
    ("joins_ahead", join_ahead_lost, "a"),
    ("joins_ahead", wrong_join_ahead, "root"),
    ("tokens", token_counted_twice, "join "),
    ("tokens", token_not_counted, "join "),
    ("tokens", row_lost_with_its_tokens, "join "),
    ("run_end", run_open_though_over, "join 0 "),
    ("run_end", run_closed_too_soon, "join 0 "),
    ("run_end", join_not_decided, "join "),
    ("parts", part_of_a_disabled_member, "a"),
    ("parts", part_of_a_disabled_member_that_is_due, "a"),
    ("parts", no_part_of_a_member_that_may_run, "a"),
    ("process", process_gone, "root"),
    ("process", process_missing, "root"),
    ("orphaned_row", manifest_gone_behind_our_back, "leaf"),
    ("queue_link", execution_gone, "leaf"),
    ("queue_link", row_names_nobody, "leaf"),
    ("queue_link", row_names_another, "testapp.ping"),
    ("queue_link", row_missing, "testapp.ping"),
    ("depth", depth_wrong, "leaf"),
    ("lineage", wrong_root, "testapp.ping"),
    ("lineage", root_missing, "testapp.ping"),
    ("lineage", root_without_parent, "testapp.ping"),
    ("lineage", queued_with_wrong_root, "leaf"),
    ("cycle", cycle, "root"),
    ("guard", guard_removed, "chainsched_metadata"),
    ("state_row", state_row_missing, "leaf"),
    ("put_aside", manifest_put_aside, "root"),
    ("put_aside", row_put_aside, "root"),
    ("parked", row_parked, "root"),
]


def test_a_sound_database_has_no_findings(family):
    assert run_fsck(now=family.now) == []
    family.run_for(hours=3)
    assert run_fsck(now=family.now) == []


@pytest.mark.parametrize(("check", "break_it", "subject"), BROKEN, ids=lambda value: getattr(value, "__name__", value))
def test_what_is_broken_is_found_and_repaired(family, check, break_it, subject):
    break_it(family)
    found = [finding for finding in run_fsck(now=family.now) if finding.check == check]
    assert found
    assert subject in found[0].subject
    assert found[0].evidence
    assert not found[0].is_repaired
    repaired = run_fsck(now=family.now, repair=True)
    assert check in {finding.check for finding in repaired}
    assert all(finding.is_repaired for finding in repaired)
    settle(now=family.now)
    assert run_fsck(now=family.now) == []
    assert run_fsck(now=family.now, repair=True) == []


def test_looking_changes_nothing(family):
    for _, break_it, _ in BROKEN[:4]:
        break_it(family)
    before = list(ManifestState.objects.order_by("manifest_id").values())
    first = run_fsck(now=family.now)
    assert first == run_fsck(now=family.now)
    assert list(ManifestState.objects.order_by("manifest_id").values()) == before


def test_only_the_manifest_whose_joins_ahead_are_wrong_is_named(family):
    """Those above it lead where their edges say, whatever is stored below them."""
    Near.objects.create(manifest=manifest("a"), join_id=manifest("leaf").id)
    found = [(finding.check, finding.subject) for finding in run_fsck(now=family.now)]
    assert found == [("joins_ahead", "a")]


def test_every_check_is_broken_here():
    assert {check for check, _, _ in BROKEN} | {"limits"} == set(CHECKS)


class TestWhatMendingLeads:
    def test_a_forgotten_dependent_runs(self, family):
        dependent_forgotten(family)
        run_fsck(now=family.now, repair=True)
        assert "child" in family.drain()

    @pytest.mark.parametrize("break_it", [token_counted_twice, token_not_counted, row_lost_with_its_tokens])
    def test_a_continuation_runs_once_after_all_its_members(self, family, break_it):
        break_it(family)
        is_a_lost = break_it is row_lost_with_its_tokens
        run_fsck(now=family.now, repair=True)
        ran = family.drain()
        assert sorted(ran) == [*(() if is_a_lost else ("a",)), "b", "child", "join", "leaf"]
        assert ran.index("join") > max(ran.index(name) for name in ("a", "b") if name in ran)
        assert run_fsck(now=family.now) == []

    def test_a_continuation_that_nothing_made_look_runs(self, family):
        join_not_decided(family)
        run_fsck(now=family.now, repair=True)
        settle(now=family.now)
        family.manage()
        assert "join" in family.queued()

    def test_a_continuation_goes_on_without_a_disabled_member(self, family):
        part_of_a_disabled_member(family)
        run_fsck(now=family.now, repair=True)
        assert sorted(family.drain()) == ["b", "child", "join", "leaf"]

    def test_a_run_that_was_closed_too_soon_is_open_until_it_ends(self, family):
        run_closed_too_soon(family)
        run_fsck(now=family.now, repair=True)
        settle(now=family.now)
        assert GraphRun.objects.open().count() == 1
        family.drain()
        assert not GraphRun.objects.open().exists()

    def test_a_lost_edge_is_there_again_and_lets_its_child_run(self, family):
        edge_lost(family)
        run_fsck(now=family.now, repair=True)
        manifest("root").trigger()
        assert "child" in family.drain()

    def test_a_lost_member_is_waited_for_in_the_next_run(self, family):
        member_lost(family)
        join_ahead_lost(family)
        run_fsck(now=family.now, repair=True)
        members_under_way(family)
        assert waiting_join().get().open == 2

    def test_a_lost_execution_is_retried(self, family):
        process_gone(family)
        run_fsck(now=family.now, repair=True)
        assert executions_of("root")[-1].state == ExecutionState.FAILED
        assert family.queued() == ["root"]

    def test_a_silent_process_is_reported_and_left_to_those_that_watch_it(self, family):
        process_gone(family)
        Process.objects.update(lost_at=None, heartbeat_at=family.now - timedelta(hours=1))
        (finding,) = run_fsck(now=family.now, repair=True)
        assert not finding.is_repaired
        assert "once it has watched that process" in finding.evidence
        assert Process.objects.get().lost_at is None
        assert executions_of("root")[-1].state == ExecutionState.IN_PROGRESS

    def test_numbers_ahead_of_the_parent_let_its_next_success_count(self, family):
        due_ahead_of_parent(family)
        run_fsck(now=family.now, repair=True)
        assert family.drain() == []
        manifest("root").trigger()
        assert "child" in family.drain()

    def test_a_circle_is_cut_at_its_youngest_member(self, family):
        cycle(family)
        run_fsck(now=family.now, repair=True)
        assert [row.external_id for row in Manifest.objects.filter(depends_on__isnull=True)] == ["leaf"]

    def test_a_letter_beside_a_run_is_closed_with_a_note(self, family):
        letter_beside_running(family)
        run_fsck(now=family.now, repair=True)
        assert "fsck" in DeadLetter.objects.get().note

    def test_the_guard_guards_again(self, family):
        guard_removed(family)
        run_fsck(now=family.now, repair=True)
        assert audit_guard.is_present(connection)


def test_an_execution_that_has_ended_is_reported_and_left(family):
    parent = executions_of("child")[0]
    make_execution(None, parent_execution=parent, root_execution=parent, state=ExecutionState.COMPLETED)
    (finding,) = run_fsck(now=family.now, repair=True)
    assert "final" in finding.evidence
    assert not finding.is_repaired


def test_a_link_is_judged_again_under_the_lock_on_its_manifest(family, monkeypatch):
    """Meanwhile the execution was taken back, and its row waits in the queue again."""
    row_names_nobody(family)
    row = WorkQueue.objects.queued().get()
    lock = ManifestState.objects.lock

    def lock_late(manifest_ids):
        Metadata.objects.filter(work_queue=row).update(work_queue=None)
        return lock(manifest_ids)

    monkeypatch.setattr(ManifestState.objects, "lock", lock_late)
    (finding,) = queue_and_executions_agree("links", now=family.now, repair=True)
    assert not finding.is_repaired
    row.refresh_from_db()
    assert (row.status, row.execution_id) == (QueueStatus.QUEUED, None)


class TestLimits:
    def test_a_group_above_its_limit_is_reported_and_ends_by_itself(self, family):
        manifest("root").trigger()
        family.manage()
        family.dispatch()
        make_dependent(manifest("root"), "extra", group=manifest("root").group)
        make_execution(manifest("extra"))
        manifest("root").group.__class__.objects.filter(name="g").update(max_active_jobs=1)
        (finding,) = run_fsck(now=family.now, repair=True)
        assert (finding.check, finding.subject, finding.is_repaired) == ("limits", "group g", False)
        assert "2 of its executions are active, its limit is 1" in finding.evidence
        family.work()
        assert run_fsck(now=family.now, checks=["limits"]) == []

    def test_so_is_the_whole(self, family, settings):
        settings.CHAINSCHED = {"MAX_ACTIVE_JOBS": 1}
        for _ in range(2):
            make_execution(None)
        (finding,) = run_fsck(now=family.now)
        assert (finding.subject, finding.evidence) == (
            "MAX_ACTIVE_JOBS",
            "2 executions are active, the setting allows 1",
        )


class TestReconcile:
    @pytest.mark.parametrize(
        ("check", "break_it"), [(check, break_it) for check, break_it, _ in BROKEN if check in RECONCILED]
    )
    def test_the_loop_repairs_with_the_same_code(self, family, check, break_it, caplog):
        break_it(family)
        assert reconcile(now=family.now) > 0
        assert "Repaired" in caplog.text
        assert run_fsck(now=family.now) == []

    def test_it_finds_nothing_while_work_is_under_way(self, family):
        for name in ("root", "a", "child"):
            manifest(name).trigger()
        family.manage()
        dispatch(workflows=registry.names(), now=family.now, limit=2)
        claims = claim(process=family.process, workflows=registry.names(), limit=1, now=family.now)
        assert reconcile(now=family.now) == 0
        failed = outcomes.raised(RuntimeError("broken"))
        record([Finished(claims[0].execution_id, failed)], by=family.process, now=family.now)
        assert run_fsck(now=family.now) == []


class TestTheCommand:
    def call(self, *arguments: str) -> tuple[int, str]:
        out = StringIO()
        try:
            call_command("chainsched", "fsck", *arguments, stdout=out, no_color=True)
        except SystemExit as ended:
            return int(str(ended.code)), out.getvalue()
        return 0, out.getvalue()

    def test_all_is_well(self, family):
        code, output = self.call()
        assert code == 0
        assert output.count("ok   ") == len(CHECKS)
        assert output.endswith("0 findings, 0 repaired.\n")

    def test_a_finding_is_shown_with_its_evidence_and_an_exit_code(self, family):
        alarm_lost(family)
        code, output = self.call()
        assert code == 1
        assert "WRONG alarm_missing" in output
        assert "root: it has no alarm although it has no open item" in output

    def test_repairing_ends_well_when_all_could_be_repaired(self, family):
        alarm_lost(family)
        code, output = self.call("--repair")
        assert code == 0
        assert "Repaired." in output
        assert self.call()[0] == 0

    def test_what_cannot_be_repaired_keeps_the_exit_code(self, family):
        parent = executions_of("child")[0]
        make_execution(None, parent_execution=parent, root_execution=parent, state=ExecutionState.COMPLETED)
        assert self.call("--repair")[0] == 1

    def test_one_check_can_be_asked_for(self, family):
        alarm_lost(family)
        depth_wrong(family)
        code, output = self.call("--check", "depth")
        assert code == 1
        assert "alarm_missing" not in output

    def test_for_programs_it_prints_json(self, family):
        depth_wrong(family)
        _, output = self.call("--json")
        (finding,) = json.loads(output)["findings"]
        assert (finding["check"], finding["subject"], finding["is_repaired"]) == ("depth", "leaf", False)

    def test_many_findings_are_cut(self, family):
        for _ in range(30):
            make_execution(None, work_queue_id=10**9)
        assert "… and 10 more; --json lists them all." in self.call()[1]


def test_a_live_process_is_no_finding(family):
    process = make_process(heartbeat_at=family.now)
    make_execution(make_manifest(state={}), state=ExecutionState.IN_PROGRESS, process=process)
    assert Metadata.objects.in_progress().exists()
    assert run_fsck(now=family.now) == []
