"""Deploys: what happens to rows when declarations change, disappear and come back."""

from datetime import timedelta

import pytest

from chainsched import Every, ManifestItem
from chainsched.domain.states import ExecutionState
from chainsched.exceptions import DeclarationError
from chainsched.flow.schedule.declare import Schedules
from chainsched.flow.schedule.plan import plan
from chainsched.flow.schedule.seed import seed
from chainsched.models import Manifest, ManifestState
from tests.drive import executions_of, manifest
from tests.factories import NOW, make_execution, make_letter, make_queue_row
from tests.testapp import workflows

pytestmark = pytest.mark.django_db

HOURLY = Every.hours(1)


def declare(*names: str) -> Schedules:
    schedules = Schedules()
    for name in names:
        schedules.schedule(workflows.ping, name, None, HOURLY)
    return schedules


def batch(name: str, ids: str, **options) -> Schedules:
    schedules = declare("anchor")
    schedules.schedule_many(workflows.ping, name, [ManifestItem(id_) for id_ in ids], HOURLY, **options)
    return schedules


def retired() -> set[str]:
    return set(Manifest.objects.filter(retired_at__isnull=False).values_list("external_id", flat=True))


def test_removing_a_declaration_retires_exactly_it():
    seed(declare("a", "b"), now=NOW)
    assert seed(declare("a"), now=NOW).retired == ["b"]
    assert retired() == {"b"}
    assert manifest("b").next_run_at is None


def test_it_comes_back_whole_when_it_is_declared_again(bench):
    bench.schedules = declare("a", "b")
    bench.seed()
    bench.drain()
    Manifest.objects.filter(external_id="b").update(priority=9)
    seed(declare("a"), now=bench.now)
    bench.advance(hours=5)
    assert bench.drain() == ["a"]
    assert seed(declare("a", "b"), now=bench.now).changed == ["b"]
    assert (manifest("b").retired_at, manifest("b").priority) == (None, 9)
    assert manifest("b").next_run_at == bench.now + timedelta(hours=1), "nothing is made up for"
    assert len(executions_of("b")) == 1


def test_an_operators_disable_survives_retirement():
    seed(declare("a", "b"), now=NOW)
    Manifest.objects.filter(external_id="b").update(is_enabled=False)
    seed(declare("a"), now=NOW)
    seed(declare("a", "b"), now=NOW)
    assert manifest("b").is_enabled is False


def test_another_owners_manifests_are_left_alone(settings):
    settings.CHAINSCHED = {"OWNER": "other"}
    seed(declare("theirs"), now=NOW)
    settings.CHAINSCHED = {}
    seed(declare("ours"), now=NOW)
    assert retired() == set()
    with pytest.raises(DeclarationError, match="declared by the code of 'other'"):
        seed(declare("theirs"), now=NOW)


def test_what_was_made_at_run_time_is_left_alone():
    Manifest.objects.schedule(workflows.ping, "made", None, HOURLY)
    seed(declare("a"), now=NOW)
    assert retired() == set()


def test_code_may_adopt_what_was_made_at_run_time():
    Manifest.objects.schedule(workflows.ping, "made", None, HOURLY)
    seed(declare("made"), now=NOW)
    assert manifest("made").is_declared is True


@pytest.mark.parametrize(
    "open_work",
    [make_queue_row, make_execution, lambda thing: make_execution(thing, state=ExecutionState.IN_PROGRESS)],
    ids=["queued", "pending", "running"],
)
def test_what_is_in_the_middle_of_a_run_stays_until_it_is_over(open_work, caplog):
    seed(declare("a", "b"), now=NOW)
    open_work(manifest("b"))
    assert seed(declare("a"), now=NOW).retired == []
    assert retired() == set()
    assert "b is not retired yet: its run is unfinished" in caplog.text


def test_a_dead_letter_does_not_keep_a_manifest():
    seed(declare("a", "b"), now=NOW)
    make_letter(manifest("b"))
    seed(declare("a"), now=NOW)
    assert retired() == {"b"}


def test_nothing_declared_retires_nothing(caplog):
    seed(declare("a"), now=NOW)
    seed(Schedules(), now=NOW)
    assert retired() == set()
    assert "nothing is retired" in caplog.text


def test_a_batch_is_pruned_by_membership():
    schedules = batch("sync", "abc")
    schedules.schedule_many(workflows.ping, "sync-users", [ManifestItem("c")], HOURLY)
    seed(schedules, now=NOW)
    pruned = batch("sync", "ab")
    pruned.schedule_many(workflows.ping, "sync-users", [ManifestItem("c")], HOURLY)
    seed(pruned, now=NOW)
    assert retired() == {"sync-c"}


def test_a_batch_that_came_out_empty_keeps_its_members(caplog):
    seed(batch("sync", "ab"), now=NOW)
    seed(batch("sync", ""), now=NOW)
    assert retired() == set()
    assert "Batch 'sync' came out empty; its members stay." in caplog.text


def test_a_batch_can_be_kept_from_pruning():
    seed(batch("sync", "ab"), now=NOW)
    seed(batch("sync", "a", prune=False), now=NOW)
    assert retired() == set()


def test_a_batch_that_is_no_longer_declared_is_retired():
    seed(batch("sync", "ab"), now=NOW)
    seed(declare("anchor"), now=NOW)
    assert retired() == {"sync-a", "sync-b"}


def test_dependents_of_a_retired_parent_stay_and_are_idle(bench):
    schedules = declare("anchor")
    schedules.schedule(workflows.ping, "parent", None, HOURLY)
    seed(schedules, now=NOW)
    Manifest.objects.schedule_dependent(workflows.ping, "child", None, depends_on="parent")
    bench.turn()
    seed(declare("anchor"), now=NOW)
    assert retired() == {"parent"}
    assert "child" not in bench.drain()
    assert manifest("child").depends_on == manifest("parent")
    seed(schedules, now=NOW)
    assert "child" in bench.drain()


def test_moving_to_another_group_keeps_everything_else():
    seed(declare("a"), now=NOW)
    ManifestState.objects.update(last_successful_run=NOW)
    schedules = Schedules()
    schedules.schedule(workflows.ping, "a", None, HOURLY, group="elsewhere")
    seed(schedules, now=NOW)
    assert (manifest("a").group.name, manifest("a").last_successful_run) == ("elsewhere", NOW)


def test_a_plan_says_all_of_it_and_writes_nothing():
    seed(batch("sync", "ab"), now=NOW)
    Manifest.objects.filter(external_id="sync-a").update(retired_at=NOW)
    schedules = Schedules()
    schedules.schedule(workflows.ping, "anchor", None, Every.hours(2), group_max_active_jobs=3)
    schedules.schedule_many(workflows.ping, "sync", [ManifestItem("a")], HOURLY).include_many(
        workflows.ping, "load", [ManifestItem("a", depends_on="sync-a")]
    )
    before = list(Manifest.objects.order_by("id").values())
    made = plan(schedules)
    assert [row["external_id"] for row in made.created] == ["load-a"]
    assert made.changed["anchor"]["interval_seconds"] == (3600, 7200)
    assert made.changed_groups["anchor"]["max_active_jobs"] == (None, 3)
    assert (made.revived, list(made.retired), list(made.new_groups)) == (["sync-a"], ["sync-b"], ["load"])
    assert list(Manifest.objects.order_by("id").values()) == before
    seed(schedules, now=NOW)
    assert plan(schedules).is_empty
