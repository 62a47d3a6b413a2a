"""Retention: whole trees, the last few kept, nothing open touched; from the loop and by command."""

import json
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from chainsched import Every, Once, RunCondition
from chainsched.domain.retention import Policy
from chainsched.domain.states import ExecutionState, QueueStatus
from chainsched.exceptions import ExecutionIsFinal
from chainsched.flow.maintain import clean as cleaning
from chainsched.flow.maintain.clean import clean, policy
from chainsched.flow.maintain.fsck import run_fsck
from chainsched.models import (
    DeadLetter,
    GraphRun,
    JoinState,
    Manifest,
    Metadata,
    Process,
    TakenOver,
    WorkQueue,
)
from chainsched.runtime.loops.cleaner import Cleaner
from tests.drive import executions_of, manifest
from tests.factories import NOW, make_execution, make_letter, make_manifest, make_process, make_queue_row
from tests.scenarios.graphs import GIVEN_UP, check_all_closed, end, end_all, make_diamond, next_run, start
from tests.testapp import workflows

pytestmark = pytest.mark.django_db

DAY = 24 * 3600
OLD = NOW - timedelta(days=31)
YOUNG = NOW - timedelta(days=29)
COMPLETED, FAILED = ExecutionState.COMPLETED, ExecutionState.FAILED


def old(manifest=None, **columns):
    return make_execution(manifest, **{"state": COMPLETED, "ended_at": OLD, **columns})


def sweep(rules=None, *, now=NOW):
    return clean(rules or Policy.of(30 * DAY, 0), now=now).removed


def left():
    return set(Metadata.objects.values_list("id", flat=True))


def test_old_executions_go_and_young_ones_stay():
    old()
    young = old(ended_at=YOUNG)
    assert sweep()["executions"] == 1
    assert left() == {young.id}


@pytest.mark.parametrize("state", [ExecutionState.PENDING, ExecutionState.IN_PROGRESS])
def test_what_has_not_ended_stays_however_old(state):
    active = make_execution(state=state, created_at=OLD)
    sweep()
    assert left() == {active.id}


def test_the_last_of_each_manifest_are_kept():
    first, second = make_manifest(), make_manifest()
    runs = [old(job) for _ in range(4) for job in (first, second)]
    assert sweep(Policy.of(30 * DAY, 2))["executions"] == 4
    assert left() == {run.id for run in runs[4:]}


def test_only_roots_are_counted():
    parent, child = make_manifest(), make_manifest()
    roots = [old(parent) for _ in range(3)]
    for root in roots:
        for _ in range(3):
            old(child, parent_execution=root, root_execution=root)
    sweep(Policy.of(30 * DAY, 1))
    assert set(Metadata.objects.values_list("root_execution_id", flat=True)) == {None, roots[2].id}
    assert Metadata.objects.count() == 4


def test_the_history_of_a_removed_manifest_goes_too():
    job = make_manifest()
    for _ in range(3):
        old(job)
    job.delete()
    assert sweep(Policy.of(30 * DAY, 1))["executions"] == 3


@pytest.mark.parametrize(
    "columns",
    [
        {"ended_at": YOUNG},
        {"state": ExecutionState.PENDING, "ended_at": None},
        {"state": ExecutionState.IN_PROGRESS, "ended_at": None},
    ],
    ids=["young", "pending", "running"],
)
def test_a_member_that_must_stay_keeps_its_tree(columns):
    root = old()
    middle = old(parent_execution=root, root_execution=root)
    leaf = old(parent_execution=middle, root_execution=root, **columns)
    sweep()
    assert left() == {root.id, middle.id, leaf.id}


def test_a_waiting_row_keeps_its_tree():
    root = old()
    make_queue_row(make_manifest(), parent_execution=root, root_execution=root)
    sweep()
    assert left() == {root.id}


@pytest.mark.parametrize("place", ["root", "member"])
def test_a_letter_that_awaits_keeps_its_tree(place):
    root = old(state=FAILED)
    member = old(state=FAILED, parent_execution=root, root_execution=root)
    letter = make_letter(make_manifest(), execution=root if place == "root" else member)
    sweep()
    assert left() == {root.id, member.id}
    letter.acknowledge()
    sweep()
    assert left() == set()


def test_the_queue_rows_of_what_goes_go_too_and_the_runs_it_took_over():
    root = old(work_queue=(row := make_queue_row()))
    WorkQueue.objects.filter(id=row.id).update(status=QueueStatus.DISPATCHED, execution=root)
    TakenOver.objects.create(run_id=10**6, execution_id=root.id)
    of_another = TakenOver.objects.create(run_id=10**6, execution_id=10**6)
    kept = make_queue_row()
    sweep()
    assert list(WorkQueue.objects.all()) == [kept]
    assert list(TakenOver.objects.all()) == [of_another]
    assert run_fsck(now=NOW) == []


def test_cancelled_rows_resolved_letters_and_dead_processes_go_by_age():
    for at in (OLD, YOUNG):
        make_queue_row(status=QueueStatus.CANCELLED, created_at=at)
        make_letter(status="acknowledged", resolved_at=at)
        make_process(stopped_at=at)
        make_process(lost_at=at)
    make_letter(dead_lettered_at=OLD)
    make_process(heartbeat_at=OLD)
    assert sweep() == {"queue rows": 1, "dead letters": 1, "processes": 2}
    assert (WorkQueue.objects.count(), DeadLetter.objects.count(), Process.objects.count()) == (1, 2, 3)


def test_a_process_that_still_holds_an_execution_stays():
    process = make_process(lost_at=OLD)
    make_execution(state=ExecutionState.IN_PROGRESS, process=process)
    sweep()
    assert Process.objects.exists()


@pytest.mark.parametrize("column", ["done_at", "retired_at"])
def test_manifests_that_are_over_go_by_age_unless_something_of_theirs_is_open(column):
    make_manifest("old", **{column: OLD})
    make_manifest("young", **{column: YOUNG})
    make_letter(make_manifest("letter", **{column: OLD}))
    make_queue_row(make_manifest("queued", **{column: OLD}))
    make_execution(make_manifest("running", **{column: OLD}))
    assert sweep() == {"manifests": 1}
    assert sorted(Manifest.objects.values_list("external_id", flat=True)) == ["letter", "queued", "running", "young"]


def test_a_declared_job_that_has_had_its_one_run_does_not_run_again(bench):
    bench.schedules.schedule(workflows.ping, "once", None, Once(NOW))
    bench.seed()
    assert bench.drain() == ["once"]
    bench.advance(days=40)
    clean(Policy.of(DAY, 0), now=bench.now)
    bench.seed()
    assert bench.drain() == []


def test_by_workflow_and_state_the_rules_differ():
    rules = Policy.of({"*": 30 * DAY, "failed": None, "testapp.copy": DAY}, 0)
    stays = [old(state=FAILED), old(ended_at=YOUNG)]
    old()
    old(workflow="testapp.copy", ended_at=NOW - timedelta(days=2))
    sweep(rules)
    assert left() == {run.id for run in stays}


def test_history_that_is_gone_changes_nothing_for_what_runs(bench):
    bench.schedules.schedule(workflows.ping, "a", None, Every.hours(1)).include(workflows.ping, "b")
    bench.seed()
    bench.drain()
    bench.advance(days=40)
    clean(Policy.of(DAY, 0), now=bench.now)
    assert left() == set()
    assert bench.drain() == ["a", "b"]
    assert run_fsck(now=bench.now) == []


def make_run(closed_at, **columns):
    """A run with the row of its end."""
    run = GraphRun.objects.create(
        head_external_id="head", scheduled_for=OLD, created_at=OLD, closed_at=closed_at, **columns
    )
    is_open = closed_at is None
    end = {"open": int(is_open), "outcome": "waiting" if is_open else "closed"}
    JoinState.objects.create(run=run, join_id=0, **end)
    return run


class TestRuns:
    def test_those_that_were_closed_long_ago_go_with_all_that_belongs_to_them(self):
        gone, kept = make_run(OLD), make_run(YOUNG)
        for run in (gone, kept):
            JoinState.objects.create(run=run, join_id=7, outcome="short")
            TakenOver.objects.create(run_id=run.id, execution_id=10**6)
        assert sweep() == {"runs": 1}
        assert list(GraphRun.objects.all()) == [kept]
        assert set(JoinState.objects.values_list("run_id", "join_id")) == {(kept.id, 0), (kept.id, 7)}
        assert list(TakenOver.objects.values_list("run_id", flat=True)) == [kept.id]

    @pytest.mark.parametrize("columns", [{}, {"cancelled_at": OLD}], ids=["open", "cancelled"])
    def test_an_open_one_stays_however_old(self, columns):
        run = make_run(None, **columns)
        assert sweep() == {}
        assert list(GraphRun.objects.all()) == [run]

    def test_one_stays_as_long_as_an_execution_of_it(self):
        run = make_run(OLD)
        young = old(run=run, ended_at=YOUNG)
        assert sweep() == {}
        assert GraphRun.objects.exists()
        sweep(now=NOW + timedelta(days=2))
        assert not Metadata.objects.filter(id=young.id).exists()
        assert not GraphRun.objects.exists()

    def test_the_tree_of_an_open_one_stays(self):
        run = make_run(None)
        root = old(run=run)
        member = old(run=run, parent_execution=root, root_execution=root)
        other = old()
        sweep()
        assert left() == {root.id, member.id}
        assert other.id not in left()
        GraphRun.objects.update(closed_at=OLD)
        sweep()
        assert left() == set()
        assert not GraphRun.objects.exists()

    def test_a_dry_run_counts_them(self):
        make_run(OLD)
        assert clean(Policy.of(30 * DAY, 0), now=NOW, is_dry_run=True).removed == {"runs": 1}
        assert GraphRun.objects.exists()

    def test_after_a_long_life_nothing_of_them_is_left(self, bench):
        """Joins that ran, that were short, and items that stood for several runs at once."""
        root = bench.schedules.schedule(workflows.ping, "root", None, Every.hours(1), group="g")
        for name in "ab":
            root.include(workflows.ping, name, group="g")
        root.include(workflows.ping, "both", depends_on=["a", "b"], group="g")
        root.include(workflows.ping, "all", fan_in=True, group="g")
        on_failure = {"run_condition": RunCondition.FAILURE, "group": "g"}
        root.include(workflows.ping, "neither", depends_on=["a", "b"], **on_failure)
        bench.seed()
        manifest("a").disable()
        for _ in range(3):
            manifest("root").trigger()
            bench.drain()
        manifest("a").enable()
        bench.run_for(hours=3)
        assert TakenOver.objects.exists()
        assert {"fired", "short"} <= set(JoinState.objects.values_list("outcome", flat=True))
        bench.advance(days=40)
        assert clean(Policy.of(DAY, 0), now=bench.now).removed["runs"] > 0
        counts = [model.objects.count() for model in (GraphRun, JoinState, TakenOver, Metadata)]
        assert counts == [0, 0, 0, 0]
        assert run_fsck(now=bench.now) == []

    def test_a_letter_that_awaits_keeps_its_run(self, bench):
        """Its retry is to arrive in the run that it failed in."""
        bench.schedules.schedule(workflows.ping, "root", None, Every.hours(1)).include(workflows.give_up, "child")
        bench.seed()
        bench.drain()
        run = GraphRun.objects.get().id
        assert executions_of("child")[0].run_id == run
        bench.advance(days=40)
        clean(Policy.of(DAY, 0), now=bench.now)
        assert list(GraphRun.objects.values_list("id", flat=True)) == [run]
        DeadLetter.objects.get().acknowledge()
        clean(Policy.of(DAY, 0), now=bench.now)
        assert not GraphRun.objects.filter(id=run).exists()

    def test_a_letter_keeps_all_runs_that_its_execution_stood_for(self, bench):
        """Its retry lets the join run in each of them; the run before them may go."""
        make_diamond()
        end(bench, "head")
        start(bench)
        end(bench, "a", "b")
        for _ in range(2):
            next_run(bench)
            end(bench, "a", "b")
        end(bench, "c")
        end(bench, "c", outcome=GIVEN_UP)
        end_all(bench)
        bench.advance(days=31)
        Process.objects.update(heartbeat_at=bench.now)
        Manifest.objects.filter(external_id="head").update(is_enabled=False)
        _, *others = GraphRun.objects.order_by("id")
        for _ in range(2):
            clean(Policy.of(30 * DAY, 0), now=bench.now)
        assert list(GraphRun.objects.order_by("id")) == others
        DeadLetter.objects.get().retry()
        assert end_all(bench) == ["c", "join"]
        assert executions_of("join")[0].run == others[1]
        assert TakenOver.objects.filter(run_id=others[0].id, execution_id=executions_of("join")[0].id).exists()
        check_all_closed(bench)


def test_work_is_done_page_by_page_and_batch_by_batch(monkeypatch):
    monkeypatch.setattr(cleaning, "PAGE", 3)
    monkeypatch.setattr(cleaning, "BATCH", 2)
    young = [old(ended_at=YOUNG) for _ in range(4)]
    for _ in range(3):
        old()
    cleaner = Cleaner()
    with_settings = [cleaner.turn(NOW) for _ in range(4)]
    assert [turn.did for turn in with_settings] == [0, 2, 1, 0]
    assert [turn.has_more for turn in with_settings] == [False, True, False, False]
    assert left() == {run.id for run in young}


def test_the_loop_removes_nothing_when_retention_is_off(settings):
    settings.CHAINSCHED = {"RETENTION": None}
    old()
    assert Cleaner().turn(NOW).did == 0
    assert Metadata.objects.exists()


def test_the_settings_make_the_policy(settings):
    settings.CHAINSCHED = {"RETENTION": {"*": 60, "failed": 90}, "KEEP_LAST": {"*": 1, "testapp.copy": 5}}
    rules = policy()
    assert rules.keep_for("testapp.ping", FAILED) == timedelta(seconds=90)
    assert (rules.keep_last("testapp.copy"), rules.keep_last("testapp.ping")) == (5, 1)


def in_twos(items, *, size=0):
    return (items[at : at + 2] for at in range(0, len(items), 2))


def test_an_interrupted_removal_is_finished_by_the_next(monkeypatch):
    root = old()
    for _ in range(3):
        old(parent_execution=root, root_execution=root)
    monkeypatch.setattr(
        cleaning, "chunks", lambda items, size=2: (items[at : at + 2] for at in range(0, len(items), 2))
    )
    purge = type(Metadata.objects.all()).purge
    calls: list[object] = []

    def purge_once(self, ids):
        if calls:
            raise KeyboardInterrupt
        calls.append(ids)
        return purge(self, ids)

    monkeypatch.setattr(type(Metadata.objects.all()), "purge", purge_once)
    with pytest.raises(KeyboardInterrupt):
        sweep()
    assert root.id in left()
    monkeypatch.undo()
    sweep()
    assert left() == set()


def test_nobody_else_deletes_executions():
    run = old()
    with pytest.raises(ExecutionIsFinal):
        run.delete()
    with pytest.raises(ExecutionIsFinal):
        Metadata.objects.all().delete()


@pytest.mark.postgres
def test_the_door_is_shut_behind_retention():
    old()
    sweep()
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('chainsched.retention', true)")
        assert cursor.fetchone()[0] == "off"


class TestTheCommand:
    @pytest.fixture(autouse=True)
    def _at_now(self, bench):
        """The bench's clock stands at NOW."""

    def call(self, *arguments: str) -> str:
        out = StringIO()
        call_command("chainsched", "cleanup", *arguments, stdout=out)
        return out.getvalue()

    def test_it_removes_as_the_settings_say(self, settings):
        settings.CHAINSCHED = {"KEEP_LAST": 0}
        old()
        young = old(ended_at=YOUNG)
        assert self.call() == "Removed: 1 executions.\n"
        assert left() == {young.id}
        assert self.call() == "Removed: nothing.\n"

    def test_age_and_count_can_be_given(self):
        job = make_manifest()
        runs = [old(job, ended_at=NOW - timedelta(hours=13)) for _ in range(3)]
        self.call("--older-than", "0.5", "--keep-last", "1")
        assert left() == {runs[2].id}

    def test_workflow_and_state_can_be_given_and_then_nothing_else_goes(self):
        old(workflow="testapp.copy", state=FAILED)
        stays = [old(), old(workflow="testapp.copy"), old(state=FAILED)]
        make_letter(status="acknowledged", resolved_at=OLD)
        self.call("--keep-last", "0", "--workflow", "testapp.copy", "--state", "failed")
        assert left() == {run.id for run in stays}
        assert DeadLetter.objects.exists()

    def test_a_dry_run_counts_and_removes_nothing(self):
        old()
        make_letter(status="acknowledged", resolved_at=OLD)
        make_manifest(done_at=OLD)
        output = self.call("--keep-last", "0", "--dry-run")
        assert output == "Would remove: 1 dead letters, 1 executions, 1 manifests.\n"
        assert left()
        assert DeadLetter.objects.exists()
        assert Manifest.objects.exists()

    def test_for_programs_it_prints_json(self):
        old()
        assert json.loads(self.call("--keep-last", "0", "--json")) == {
            "removed": {"executions": 1},
            "is_dry_run": False,
        }

    def test_it_says_when_nothing_would_ever_go(self, settings):
        settings.CHAINSCHED = {"RETENTION": None}
        assert "--older-than" in self.call()

    @pytest.mark.parametrize(
        "arguments", [("--older-than", "0"), ("--older-than", "x"), ("--keep-last", "-1"), ("--state", "pending")]
    )
    def test_bad_input_is_refused(self, arguments):
        with pytest.raises(CommandError, match=arguments[0]):
            self.call(*arguments)

    def test_all_pages_are_swept(self, monkeypatch):
        monkeypatch.setattr(cleaning, "PAGE", 2)
        for _ in range(5):
            old()
        self.call("--keep-last", "0")
        assert left() == set()


def test_a_manifest_and_its_next_run_survive_cleanup(bench):
    bench.schedules.schedule(workflows.ping, "job", None, Every.hours(1))
    bench.seed()
    bench.drain()
    alarm = manifest("job").next_run_at
    clean(Policy.of(1, 0), now=bench.now + timedelta(minutes=5))
    assert executions_of("job") == []
    assert manifest("job").next_run_at == alarm
