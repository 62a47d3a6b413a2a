"""D of the acceptance list: the manager. What it queues, why not, and that the alarm is right after everything."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.forms import modelform_factory

from chainsched import Cron, Every, Exclude, ManifestItem, RunCondition
from chainsched.domain.due import IN_WORDS, Reason
from chainsched.domain.results import Answer, Cancelled
from chainsched.domain.states import ExecutionState, ScheduleType, Source
from chainsched.flow.maintain.fsck import reconcile
from chainsched.flow.maintain.recall import give_back
from chainsched.flow.run import enqueue
from chainsched.flow.run.dispatch import dispatch
from chainsched.flow.run.evaluate import evaluate
from chainsched.flow.run.fold_notes import settle
from chainsched.flow.schedule.declare import Schedules
from chainsched.models import DeadLetter, Manifest, ManifestGroup, ManifestState, Metadata, WorkQueue
from chainsched.registry import registry
from chainsched.testing import Workbench
from tests.drive import alarm_of, executions_of, manifest, reap_silent, run_on, start_running
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
from tests.testapp.workflows import Slice, copy, fail, give_up, ping

pytestmark = pytest.mark.django_db

FIVE_MINUTES = timedelta(minutes=5)


class TestQueueing:
    """A due enabled manifest is queued once, with its workflow, input, group and priority."""

    def test_a_due_manifest_is_queued_once_with_what_it_states(self, bench):
        Manifest.objects.schedule(copy, "job", Slice("t", 3), Every.hours(1), group="etl", priority=4, group_priority=9)
        assert [bench.manage() for _ in range(3)] == [1, 0, 0]
        row = WorkQueue.objects.get()
        assert (row.workflow, row.input) == ("testapp.copy", {"table": "t", "size": 3})
        assert row.group is not None
        assert (row.group.name, row.priority, row.source) == ("etl", 4, Source.SCHEDULE)
        assert (row.scheduled_for, row.created_at, row.attempt) == (NOW, NOW, 1)

    @pytest.mark.parametrize(
        "broken",
        [
            {"exclusions": [{"kind": "nonsense"}]},
            {"exclusions": "never"},
            {"cron_expression": "61 * * * *"},
            {"timezone": "Mars/Olympus"},
            {"workflow": "gone.away"},
            {"input": {"nobody": "asked"}},
        ],
        ids=" and ".join,
    )
    def test_a_row_that_was_broken_by_hand_is_reported_and_does_not_stop_the_others(self, bench, broken):
        for name in ("a", "broken", "z"):
            Manifest.objects.schedule(ping, name, None, Cron.minutely())
        Manifest.objects.filter(external_id="broken").update(**broken)
        bench.advance(minutes=1)
        assert {"a", "z"} <= set(bench.drain())
        code = manifest("broken").explain().code
        assert code in (Reason.UNSCHEDULABLE, "no_capable_worker", Reason.AWAITING_DEAD_LETTER)
        bench.advance(minutes=1)
        assert bench.drain() == ["a", "z"], "the broken one is not met again"

    def test_a_manifest_whose_state_is_gone_does_not_stop_the_others(self, bench):
        for name in ("a", "broken", "z"):
            Manifest.objects.schedule(ping, name, None, Every.hours(1))
        ManifestState.objects.filter(manifest__external_id="broken").delete()
        assert bench.drain() == ["a", "z"]

    def test_a_full_house_is_queued_all_the_same(self, bench, settings):
        settings.CHAINSCHED = {"MAX_ACTIVE_JOBS": 1}
        items = [ManifestItem(str(number)) for number in range(5)]
        Manifest.objects.schedule_many(ping, "many", items, Every.hours(1), group_max_active_jobs=1)
        assert bench.manage() == 5

    def test_a_delayed_trigger_does_not_suspend_the_schedule(self, bench):
        Manifest.objects.schedule(ping, "job", None, Every.minutes(5))
        bench.drain()
        assert manifest("job").trigger(timedelta(minutes=12)) is Answer.DELAYED
        assert bench.run_for(minutes=20) == ["job"] * 4
        started = [run.started_at for run in executions_of("job")]
        assert [at - NOW for at in started] == [timedelta(minutes=minutes) for minutes in (0, 5, 10, 12, 17)]


# D. Each way leaves one manifest named "job" behind and says when its alarm should be.


def success(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "job", None, Every.minutes(5))
    bench.drain()
    return bench.now + FIVE_MINUTES


def failure_with_retries_left(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(fail, "job", None, Every.minutes(5))
    bench.drain()
    assert WorkQueue.objects.queued().get().attempt == 2
    return None


def failure_into_a_dead_letter(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(fail, "job", None, Every.minutes(5), max_retries=1)
    bench.drain()
    assert DeadLetter.objects.awaiting().exists()
    return None


def success_after_a_retry(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(fail, "job", None, Every.minutes(5), retry_delay=60)
    bench.drain()
    Manifest.objects.schedule(ping, "job", None, Every.minutes(5))
    bench.advance(seconds=90)
    assert bench.drain() == ["job"]
    return bench.now + FIVE_MINUTES


def queue_row_cancelled(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "job", None, Every.minutes(5))
    bench.manage()
    bench.advance(seconds=30)
    assert manifest("job").cancel() == Cancelled(queued=1)
    return bench.now + FIVE_MINUTES


def retry_in_the_queue_cancelled(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(fail, "job", None, Every.minutes(5))
    bench.drain()
    bench.advance(seconds=30)
    assert manifest("job").cancel() == Cancelled(queued=1)
    return bench.now + FIVE_MINUTES


def pending_cancelled(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "job", None, Every.minutes(5))
    bench.manage()
    bench.dispatch()
    bench.advance(seconds=30)
    assert manifest("job").cancel() == Cancelled(pending=1)
    return bench.now + FIVE_MINUTES


def running_cancelled(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(fail, "job", None, Every.minutes(5))
    bench.manage()
    bench.dispatch()
    Metadata.objects.update(cancel_requested=True)
    bench.advance(seconds=30)
    bench.work()
    assert executions_of("job")[0].state == ExecutionState.CANCELLED
    return bench.now + FIVE_MINUTES


def lost_with_its_process(bench: Workbench) -> datetime | None:
    """It is retried at once; when that succeeds the interval begins anew."""
    Manifest.objects.schedule(ping, "job", None, Every.minutes(5))
    bench.manage()
    bench.dispatch()
    dead = make_process(heartbeat_at=bench.now - timedelta(hours=1))
    Metadata.objects.update(state=ExecutionState.IN_PROGRESS, process=dead, started_at=bench.now)
    assert reap_silent(now=bench.now).lost == 1
    assert alarm_of("job") is None
    assert bench.drain() == ["job"]
    return bench.now + FIVE_MINUTES


def lost_with_its_process_for_good(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "job", None, Every.minutes(5), max_retries=1)
    bench.manage()
    bench.dispatch()
    dead = make_process(heartbeat_at=bench.now - timedelta(hours=1))
    Metadata.objects.update(state=ExecutionState.IN_PROGRESS, process=dead, started_at=bench.now)
    reap_silent(now=bench.now)
    assert DeadLetter.objects.awaiting().exists()
    return None


def manifest_enabled(bench: Workbench) -> datetime | None:
    success(bench)
    manifest("job").disable()
    bench.advance(hours=3)
    assert bench.drain() == []
    manifest("job").enable()
    return bench.now + FIVE_MINUTES


def manifest_enabled_while_it_waits_in_the_queue(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "job", None, Every.minutes(5))
    bench.manage()
    manifest("job").disable()
    assert bench.drain() == []
    manifest("job").enable()
    bench.assert_queued("job")
    return None


def group_enabled(bench: Workbench) -> datetime | None:
    success(bench)
    ManifestGroup.objects.get().disable()
    bench.advance(hours=3)
    assert bench.drain() == []
    ManifestGroup.objects.get().enable()
    return bench.now + FIVE_MINUTES


def parent_enabled(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "parent", None, Every.hours(9))
    Manifest.objects.schedule_dependent(ping, "job", None, depends_on="parent")
    bench.turn()
    manifest("parent").disable()
    assert bench.drain() == []
    bench.advance(hours=1)
    manifest("parent").enable()
    return bench.now


def reparented(bench: Workbench) -> datetime | None:
    """To a parent that has succeeded, from one that never did."""
    Manifest.objects.schedule(fail, "idle", None, None)
    Manifest.objects.schedule_dependent(ping, "job", None, depends_on="idle")
    Manifest.objects.schedule(ping, "busy", None, Every.hours(9))
    bench.drain()
    assert alarm_of("job") is None
    Manifest.objects.schedule_dependent(ping, "job", None, depends_on="busy")
    return bench.now


def reparented_to_one_that_never_ran(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "busy", None, Every.hours(9))
    Manifest.objects.schedule(ping, "idle", None, None)
    bench.drain()
    Manifest.objects.schedule_dependent(ping, "job", None, depends_on="busy")
    assert alarm_of("job") == bench.now
    Manifest.objects.schedule_dependent(ping, "job", None, depends_on="idle")
    return None


def edited(bench: Workbench) -> datetime | None:
    success(bench)
    bench.advance(minutes=2)
    Manifest.objects.schedule(ping, "job", None, Every.minutes(7))
    return bench.now + timedelta(minutes=7)


def edited_into_a_cron(bench: Workbench) -> datetime | None:
    success(bench)
    bench.advance(minutes=2)
    Manifest.objects.schedule(ping, "job", None, Cron.hourly())
    return NOW + timedelta(hours=1)


def edited_while_it_runs(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "job", None, Every.minutes(5))
    bench.manage()
    bench.dispatch()
    Manifest.objects.schedule(ping, "job", None, Every.minutes(7))
    assert alarm_of("job") is None
    bench.work()
    return bench.now + timedelta(minutes=7)


def edited_to_stop(bench: Workbench) -> datetime | None:
    success(bench)
    Manifest.objects.schedule(ping, "job", None, None)
    return None


def revived(bench: Workbench) -> datetime | None:
    anchor = Schedules()
    anchor.schedule(ping, "anchor", None, Every.hours(9))
    bench.schedules.schedule(ping, "anchor", None, Every.hours(9))
    bench.schedules.schedule(ping, "job", None, Every.minutes(5))
    bench.seed()
    bench.drain()
    declarations, bench.schedules = bench.schedules, anchor
    bench.seed()
    assert alarm_of("job") is None
    bench.advance(hours=3)
    bench.schedules = declarations
    bench.seed()
    return bench.now + FIVE_MINUTES


def given_up(bench: Workbench, **options: Any) -> DeadLetter:
    Manifest.objects.schedule(give_up, "job", None, Every.minutes(5), **options)
    bench.drain()
    bench.advance(minutes=30)
    return DeadLetter.objects.get()


def letter_retried(bench: Workbench) -> datetime | None:
    given_up(bench).retry()
    bench.assert_queued("job")
    return None


def letter_retried_with_success(bench: Workbench) -> datetime | None:
    letter = given_up(bench)
    Manifest.objects.schedule(ping, "job", None, Every.minutes(5))
    letter.retry()
    assert bench.drain() == ["job"]
    return bench.now + FIVE_MINUTES


def letter_retried_and_cancelled(bench: Workbench) -> datetime | None:
    given_up(bench).retry()
    bench.advance(minutes=1)
    assert manifest("job").cancel() == Cancelled(queued=1)
    return bench.now + FIVE_MINUTES


def letter_retried_in_vain(bench: Workbench) -> datetime | None:
    given_up(bench).retry()
    assert bench.drain() == ["job"]
    assert DeadLetter.objects.awaiting().count() == 1
    return None


def letter_acknowledged(bench: Workbench) -> datetime | None:
    given_up(bench).acknowledge()
    return bench.now + FIVE_MINUTES


def letter_of_a_cron_acknowledged(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(give_up, "job", None, Cron.hourly())
    bench.run_for(hours=1)
    bench.advance(minutes=90)
    DeadLetter.objects.get().acknowledge()
    return NOW + timedelta(hours=3)


def letter_of_a_disabled_one_acknowledged(bench: Workbench) -> datetime | None:
    letter = given_up(bench)
    manifest("job").disable()
    letter.acknowledge()
    return None


def letter_acknowledged_while_a_wish_stands(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(give_up, "job", None, Every.minutes(5))
    bench.manage()
    bench.dispatch()
    assert manifest("job").trigger() is Answer.WILL_RUN_AGAIN
    wished_at = bench.now
    bench.work()
    assert alarm_of("job") is None
    bench.advance(minutes=30)
    DeadLetter.objects.get().acknowledge()
    return wished_at


def letter_of_a_dependent_acknowledged(bench: Workbench) -> datetime | None:
    """The success that it failed for is spent."""
    Manifest.objects.schedule(ping, "parent", None, Every.hours(9))
    Manifest.objects.schedule_dependent(give_up, "job", None, depends_on="parent")
    bench.drain()
    DeadLetter.objects.get().acknowledge()
    return None


def letter_of_a_dependent_acknowledged_after_its_parent_ran_again(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "parent", None, Every.hours(1))
    Manifest.objects.schedule_dependent(give_up, "job", None, depends_on="parent")
    bench.drain()
    bench.advance(hours=1)
    bench.drain()
    bench.advance(minutes=1)
    DeadLetter.objects.get().acknowledge()
    return bench.now


def edited_while_a_letter_awaits(bench: Workbench) -> datetime | None:
    letter = given_up(bench)
    Manifest.objects.schedule(give_up, "job", None, Every.minutes(7))
    assert alarm_of("job") is None
    letter.acknowledge()
    return bench.now + timedelta(minutes=7)


def edited_while_it_is_queued(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "job", None, Every.minutes(5))
    bench.manage()
    Manifest.objects.schedule(ping, "job", None, Every.minutes(7))
    assert alarm_of("job") is None
    assert bench.drain() == ["job"]
    return bench.now + timedelta(minutes=7)


def edited_while_its_retry_waits(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(fail, "job", None, Every.minutes(5), retry_delay=60)
    bench.drain()
    Manifest.objects.schedule(ping, "job", None, Cron.hourly())
    assert alarm_of("job") is None
    bench.advance(seconds=90)
    assert bench.drain() == ["job"]
    return NOW + timedelta(hours=1)


def edited_out_of_an_exclusion(bench: Workbench) -> datetime | None:
    closed = [Exclude.weekdays("mon")]
    Manifest.objects.schedule(ping, "job", None, Every.minutes(5), exclusions=closed)
    assert alarm_of("job") == NOW + timedelta(hours=14)
    Manifest.objects.schedule(ping, "job", None, Every.minutes(5), exclusions=[])
    return NOW


def moved_out_of_a_disabled_group(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "job", None, Every.minutes(5), group="off")
    ManifestGroup.objects.get(name="off").disable()
    assert alarm_of("job") is None
    Manifest.objects.schedule(ping, "job", None, Every.minutes(5), group="on")
    return bench.now


def moved_into_a_disabled_group(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "other", None, None, group="off", group_enabled=False)
    success(bench)
    Manifest.objects.schedule(ping, "job", None, Every.minutes(5), group="off")
    return None


def group_enabled_by_the_code(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "job", None, Every.minutes(5), group="g", group_enabled=False)
    assert alarm_of("job") is None
    bench.advance(hours=1)
    Manifest.objects.schedule(ping, "job", None, Every.minutes(5), group="g", group_enabled=True)
    return bench.now


def group_enabled_while_a_dependent_is_due(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "parent", None, Every.hours(9))
    Manifest.objects.schedule_dependent(ping, "job", None, depends_on="parent", group="g")
    bench.turn()
    ManifestGroup.objects.get(name="g").disable()
    assert alarm_of("job") is None
    assert bench.drain() == []
    bench.advance(hours=1)
    ManifestGroup.objects.get(name="g").enable()
    return bench.now


def group_enabled_while_a_wish_stands(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "job", None, None, group="g")
    ManifestGroup.objects.get().disable()
    assert manifest("job").trigger() is Answer.WAITS_FOR_GROUP
    bench.advance(hours=1)
    assert bench.drain() == []
    ManifestGroup.objects.get().enable()
    return NOW


def group_enabled_while_a_letter_awaits(bench: Workbench) -> datetime | None:
    given_up(bench)
    ManifestGroup.objects.get().disable()
    ManifestGroup.objects.get().enable()
    return None


def manifest_enabled_by_the_code(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "job", None, Cron.hourly(), enabled=False)
    assert alarm_of("job") is None
    bench.advance(minutes=150)
    Manifest.objects.schedule(ping, "job", None, Cron.hourly(), enabled=True)
    return NOW + timedelta(hours=3)


def manifest_enabled_while_it_runs(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "job", None, Every.minutes(5))
    bench.manage()
    bench.dispatch()
    start_running(bench)
    assert (manifest("job").disable(), manifest("job").enable()) == (True, True)
    assert alarm_of("job") is None
    run_on(bench)
    bench.work()
    return bench.now + FIVE_MINUTES


def disabled_while_it_runs(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "job", None, Every.minutes(5))
    bench.manage()
    bench.dispatch()
    manifest("job").disable()
    assert len(bench.work().ended) == 1
    return None


def dependent_enabled_after_its_parent_ran(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "parent", None, Every.hours(9))
    Manifest.objects.schedule_dependent(ping, "job", None, depends_on="parent", enabled=False)
    assert bench.drain() == ["parent"]
    bench.advance(hours=1)
    manifest("job").enable()
    return bench.now


def parent_enabled_when_nothing_is_due(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "parent", None, Every.hours(9))
    Manifest.objects.schedule_dependent(ping, "job", None, depends_on="parent")
    bench.drain()
    manifest("parent").disable()
    manifest("parent").enable()
    return None


def parent_revived(bench: Workbench) -> datetime | None:
    def declare(*names: str) -> None:
        bench.schedules = Schedules()
        bench.schedules.schedule(ping, "anchor", None, Every.hours(9), enabled=False)
        for name in names:
            bench.schedules.schedule(ping, name, None, Every.hours(9))
        bench.seed()

    declare("parent")
    Manifest.objects.schedule_dependent(ping, "job", None, depends_on="parent")
    bench.turn()
    declare()
    assert alarm_of("job") is None
    bench.advance(hours=1)
    declare("parent")
    return bench.now


def parent_removed(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "parent", None, Every.hours(9))
    Manifest.objects.schedule_dependent(ping, "job", None, depends_on="parent")
    bench.turn()
    assert alarm_of("job") == bench.now
    manifest("parent").delete()
    return None


def reparented_while_it_runs(bench: Workbench) -> datetime | None:
    """The new parent has not run since the dependent was given to it."""
    Manifest.objects.schedule(ping, "old", None, Every.hours(9))
    Manifest.objects.schedule(ping, "new", None, None)
    Manifest.objects.schedule_dependent(ping, "job", None, depends_on="old")
    bench.turn()
    bench.manage()
    bench.dispatch()
    Manifest.objects.schedule_dependent(ping, "job", None, depends_on="new")
    assert len(bench.work().ended) == 1
    assert alarm_of("job") is None
    manifest("new").trigger()
    bench.turn()
    return bench.now


def reparented_while_a_letter_awaits(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "old", None, Every.hours(9))
    Manifest.objects.schedule(ping, "new", None, Every.hours(9))
    Manifest.objects.schedule_dependent(give_up, "job", None, depends_on="old")
    bench.drain()
    Manifest.objects.schedule_dependent(give_up, "job", None, depends_on="new")
    assert alarm_of("job") is None
    DeadLetter.objects.get().acknowledge()
    return bench.now


def made_dependent(bench: Workbench) -> datetime | None:
    """It succeeded after its new parent did."""
    Manifest.objects.schedule(ping, "parent", None, Every.hours(9))
    bench.drain()
    bench.advance(minutes=1)
    success(bench)
    Manifest.objects.schedule_dependent(ping, "job", None, depends_on="parent")
    return None


def made_independent(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "parent", None, Every.hours(9))
    Manifest.objects.schedule_dependent(ping, "job", None, depends_on="parent")
    bench.drain()
    Manifest.objects.schedule(ping, "job", None, Every.minutes(5))
    return bench.now + FIVE_MINUTES


def queue_row_of_a_dependent_cancelled(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "parent", None, Every.hours(9))
    Manifest.objects.schedule_dependent(ping, "job", None, depends_on="parent")
    bench.turn()
    bench.manage()
    assert manifest("job").cancel() == Cancelled(queued=1)
    return None


def success_of_a_dependent_whose_parent_ran_again(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "parent", None, Every.hours(1))
    Manifest.objects.schedule_dependent(ping, "job", None, depends_on="parent")
    bench.turn()
    bench.manage()
    bench.dispatch()
    start_running(bench)
    bench.advance(hours=1)
    bench.turn()
    assert alarm_of("job") is None
    run_on(bench)
    bench.work()
    return bench.now


def success_while_a_wish_stands(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "job", None, Every.minutes(5))
    bench.manage()
    bench.dispatch()
    assert manifest("job").trigger() is Answer.WILL_RUN_AGAIN
    bench.advance(minutes=1)
    bench.work()
    return NOW


def success_while_a_delayed_wish_stands(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "job", None, Every.minutes(5))
    bench.manage()
    bench.dispatch()
    manifest("job").trigger(timedelta(minutes=2))
    bench.work()
    return NOW + timedelta(minutes=2)


def success_of_a_one_time_job(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule_once(ping, "job", None, NOW)
    assert bench.drain() == ["job"]
    return None


def one_time_job_given_a_new_time(bench: Workbench) -> datetime | None:
    success_of_a_one_time_job(bench)
    Manifest.objects.schedule_once(ping, "job", None, NOW + timedelta(hours=2))
    return NOW + timedelta(hours=2)


def one_time_job_cancelled_in_the_queue(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule_once(ping, "job", None, NOW)
    bench.manage()
    assert manifest("job").cancel() == Cancelled(queued=1)
    return None


def work_given_back(bench: Workbench) -> datetime | None:
    """Work that a worker took and did not begin waits again, and counts as nothing."""
    Manifest.objects.schedule(ping, "job", None, Every.minutes(5))
    bench.manage()
    worker = make_process(workflows=registry.names())
    taken = dispatch(workflows=registry.names(), now=bench.now, taker=worker).execution_ids
    assert give_back(taken, process=worker, now=bench.now) == set()
    assert alarm_of("job") is None
    assert bench.drain() == ["job"]
    assert executions_of("job")[0].attempt == 1
    return bench.now + FIVE_MINUTES


def told_to_stop_and_lost(bench: Workbench) -> datetime | None:
    Manifest.objects.schedule(ping, "job", None, Every.minutes(5))
    bench.manage()
    bench.dispatch()
    dead = make_process(heartbeat_at=bench.now - timedelta(hours=1))
    Metadata.objects.update(state=ExecutionState.IN_PROGRESS, process=dead, started_at=bench.now)
    assert manifest("job").cancel() == Cancelled(running=1)
    assert reap_silent(now=bench.now).lost == 1
    assert executions_of("job")[0].state == ExecutionState.CANCELLED
    return bench.now + FIVE_MINUTES


def a_join(bench: Workbench) -> None:
    """A continuation named "job" that is due but for its only sibling."""
    Manifest.objects.schedule(ping, "parent", None, Every.hours(9))
    Manifest.objects.schedule_dependent(ping, "sibling", None, depends_on="parent", max_retries=1)
    Manifest.objects.schedule_dependent(ping, "job", None, depends_on="parent", fan_in=True)
    bench.turn()
    assert alarm_of("job") is None
    bench.manage()
    bench.assert_queued("sibling")


def last_sibling_succeeded(bench: Workbench) -> datetime | None:
    a_join(bench)
    assert bench.turn() == ["sibling"]
    return bench.now


def last_sibling_given_up(bench: Workbench) -> datetime | None:
    a_join(bench)
    Manifest.objects.schedule_dependent(give_up, "sibling", None, depends_on="parent")
    assert bench.turn() == ["sibling"]
    assert DeadLetter.objects.awaiting().exists()
    return bench.now


def last_sibling_cancelled(bench: Workbench) -> datetime | None:
    a_join(bench)
    assert manifest("sibling").cancel() == Cancelled(queued=1)
    return bench.now


def last_sibling_disabled(bench: Workbench) -> datetime | None:
    a_join(bench)
    manifest("sibling").disable()
    return bench.now


def last_sibling_removed(bench: Workbench) -> datetime | None:
    a_join(bench)
    manifest("sibling").delete()
    return bench.now


def last_item_of_a_reparented_sibling_ended(bench: Workbench) -> datetime | None:
    """What is under way when edges change ends as it was opened: the continuation waits for it."""
    Manifest.objects.schedule(ping, "elsewhere", None, None)
    a_join(bench)
    Manifest.objects.schedule_dependent(ping, "sibling", None, depends_on="elsewhere")
    settle(now=bench.now)
    assert alarm_of("job") is None
    assert bench.turn() == ["sibling"]
    return bench.now


def last_item_of_a_sibling_made_independent_ended(bench: Workbench) -> datetime | None:
    a_join(bench)
    Manifest.objects.schedule(ping, "sibling", None, None)
    settle(now=bench.now)
    assert alarm_of("job") is None
    assert bench.turn() == ["sibling"]
    return bench.now


WAYS = [
    success,
    failure_with_retries_left,
    failure_into_a_dead_letter,
    success_after_a_retry,
    queue_row_cancelled,
    retry_in_the_queue_cancelled,
    pending_cancelled,
    running_cancelled,
    lost_with_its_process,
    lost_with_its_process_for_good,
    manifest_enabled,
    manifest_enabled_while_it_waits_in_the_queue,
    group_enabled,
    parent_enabled,
    reparented,
    reparented_to_one_that_never_ran,
    edited,
    edited_into_a_cron,
    edited_while_it_runs,
    edited_to_stop,
    revived,
    letter_retried,
    letter_retried_with_success,
    letter_retried_and_cancelled,
    letter_retried_in_vain,
    letter_acknowledged,
    letter_of_a_cron_acknowledged,
    letter_of_a_disabled_one_acknowledged,
    letter_acknowledged_while_a_wish_stands,
    letter_of_a_dependent_acknowledged,
    letter_of_a_dependent_acknowledged_after_its_parent_ran_again,
    edited_while_a_letter_awaits,
    edited_while_it_is_queued,
    edited_while_its_retry_waits,
    edited_out_of_an_exclusion,
    moved_out_of_a_disabled_group,
    moved_into_a_disabled_group,
    group_enabled_by_the_code,
    group_enabled_while_a_dependent_is_due,
    group_enabled_while_a_wish_stands,
    group_enabled_while_a_letter_awaits,
    manifest_enabled_by_the_code,
    manifest_enabled_while_it_runs,
    disabled_while_it_runs,
    dependent_enabled_after_its_parent_ran,
    parent_enabled_when_nothing_is_due,
    parent_revived,
    parent_removed,
    reparented_while_it_runs,
    reparented_while_a_letter_awaits,
    made_dependent,
    made_independent,
    queue_row_of_a_dependent_cancelled,
    success_of_a_dependent_whose_parent_ran_again,
    success_while_a_wish_stands,
    success_while_a_delayed_wish_stands,
    success_of_a_one_time_job,
    one_time_job_given_a_new_time,
    one_time_job_cancelled_in_the_queue,
    work_given_back,
    told_to_stop_and_lost,
    last_sibling_succeeded,
    last_sibling_given_up,
    last_sibling_cancelled,
    last_sibling_disabled,
    last_sibling_removed,
    last_item_of_a_reparented_sibling_ended,
    last_item_of_a_sibling_made_independent_ended,
]


class TestAlarms:
    """D: after every way in which open work can end or an obstacle be lifted the alarm is right."""

    @pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.replace("_", " "))
    def test_the_alarm_is_right_after(self, bench, way):
        expected = way(bench)
        settle(now=bench.now)
        assert alarm_of("job") == expected
        assert reconcile(now=bench.now) == 0, "nothing else was forgotten either"

    @pytest.mark.parametrize(
        "way", [queue_row_cancelled, retry_in_the_queue_cancelled, pending_cancelled, running_cancelled]
    )
    def test_a_cancelled_five_minute_interval_waits_five_minutes(self, bench, way):
        way(bench)
        Manifest.objects.update(workflow="testapp.ping")
        bench.advance(seconds=299)
        assert bench.drain() == []
        bench.advance(seconds=1)
        assert bench.drain() == ["job"]

    def test_the_manifests_of_a_disabled_group_cost_the_next_turns_nothing(self, bench):
        items = [ManifestItem(str(number)) for number in range(300)]
        bench.schedules.schedule_many(ping, "many", items, Every.minutes(5))
        bench.seed()
        ManifestGroup.objects.get().disable()
        for _ in range(3):
            assert evaluate(now=bench.advance(hours=1)).seen == 0
        ManifestGroup.objects.get().enable()
        assert evaluate(now=bench.now).queued == 300

    def test_a_group_that_was_switched_off_by_hand_costs_one_look(self, bench):
        items = [ManifestItem(str(number)) for number in range(300)]
        bench.schedules.schedule_many(ping, "many", items, Every.minutes(5))
        bench.seed()
        ManifestGroup.objects.update(is_enabled=False)
        assert evaluate(now=bench.now).passed_over == {Reason.GROUP_DISABLED: 300}
        assert evaluate(now=bench.advance(hours=1)).seen == 0

    def test_a_form_that_is_saved_during_a_run_changes_nothing_of_its_state(self, bench):
        Manifest.objects.schedule(copy, "job", Slice("t"), Every.minutes(5))
        before_the_run = manifest("job")
        Form = modelform_factory(Manifest, fields=["priority", "group", "is_enabled", "timeout_seconds"])  # noqa: N806
        form = Form(
            {"priority": 7, "group": before_the_run.group_id, "is_enabled": "on", "timeout_seconds": 9},
            instance=before_the_run,
        )
        bench.manage()
        bench.dispatch()
        during = ManifestState.objects.values().get()
        assert form.is_valid(), form.errors
        form.save()
        assert ManifestState.objects.values().get() == during
        bench.work()
        before_the_run.save()
        row = manifest("job")
        assert (row.last_successful_run, row.next_run_at) == (bench.now, bench.now + FIVE_MINUTES)
        assert (row.priority, row.timeout_seconds) == (7, 9)


def disabled() -> None:
    make_manifest("job", is_enabled=False)


def in_a_disabled_group() -> None:
    make_manifest("job", group=make_group(is_enabled=False))


def retired() -> None:
    make_manifest("job", retired_at=NOW)


def awaiting_a_letter() -> None:
    make_letter(make_manifest("job"))


def queued() -> None:
    make_queue_row(make_manifest("job"))


def pending() -> None:
    make_execution(make_manifest("job"))


def running() -> None:
    make_execution(make_manifest("job"), state=ExecutionState.IN_PROGRESS)


def on_demand() -> None:
    make_manifest("job", schedule_type=ScheduleType.ON_DEMAND)


def dormant() -> None:
    parent = make_manifest(state={})
    kind: dict[str, Any] = {"schedule_type": ScheduleType.DORMANT_DEPENDENT, "run_condition": RunCondition.SUCCESS}
    make_manifest("job", depends_on=parent, **kind)


def done() -> None:
    make_manifest("job", schedule_type=ScheduleType.ONCE, once_at=NOW, done_at=NOW)


def below_a_disabled_parent() -> None:
    parent = make_manifest(state={}, is_enabled=False)
    make_dependent(parent, "job", state={"due_execution": 5, "next_run_at": NOW})


def without_its_parent() -> None:
    kind: dict[str, Any] = {"schedule_type": ScheduleType.DEPENDENT, "run_condition": RunCondition.SUCCESS}
    make_manifest("job", state={"due_execution": 5, "next_run_at": NOW}, **kind)


def behind_no_success() -> None:
    make_dependent(make_manifest(state={}), "job", state={"next_run_at": NOW})


def found_too_late() -> None:
    make_manifest("job", misfire_policy="skip", state={"next_run_at": NOW - timedelta(minutes=2)})


def with_a_broken_zone() -> None:
    cron: dict[str, Any] = {"schedule_type": ScheduleType.CRON, "cron_expression": "* * * * *"}
    make_manifest("job", timezone="Mars/Olympus", misfire_policy="skip", **cron)


def late_into_an_exclusion() -> None:
    closed = [{"kind": "weekdays", "days": [1]}]
    make_manifest("job", exclusions=closed, state={"next_run_at": NOW - timedelta(minutes=2)})


def wished_for_in_a_disabled_group() -> None:
    make_manifest("job", group=make_group(is_enabled=False), state={"next_run_at": NOW, "trigger_at": NOW})


CASES: list[tuple[Callable[[], None], Reason]] = [
    (disabled, Reason.DISABLED),
    (in_a_disabled_group, Reason.GROUP_DISABLED),
    (retired, Reason.RETIRED),
    (awaiting_a_letter, Reason.AWAITING_DEAD_LETTER),
    (queued, Reason.QUEUED),
    (pending, Reason.PENDING),
    (running, Reason.RUNNING),
    (on_demand, Reason.ON_DEMAND),
    (dormant, Reason.DORMANT),
    (done, Reason.DONE),
    (below_a_disabled_parent, Reason.PARENT_DISABLED),
    (without_its_parent, Reason.PARENT_MISSING),
    (behind_no_success, Reason.PARENT_NOT_AHEAD),
    (found_too_late, Reason.MISFIRE_SKIPPED),
    (with_a_broken_zone, Reason.UNSCHEDULABLE),
    (late_into_an_exclusion, Reason.EXCLUDED),
    (wished_for_in_a_disabled_group, Reason.GROUP_DISABLED),
]


def due() -> None:
    make_manifest("job")


def wished_for() -> None:
    make_manifest("job", is_enabled=False, state={"next_run_at": NOW, "trigger_at": NOW})


def behind_its_parent() -> None:
    make_dependent(make_manifest(state={}), "job", state={"due_execution": 5, "next_run_at": NOW})


YES: list[tuple[Callable[[], None], Reason]] = [
    (due, Reason.DUE),
    (wished_for, Reason.TRIGGERED),
    (behind_its_parent, Reason.PARENT_RAN),
]


class TestExplaining:
    """D: explain gives the reason, in words and as a code, the same one that the turn used."""

    @pytest.fixture(autouse=True)
    def _somebody_can_run_it(self, bench: Workbench) -> None:
        assert bench.process.workflows

    @pytest.mark.parametrize(("prepare", "reason"), CASES)
    def test_explain_says_what_the_turn_says(self, prepare, reason):
        prepare()
        explanation = manifest("job").explain()
        turned = evaluate(now=NOW)
        assert (explanation.code, dict(turned.passed_over)) == (reason, {reason: 1})
        if reason is not Reason.QUEUED:
            assert explanation.reason.startswith(IN_WORDS[reason])
        assert explanation.reason

    @pytest.mark.parametrize(
        ("prepare", "reason"), [case for case in CASES if case[0] not in (found_too_late, late_into_an_exclusion)]
    )
    def test_explain_says_the_same_after_the_turn_has_disarmed_it(self, prepare, reason):
        prepare()
        evaluate(now=NOW)
        assert manifest("job").explain().code == reason

    def test_what_is_not_due_is_told_with_its_time(self):
        make_manifest("job", state={"next_run_at": NOW + FIVE_MINUTES})
        explanation = manifest("job").explain()
        assert (explanation.code, explanation.next_run_at) == (Reason.NOT_DUE, NOW + FIVE_MINUTES)
        assert evaluate(now=NOW).seen == 0

    @pytest.mark.parametrize(("prepare", "reason"), YES)
    def test_what_the_turn_queues_is_told_as_such(self, prepare, reason):
        prepare()
        explanation = manifest("job").explain()
        assert (explanation.code, explanation.reason) == (reason, IN_WORDS[reason])
        assert evaluate(now=NOW).queued == 1

    def test_what_nobody_set_an_alarm_for_is_told_as_such(self):
        make_manifest("job", state={})
        assert manifest("job").explain().code == Reason.NO_ALARM
        assert evaluate(now=NOW).seen == 0

    def test_the_tables_show_every_reason(self):
        shown = {reason for _, reason in [*CASES, *YES]} | {Reason.NOT_DUE, Reason.NO_ALARM}
        # Runs tell what a join waits for. No turn looks at that, at unknown values, or at what is put aside.
        not_decided = {
            Reason.WAITS_FOR_PARENTS,
            Reason.TOO_FEW_ARRIVED,
            Reason.PUT_ASIDE,
            Reason.UNKNOWN_VALUE,
        }
        assert shown | not_decided == set(Reason)

    def test_a_join_beside_siblings_at_work_is_told_to_wait_and_no_turn_looks_at_it(self, bench):
        root = bench.schedules.schedule(ping, "root", None, Every.hours(1))
        root.include(ping, "sibling", group="root")
        root.include(ping, "job", fan_in=True, group="root")
        bench.seed()
        bench.manage()
        bench.dispatch()
        bench.work()
        explanation = manifest("job").explain()
        assert (explanation.code, alarm_of("job")) == (Reason.WAITS_FOR_PARENTS, None)
        assert explanation.reason.startswith(IN_WORDS[Reason.WAITS_FOR_PARENTS])
        assert "job" not in {row.manifest_external_id for row in WorkQueue.objects.queued()}
        bench.drain()
        assert manifest("job").explain().code == Reason.PARENT_NOT_AHEAD

    def test_a_join_of_which_too_few_arrived_is_told_so_with_the_remedy(self, bench):
        root = bench.schedules.schedule(ping, "root", None, Every.hours(1))
        root.include(give_up, "broken", group="root")
        root.include(ping, "sound", group="root")
        root.include(ping, "job", depends_on=["broken", "sound"], group="root")
        bench.seed()
        bench.drain()
        explanation = manifest("job").explain()
        assert explanation.code == Reason.TOO_FEW_ARRIVED
        assert explanation.reason.startswith(IN_WORDS[Reason.TOO_FEW_ARRIVED])
        assert "broken" in explanation.reason
        assert "retry the dead letters" in explanation.reason.lower()

    def test_a_row_that_was_put_aside_does_not_claim_to_wait_for_its_time(self, monkeypatch):
        """Its alarm is gone and nothing will look at it: "its next run is not due yet" would be untrue."""
        row = enqueue._row
        monkeypatch.setattr(enqueue, "_row", lambda *args, **rest: row(*args, **rest) | {"priority": 99})
        make_manifest("job")
        evaluate(now=NOW)
        assert alarm_of("job") is None
        assert manifest("job").explain().code != Reason.NOT_DUE
