"""Fan-in: a continuation runs once, after all its siblings have had their part."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from chainsched import Every, ManifestItem, RunCondition
from chainsched.domain import outcomes
from chainsched.domain.outcomes import Finished, Outcome
from chainsched.domain.states import ExecutionState
from chainsched.exceptions import DeclarationError
from chainsched.flow.maintain.fsck import reconcile
from chainsched.flow.run.claim import claim
from chainsched.flow.run.record import record
from chainsched.models import Manifest, Metadata
from chainsched.registry import registry
from tests.drive import executions_of, manifest
from tests.testapp import workflows

pytestmark = [pytest.mark.django_db, pytest.mark.slow_on_postgres]

GROUP = {"group": "g"}


@pytest.fixture
def family(bench):
    """A parent with three members and a continuation."""
    chain = bench.schedules.schedule(workflows.ping, "parent", None, Every.hours(1), **GROUP)
    for name in "abc":
        chain = chain.include(workflows.ping, name, **GROUP, max_retries=1)
    chain.include(workflows.ping, "join", fan_in=True, **GROUP)
    bench.seed()
    bench.manage()
    bench.dispatch()
    finish(bench, "parent")
    return bench


def start_all(bench):
    bench.manage()
    bench.dispatch()
    claim(process=bench.process, workflows=registry.names(), limit=100, now=bench.now)


def finish(bench, name, outcome=None):
    """End the open execution of a manifest."""
    start_all(bench)
    execution = Metadata.objects.in_progress().get(manifest_external_id=name)
    record([Finished(execution.id, outcome or outcomes.completed(None))], by=bench.process, now=bench.now)
    return execution


def joined(bench):
    start_all(bench)
    return len(executions_of("join"))


FAILED = outcomes.raised(RuntimeError("broken"))
CANCELLED = Outcome(ExecutionState.CANCELLED)


@pytest.mark.parametrize("last", [None, FAILED, CANCELLED], ids=["succeeds", "is dead-lettered", "is cancelled"])
@pytest.mark.parametrize("first", [None, FAILED, CANCELLED], ids=["succeeds", "is dead-lettered", "is cancelled"])
def test_not_after_one_not_after_two_once_after_three(family, first, last):
    finish(family, "a", first)
    assert joined(family) == 0
    finish(family, "b")
    assert joined(family) == 0
    finish(family, "c", last)
    assert joined(family) == 1
    finish(family, "join")
    assert joined(family) == 1
    continuation = executions_of("join")[0]
    assert continuation.parent_execution_id == executions_of("c")[0].id, "the newest that arrived"
    assert continuation.root_execution_id == executions_of("parent")[0].id


def test_an_attempt_with_retries_left_is_not_the_end_of_a_part(family):
    Manifest.objects.filter(external_id="c").update(max_retries=2)
    finish(family, "a")
    finish(family, "b")
    finish(family, "c", FAILED)
    assert joined(family) == 0
    family.advance(minutes=6)
    finish(family, "c")
    assert joined(family) == 1


def test_each_run_of_a_parent_that_succeeds_again_meanwhile_is_joined_when_its_own_members_are_done(family):
    finish(family, "a")
    family.advance(hours=1)
    finish(family, "parent")
    for name in "abc":
        finish(family, name)
    assert joined(family) == 1, "b and c have done their part in the first run, and owe that in the second"
    finish(family, "join")
    assert joined(family) == 1
    for name in "bc":
        finish(family, name)
    assert joined(family) == 2
    finish(family, "join")
    assert joined(family) == 2
    roots = [continuation.root_execution_id for continuation in executions_of("join")]
    assert roots == [parent.id for parent in executions_of("parent")]


def test_each_run_of_the_parent_is_joined(family):
    for name in "abc":
        finish(family, name)
    finish(family, "join")
    family.advance(hours=1)
    finish(family, "parent")
    assert joined(family) == 1
    for name in "abc":
        finish(family, name)
    assert joined(family) == 2


def test_a_disabled_member_does_not_hold_it_up(family):
    for name in "abc":
        finish(family, name)
    finish(family, "join")
    manifest("c").disable()
    family.advance(hours=1)
    finish(family, "parent")
    finish(family, "a")
    assert joined(family) == 1
    finish(family, "b")
    assert joined(family) == 2


def test_disabling_the_last_member_lets_it_go(bench):
    chain = bench.schedules.schedule(workflows.ping, "parent", None, Every.hours(1), **GROUP)
    chain.include(workflows.ping, "a", **GROUP).include(workflows.ping, "join", fan_in=True, **GROUP)
    bench.seed()
    bench.turn()
    assert manifest("join").explain().code == "waits_for_parents"
    manifest("a").disable()
    assert bench.drain() == ["join"]


def test_retiring_the_last_member_lets_it_go(bench):
    def declare(*members):
        bench.schedules.clear()
        chain = bench.schedules.schedule(workflows.ping, "parent", None, Every.hours(1), **GROUP)
        for name in members:
            chain.include(workflows.ping, name, **GROUP)
        chain.include(workflows.ping, "join", fan_in=True, **GROUP)
        bench.seed()

    declare("a")
    bench.turn()
    assert manifest("join").next_run_at is None
    declare()
    assert bench.drain() == ["join"]


def test_cancelling_the_last_member_in_the_queue_lets_it_go(bench):
    chain = bench.schedules.schedule(workflows.ping, "parent", None, Every.hours(1), **GROUP)
    chain.include(workflows.ping, "a", **GROUP).include(workflows.ping, "join", fan_in=True, **GROUP)
    bench.seed()
    bench.turn()
    bench.manage()
    assert bench.queued() == ["a"]
    manifest("a").cancel()
    assert bench.drain() == ["join"]


def test_a_member_whose_condition_did_not_match_has_no_part(bench):
    chain = bench.schedules.schedule(workflows.ping, "parent", None, Every.hours(1), **GROUP)
    chain.include(workflows.ping, "on-failure", run_condition=RunCondition.FAILURE, **GROUP).include(
        workflows.ping, "join", fan_in=True, **GROUP
    )
    bench.seed()
    assert bench.drain() == ["parent", "join"]


def test_a_part_in_a_later_run_does_not_hold_up_an_earlier_one(bench):
    chain = bench.schedules.schedule(workflows.ping, "parent", None, Every.hours(1), max_retries=1, **GROUP)
    chain.include(workflows.ping, "on-failure", run_condition=RunCondition.FAILURE, **GROUP).include(
        workflows.ping, "join", fan_in=True, **GROUP
    )
    bench.seed()
    bench.turn()
    manifest("parent").trigger()
    bench.dispatch()
    claimed = claim(process=bench.process, workflows=registry.names(), limit=1, now=bench.now)
    record([Finished(claimed[0].execution_id, FAILED)], by=bench.process, now=bench.now)
    assert reconcile(now=bench.now) == 0
    assert sorted(bench.drain()) == ["join", "on-failure"]
    (continuation,) = executions_of("join")
    assert continuation.parent_execution_id == executions_of("parent")[0].id, "the second run has a failed head"


def test_a_new_member_has_no_part_in_what_already_happened(bench):
    chain = bench.schedules.schedule(workflows.ping, "parent", None, Every.hours(1), **GROUP)
    chain.include(workflows.ping, "join", fan_in=True, **GROUP)
    bench.seed()
    assert bench.drain() == ["parent", "join"]
    Manifest.objects.schedule_dependent(workflows.ping, "late", None, depends_on="parent", **GROUP)
    assert bench.drain() == ["late"]
    bench.advance(hours=1)
    assert bench.drain() == ["parent", "late", "join"]


def test_a_member_that_a_letter_stops_has_no_part(family):
    for name in "ab":
        finish(family, name)
    finish(family, "c", FAILED)
    finish(family, "join")
    family.advance(hours=1)
    finish(family, "parent")
    for name in "ab":
        finish(family, name)
    assert joined(family) == 2


def test_a_dormant_child_cannot_be_a_continuation(bench):
    chain = bench.schedules.schedule(workflows.ping, "parent", None, Every.hours(1))
    with pytest.raises(DeclarationError, match="drop fan_in"):
        chain.include(workflows.ping, "join", dormant=True, fan_in=True)


def test_the_end_of_one_member_costs_the_same_with_few_and_with_many(bench):
    def cost(name, members):
        bench.schedules.clear()
        chain = bench.schedules.schedule(workflows.ping, name, None, Every.hours(1))
        items = [ManifestItem(str(number), depends_on=name) for number in range(members)]
        chain.include_many(workflows.ping, f"{name}-member", items).include(workflows.ping, f"{name}-join", fan_in=True)
        bench.seed()
        bench.turn()
        start_all(bench)
        execution = Metadata.objects.in_progress().get(manifest_external_id=f"{name}-member-0")
        with CaptureQueriesContext(connection) as captured:
            record([Finished(execution.id, outcomes.completed(None))], by=bench.process, now=bench.now)
        return len(captured)

    assert cost("few", 3) == cost("many", 90)


def test_running_it_by_hand_meanwhile_does_not_stand_for_the_run_after_its_siblings(family):
    manifest("join").trigger()
    finish(family, "join")
    for name in "abc":
        finish(family, name)
    assert joined(family) == 2
    assert executions_of("join")[0].parent_execution_id is None
    assert executions_of("join")[1].root_execution_id == executions_of("parent")[0].id


def declare_family(bench, *members, **options):
    bench.schedules.clear()
    chain = bench.schedules.schedule(workflows.ping, "parent", None, Every.hours(1), **GROUP)
    for name in members:
        chain.include(workflows.ping, name, **GROUP, **options)
    chain.include(workflows.ping, "join", fan_in=True, **GROUP)
    bench.schedules.schedule(workflows.ping, "other", None, Every.days(9), enabled=False, **GROUP)
    return chain


def test_a_member_that_the_code_switches_off_does_not_hold_it_up(bench):
    declare_family(bench, "a")
    bench.seed()
    bench.turn()
    declare_family(bench, "a", enabled=False)
    bench.seed()
    assert bench.drain() == ["join"]


@pytest.mark.parametrize("move", ["to another parent", "to a schedule of its own", "away"])
def test_a_member_that_moves_away_does_not_hold_it_up(bench, move):
    declare_family(bench, "a")
    bench.seed()
    bench.turn()
    declare_family(bench)
    if move == "to another parent":
        bench.schedules.schedule(workflows.ping, "new", None, Every.days(9), enabled=False, **GROUP).include(
            workflows.ping, "a", **GROUP
        )
    elif move == "to a schedule of its own":
        bench.schedules.schedule(workflows.ping, "a", None, Every.days(9), enabled=False, **GROUP)
    bench.seed()
    assert bench.drain() == ["join"]
    assert reconcile(now=bench.now) == 0


def test_a_removed_member_does_not_hold_it_up(bench):
    declare_family(bench, "a")
    bench.seed()
    bench.turn()
    manifest("a").delete()
    assert bench.drain() == ["join"]


def test_a_letter_and_the_parents_success_in_one_batch_leave_no_debt(bench):
    declare_family(bench, "a", max_retries=1)
    bench.seed()
    bench.turn()
    start_all(bench)
    running_member = Metadata.objects.in_progress().get(manifest_external_id="a")
    bench.advance(hours=1)
    start_all(bench)
    running_parent = Metadata.objects.in_progress().get(manifest_external_id="parent")
    record(
        [Finished(running_parent.id, outcomes.completed(None)), Finished(running_member.id, FAILED)],
        by=bench.process,
        now=bench.now,
    )
    assert joined(bench) == 1


def test_a_stale_debt_is_found_by_reconciliation(bench):
    declare_family(bench, "a")
    bench.seed()
    bench.turn()
    Manifest.objects.filter(external_id="a").update(is_enabled=False)
    reconcile(now=bench.now)
    assert bench.drain() == ["join"]
