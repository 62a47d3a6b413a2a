"""Seeding: rows follow declarations, and nothing else is touched."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from chainsched import Cron, Every, ManifestItem, Once
from chainsched.domain.states import ScheduleType
from chainsched.exceptions import CycleError, DeclarationError, InvalidDeclarations, LimitExceeded
from chainsched.flow.schedule.declare import Schedules
from chainsched.flow.schedule.plan import plan
from chainsched.flow.schedule.seed import seed
from chainsched.models import Dependency, Manifest, ManifestGroup, ManifestState, NamedLock
from tests.drive import manifest
from tests.factories import NOW
from tests.testapp import workflows

pytestmark = pytest.mark.django_db

LATER = NOW + timedelta(hours=1)


@pytest.fixture
def schedules() -> Schedules:
    return Schedules()


def test_a_declaration_becomes_a_row_with_what_the_code_states(schedules):
    schedules.schedule(
        workflows.copy,
        "sync",
        workflows.Slice("users"),
        Every.minutes(5),
        group="etl",
        group_max_active_jobs=3,
        priority=9,
        max_retries=5,
        timeout=timedelta(minutes=2),
        jitter=30,
    )
    assert seed(schedules, now=NOW).created == ["sync"]
    row = manifest("sync")
    assert (row.workflow, row.input) == ("testapp.copy", {"table": "users", "size": 500})
    assert (row.schedule_type, row.interval_seconds) == (ScheduleType.INTERVAL, 300)
    assert (row.group.name, row.group.max_active_jobs) == ("etl", 3)
    assert (row.priority, row.max_retries, row.timeout_seconds, row.jitter_seconds) == (9, 5, 120, 30)
    assert (row.is_declared, row.owner, row.depth) == (True, "tests", 0)
    assert row.next_run_at is not None
    assert NOW <= row.next_run_at <= NOW + timedelta(seconds=30)


def test_the_group_is_the_external_id_when_none_is_named(schedules):
    schedules.schedule(workflows.ping, "alone", None, Every.minutes(5))
    seed(schedules, now=NOW)
    assert manifest("alone").group.name == "alone"


def test_seeding_twice_writes_nothing(schedules):
    chain = schedules.schedule(workflows.ping, "a", None, Every.minutes(5)).then_include(workflows.ping, "b")
    chain = chain.include(workflows.ping, "c").include(workflows.ping, "join", depends_on=["b", "c"], at_least=1)
    chain.include(workflows.ping, "siblings", fan_in=True).include(workflows.ping, "tree", fan_in="tree")
    schedules.schedule_many(workflows.ping, "many", [ManifestItem(str(n)) for n in range(20)], Cron.hourly())
    schedules.schedule(workflows.ping, "once", None, Once(at=LATER), exclusions=[])
    seed(schedules, now=NOW)
    with CaptureQueriesContext(connection) as captured:
        again = seed(schedules, now=LATER)
    assert (again.created, again.changed, again.unchanged) == ([], [], 27)
    writes = [query["sql"] for query in captured.captured_queries if query["sql"].startswith(("INSERT", "UPDATE"))]
    assert all("chainsched_namedlock" in sql for sql in writes)


def test_what_the_code_does_not_state_survives(schedules):
    schedules.schedule(workflows.ping, "sync", None, Every.minutes(5), group="etl")
    seed(schedules, now=NOW)
    Manifest.objects.update(is_enabled=False, priority=12)
    ManifestGroup.objects.update(max_active_jobs=2)
    ManifestState.objects.update(last_successful_run=NOW)
    seed(schedules, now=LATER)
    row = manifest("sync")
    assert (row.is_enabled, row.priority, row.group.max_active_jobs) == (False, 12, 2)
    assert row.last_successful_run == NOW


def test_what_the_code_states_wins(schedules):
    schedules.schedule(workflows.ping, "sync", None, Every.minutes(5), priority=3, enabled=True)
    seed(schedules, now=NOW)
    Manifest.objects.update(is_enabled=False, priority=12)
    assert seed(schedules, now=LATER).changed == ["sync"]
    assert (manifest("sync").is_enabled, manifest("sync").priority) == (True, 3)


def test_a_changed_schedule_begins_now_and_makes_up_for_nothing(schedules):
    schedules.schedule(workflows.ping, "sync", None, Every.days(1))
    seed(schedules, now=NOW)
    ManifestState.objects.update(last_finished_run=NOW, next_run_at=NOW + timedelta(days=1))
    schedules.clear()
    schedules.schedule(workflows.ping, "sync", None, Every.minutes(10))
    seed(schedules, now=LATER)
    assert manifest("sync").next_run_at == LATER + timedelta(minutes=10)


def test_a_timed_manifest_that_becomes_dependent_leaves_nothing_of_the_old_shape(schedules):
    schedules.schedule(workflows.ping, "a", None, Every.minutes(5))
    schedules.schedule(workflows.ping, "b", None, Cron.hourly())
    seed(schedules, now=NOW)
    schedules.clear()
    schedules.schedule(workflows.ping, "a", None, Every.minutes(5)).then_include(workflows.ping, "b")
    seed(schedules, now=LATER)
    row = manifest("b")
    assert (row.schedule_type, row.cron_expression, row.run_condition, row.depth) == ("dependent", "", 1, 1)
    assert row.depends_on == manifest("a")
    assert row.next_run_at is None

    schedules.clear()
    schedules.schedule(workflows.ping, "a", None, Every.minutes(5))
    schedules.schedule(workflows.ping, "b", None, Cron.hourly())
    seed(schedules, now=LATER)
    row = manifest("b")
    assert (row.schedule_type, row.depends_on, row.run_condition, row.depth) == ("cron", None, 0, 0)
    assert row.next_run_at == LATER + timedelta(hours=1)


def test_the_functions_of_batches_are_called_once_and_before_the_transaction(schedules):
    calls = []

    def items():
        calls.append(list(connection.savepoint_ids))
        return [ManifestItem("eu")]

    schedules.schedule_many(workflows.ping, "load", items, Every.hours(1))
    outside = list(connection.savepoint_ids)
    seed(schedules, now=NOW)
    Manifest.objects.update(priority=9)
    seed(schedules, now=NOW)
    assert calls == [outside, outside]


def test_a_batch_of_five_thousand_is_one_transaction_of_few_statements(schedules):
    items = [ManifestItem(str(n), workflows.Slice(f"t{n}")) for n in range(5000)]
    schedules.schedule_many(workflows.copy, "sync", items, Every.minutes(5))
    with CaptureQueriesContext(connection) as captured:
        seed(schedules, now=NOW)
    assert Manifest.objects.count() == ManifestState.objects.filter(next_run_at=NOW).count() == 5000
    assert len(captured.captured_queries) < 60


def test_the_items_of_a_callable_are_read_when_seeding(schedules):
    calls = []

    def items():
        calls.append(1)
        return [ManifestItem(str(n)) for n in range(3)]

    schedules.schedule_many(workflows.ping, "sync", items, Every.minutes(5))
    assert calls == []
    seed(schedules, now=NOW)
    assert calls == [1]
    assert set(Manifest.objects.values_list("external_id", flat=True)) == {"sync-0", "sync-1", "sync-2"}


def test_one_bad_item_and_nothing_is_written(schedules):
    items = [ManifestItem(str(n), workflows.Slice("t")) for n in range(10)] + [ManifestItem("bad", {"table": 7})]
    schedules.schedule(workflows.ping, "good", None, Every.minutes(5))
    schedules.schedule_many(workflows.copy, "sync", items, Every.minutes(5))
    with pytest.raises(DeclarationError, match="sync-bad") as caught:
        seed(schedules, now=NOW)
    assert caught.value.external_id == "sync-bad"
    assert not Manifest.objects.exists()
    assert not ManifestGroup.objects.exists()


def duplicate(schedules):
    schedules.schedule(workflows.ping, "same", None, Every.minutes(5))
    schedules.schedule(workflows.ping, "same", None, Every.minutes(6))


def unknown_parent(schedules):
    chain = schedules.schedule_many(workflows.ping, "a", [ManifestItem("1")], Every.minutes(5))
    chain.include_many(workflows.ping, "b", [ManifestItem("1", depends_on="nobody")])


def circle(schedules):
    chain = schedules.schedule_many(workflows.ping, "a", [], Every.minutes(5))
    chain.include_many(workflows.ping, "b", [ManifestItem("1", depends_on="b-2"), ManifestItem("2", depends_on="b-1")])


def circle_of_groups(schedules):
    schedules.schedule(workflows.ping, "a1", None, Every.minutes(5), group="A").then_include(
        workflows.ping, "b1", group="B"
    ).then_include(workflows.ping, "a2", group="A")


def no_common_ancestor(schedules):
    schedules.schedule(workflows.ping, "a", None, Every.minutes(5))
    chain = schedules.schedule(workflows.ping, "b", None, Every.minutes(5))
    chain.include(workflows.ping, "join", depends_on=["a", "b"])


def circle_through_a_fan_in(schedules):
    chain = schedules.schedule(workflows.ping, "a", None, Every.minutes(5), group="g")
    chain = chain.include(workflows.ping, "fan-in", fan_in=True, group="g")
    chain.include(workflows.ping, "after", depends_on=["a", "fan-in"], group="g")


def too_deep(schedules):
    chain = schedules.schedule(workflows.ping, "0", None, Every.minutes(5), group="g")
    for depth in range(1, 7):
        chain = chain.then_include(workflows.ping, str(depth), group="g")


def group_settings_at_odds(schedules):
    schedules.schedule(workflows.ping, "a", None, Every.minutes(5), group="g", group_priority=1)
    schedules.schedule(workflows.ping, "b", None, Every.minutes(5), group="g", group_priority=2)


@pytest.mark.parametrize(
    ("declare", "error", "words"),
    [
        (duplicate, DeclarationError, "'same' is declared twice"),
        (unknown_parent, DeclarationError, "'b-1' depends on 'nobody'"),
        (circle, CycleError, "b-1"),
        (circle_of_groups, CycleError, r"groups: \[A, B\]"),
        (no_common_ancestor, DeclarationError, "'join' depends on 'a', 'b', which have no manifest above them"),
        (circle_through_a_fan_in, CycleError, "The fan-in 'fan-in' waits for 'after'"),
        (too_deep, LimitExceeded, "MAX_JOB_DEPTH"),
        (group_settings_at_odds, DeclarationError, "'g' is declared with priority = 1"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(schedules, declare, error, words):
    declare(schedules)
    with pytest.raises(error, match=words):
        seed(schedules, now=NOW)
    assert not Manifest.objects.exists()
    assert not ManifestGroup.objects.exists()


def test_six_levels_are_allowed(schedules):
    chain = schedules.schedule(workflows.ping, "0", None, Every.minutes(5), group="g")
    for depth in range(1, 6):
        chain = chain.then_include(workflows.ping, str(depth), group="g")
    seed(schedules, now=NOW)
    assert manifest("5").depth == 5


def test_a_parent_that_is_stored_but_not_declared_is_found(schedules):
    schedules.schedule(workflows.ping, "stored", None, Every.minutes(5))
    seed(schedules, now=NOW)
    schedules.clear()
    chain = schedules.schedule_many(workflows.ping, "a", [], Every.minutes(5))
    chain.include_many(workflows.ping, "b", [ManifestItem("1", depends_on="stored")])
    seed(schedules, now=NOW)
    assert (manifest("b-1").depends_on, manifest("b-1").depth) == (manifest("stored"), 1)


def test_nothing_declared_writes_nothing(schedules):
    with CaptureQueriesContext(connection) as captured:
        seed(schedules, now=NOW)
    assert len(captured) == 0


def test_another_schedule_lets_what_was_done_run_again(schedules):
    schedules.schedule(workflows.ping, "once", None, Once(at=NOW))
    seed(schedules, now=NOW)
    Manifest.objects.update(done_at=NOW)
    schedules.clear()
    schedules.schedule(workflows.ping, "once", None, Every.minutes(5))
    seed(schedules, now=NOW)
    assert (manifest("once").done_at, manifest("once").next_run_at) == (None, NOW)


def test_a_dependent_whose_parent_leaves_the_code_may_get_a_schedule_of_its_own(schedules):
    schedules.schedule(workflows.ping, "a", None, Every.minutes(5)).then_include(workflows.ping, "b")
    seed(schedules, now=NOW)
    ManifestState.objects.filter(manifest=manifest("b")).update(due_execution=7)
    schedules.clear()
    schedules.schedule(workflows.ping, "b", None, Every.minutes(5))
    seed(schedules, now=NOW)
    state = ManifestState.objects.get(manifest=manifest("b"))
    assert (manifest("b").depends_on, state.due_execution, state.covered_execution) == (None, 0, 0)


def test_a_group_that_is_switched_on_by_the_code_runs_again(schedules):
    schedules.schedule(workflows.ping, "a", None, Every.minutes(5), group="g", group_enabled=False)
    seed(schedules, now=NOW)
    assert manifest("a").next_run_at is None
    schedules.clear()
    schedules.schedule(workflows.ping, "a", None, Every.minutes(5), group="g", group_enabled=True)
    seed(schedules, now=NOW)
    assert manifest("a").next_run_at == NOW


def test_a_manifest_that_moves_out_of_a_disabled_group_runs_again(schedules):
    schedules.schedule(workflows.ping, "a", None, Every.minutes(5), group="off", group_enabled=False)
    seed(schedules, now=NOW)
    schedules.clear()
    schedules.schedule(workflows.ping, "a", None, Every.minutes(5), group="on")
    seed(schedules, now=NOW)
    assert manifest("a").next_run_at == NOW


def test_a_dormant_child_that_wakes_up_for_good_is_looked_at(schedules):
    schedules.schedule(workflows.ping, "a", None, Every.minutes(5)).then_include(workflows.ping, "b", dormant=True)
    seed(schedules, now=NOW)
    ManifestState.objects.filter(manifest=manifest("a")).update(succeeded_execution=3, last_successful_run=NOW)
    schedules.clear()
    schedules.schedule(workflows.ping, "a", None, Every.minutes(5)).then_include(workflows.ping, "b")
    seed(schedules, now=NOW)
    assert manifest("b").next_run_at == NOW


def test_a_circle_through_what_is_stored_is_refused(schedules):
    schedules.schedule(workflows.ping, "a", None, Every.minutes(5), group="g").then_include(
        workflows.ping, "b", group="g"
    )
    seed(schedules, now=NOW)
    schedules.clear()
    chain = schedules.schedule(workflows.ping, "other", None, Every.minutes(5), group="g")
    chain.include_many(workflows.ping, None, [ManifestItem("a", depends_on="b")], group="g")
    with pytest.raises(CycleError):
        seed(schedules, now=NOW)
    assert manifest("a").depends_on is None


def test_everything_that_is_wrong_is_said_at_once(schedules):
    duplicate(schedules)
    unknown_parent(schedules)
    group_settings_at_odds(schedules)
    schedules.schedule_many(
        workflows.copy, "sync", [ManifestItem("x", {"table": 1}), ManifestItem("y", {"tabel": "t"})], Every.minutes(5)
    )
    with pytest.raises(InvalidDeclarations) as caught:
        seed(schedules, now=NOW)
    assert [problem.external_id for problem in caught.value.problems] == ["sync-x", "sync-y"]
    schedules._pending.pop()
    with pytest.raises(InvalidDeclarations) as caught:
        seed(schedules, now=NOW)
    assert [problem.external_id for problem in caught.value.problems] == ["same", "b-1", "b"]
    assert "'b-1' depends on 'nobody'" in str(caught.value)
    assert not Manifest.objects.exists()


def test_a_move_that_would_push_others_too_deep_is_refused(schedules):
    chain = schedules.schedule(workflows.ping, "0", None, Every.minutes(5), group="g")
    for depth in range(1, 5):
        chain = chain.then_include(workflows.ping, str(depth), group="g")
    schedules.schedule(workflows.ping, "top", None, Every.minutes(5), group="g").then_include(
        workflows.ping, "below", group="g"
    )
    seed(schedules, now=NOW)
    Manifest.objects.filter(external_id="0").update(is_declared=False)
    with pytest.raises(LimitExceeded, match="'4' would be at depth 6") as caught:
        Manifest.objects.schedule_dependent(workflows.ping, "0", None, depends_on="below", group="g")
    assert caught.value.value == 6


class TestJoins:
    def declare(self, schedules, **join):
        """A chain of two beside a single manifest, and a join."""
        schedules.clear()
        chain = schedules.schedule(workflows.ping, "head", None, Every.minutes(5), group="g")
        chain = chain.include(workflows.ping, "first", group="g").then_include(workflows.ping, "second", group="g")
        chain.include(workflows.ping, "single", group="g").include(workflows.ping, "join", group="g", **join)

    def edges(self):
        rows = Dependency.objects.filter(child=manifest("join")).order_by("parent__external_id")
        return list(rows.values_list("parent__external_id", "is_gate", "is_derived"))

    def test_a_join_is_below_its_deepest_parent_and_names_none_of_them_as_its_own(self, schedules):
        self.declare(schedules, depends_on=["second", "single"])
        seed(schedules, now=NOW)
        assert (manifest("join").depth, manifest("join").depends_on, manifest("join").is_join) == (3, None, True)
        assert self.edges() == [("second", False, False), ("single", False, False)]

    @pytest.mark.parametrize(("fan_in", "members"), [(True, ["first", "single"]), ("tree", ["second", "single"])])
    def test_a_fan_in_is_below_its_gate_whatever_its_members(self, schedules, fan_in, members):
        self.declare(schedules, fan_in=fan_in)
        seed(schedules, now=NOW)
        assert (manifest("join").depth, manifest("join").depends_on) == (1, manifest("head"))
        gate, derived = [("head", True, False)], [(name, False, True) for name in members]
        assert self.edges() == sorted([*gate, *derived])

    def test_the_version_of_the_graph_grows_with_its_edges_alone(self, schedules):
        self.declare(schedules, depends_on=["second", "single"])
        seed(schedules, now=NOW)
        first = NamedLock.objects.get(name="graph").version
        self.declare(schedules, depends_on=["second", "single"], at_least=1)
        seed(schedules, now=NOW)
        assert NamedLock.objects.get(name="graph").version == first
        self.declare(schedules, depends_on=["first", "single"])
        seed(schedules, now=NOW)
        assert NamedLock.objects.get(name="graph").version == first + 1
        since = dict(Dependency.objects.filter(child=manifest("join")).values_list("parent__external_id", "since"))
        assert since == {"first": first + 1, "single": first}

    def test_a_plan_names_edges_that_come_and_go_and_writes_nothing(self, schedules):
        self.declare(schedules, depends_on=["second", "single"])
        assert plan(schedules).edged == ["first", "single", "second", "join"]
        seed(schedules, now=NOW)
        self.declare(schedules, depends_on=["first", "single"])
        made = plan(schedules)
        changed = made.changed["join"]
        assert (changed["parents"].old, changed["parents"].new) == (("second", "single"), ("first", "single"))
        assert (made.edged, changed["depth"].new) == (["join"], 2)
        assert [name for name, _, _ in self.edges()] == ["second", "single"]

    def test_a_join_whose_parents_leave_the_code_may_become_a_plain_dependent(self, schedules):
        self.declare(schedules, depends_on=["second", "single"])
        seed(schedules, now=NOW)
        schedules.clear()
        chain = schedules.schedule(workflows.ping, "head", None, Every.minutes(5), group="g")
        chain.include(workflows.ping, "join", depends_on="head", group="g")
        assert seed(schedules, now=NOW).retired == ["first", "second", "single"]
        assert self.edges() == [("head", False, False)]
        assert (manifest("join").is_join, manifest("join").depth) == (False, 1)
