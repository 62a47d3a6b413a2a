"""Runs of the graph: who has a part in them, how they are cancelled, changed on the way, and limited in number."""

import pytest
from django.db import transaction
from django.db.models import F

from chainsched import Every
from chainsched.domain.joins import JoinOutcome
from chainsched.domain.outcomes import Finished
from chainsched.flow.maintain.fsck import run_fsck
from chainsched.flow.run.record import record
from chainsched.models import DeadLetter, GraphRun, JoinState, Manifest, ManifestGroup
from tests.drive import executions_of, manifest
from tests.scenarios.graphs import (
    DONE,
    FAILED,
    GIVEN_UP,
    GROUP,
    check_all_closed,
    coverage,
    declare_join,
    end,
    end_all,
    is_running,
    make_diamond,
    next_run,
    runs,
    start,
    starts_of,
    state_of,
)
from tests.testapp.workflows import ping

pytestmark = [pytest.mark.django_db, pytest.mark.slow_on_postgres]

FAN_IN = {"depends_on": "head", "fan_in": True}


# How far the member "c" has got when it is switched off; the others run.


def is_due(_bench):
    assert manifest("c").state.due_run == runs()[-1].id


def is_queued(bench):
    bench.manage()
    assert "c" in bench.queued()


def awaits_a_retry(bench):
    end(bench, "c", outcome=FAILED)


class TestDisabledMembers:
    @pytest.fixture(params=["manifest", "group"])
    def switch(self, request):
        """Switches the member "c" off and on, by itself or with its group."""
        Manifest.objects.schedule(ping, "head", None, Every.hours(1), **GROUP)
        for name in "ab":
            Manifest.objects.schedule_dependent(ping, name, None, depends_on="head", **GROUP)
        Manifest.objects.schedule_dependent(ping, "c", None, depends_on="head", group="of-c")
        declare_join(**FAN_IN)
        if request.param == "manifest":
            return lambda is_on: manifest("c").enable() if is_on else manifest("c").disable()
        group = ManifestGroup.objects.get(name="of-c")
        return lambda is_on: group.enable() if is_on else group.disable()

    @pytest.mark.parametrize("stage", [is_due, is_queued, awaits_a_retry])
    def test_switching_a_member_off_lets_the_join_go_on(self, bench, switch, stage):
        end(bench, "head")
        stage(bench)
        switch(False)
        assert end_all(bench) == ["a", "b", "join"]
        switch(True)
        bench.advance(minutes=10)
        assert end_all(bench) == ["c"], "it has its turn, too late for the join"
        check_all_closed(bench)

    @pytest.mark.parametrize("stage", [is_due, is_queued, awaits_a_retry])
    def test_switching_it_on_before_the_decision_makes_the_join_wait_again(self, bench, switch, stage):
        end(bench, "head")
        stage(bench)
        switch(False)
        end(bench, "a")
        switch(True)
        end(bench, "b")
        assert starts_of(bench, "join") == 0
        bench.advance(minutes=10)
        end(bench, "c")
        assert starts_of(bench, "join") == 1
        end_all(bench)
        check_all_closed(bench)

    def test_one_whose_parent_a_users_transaction_switches_on_makes_the_join_wait_in_the_same_turn(self, bench):
        Manifest.objects.schedule(ping, "head", None, Every.hours(1), **GROUP)
        for name, parent in (("a", "head"), ("m", "head"), ("c", "m")):
            Manifest.objects.schedule_dependent(ping, name, None, depends_on=parent, **GROUP)
        declare_join(depends_on=["a", "c"])
        end(bench, "head")
        end(bench, "m")
        manifest("m").disable()
        start(bench)
        assert not is_running("c")
        with transaction.atomic():
            manifest("m").enable()
        (running,) = executions_of("a")
        record([Finished(running.id, DONE)], by=bench.process, now=bench.now)
        bench.manage()
        assert state_of("join", *runs()).outcome == JoinOutcome.WAITING
        assert end_all(bench) == ["c", "join"]
        check_all_closed(bench)

    def test_a_member_that_is_off_has_no_part_in_later_runs(self, bench, switch):
        switch(False)
        for _ in range(3):
            assert end_all(bench) == ["head", "a", "b", "join"]
            bench.advance(hours=1)
        switch(True)
        assert end_all(bench)[-1] == "join"
        assert [run.run for run in executions_of("c")] == runs()[2:], "once for all that it missed, and once more"
        check_all_closed(bench)

    def test_a_member_that_is_off_but_runs_is_waited_for(self, bench, switch):
        end(bench, "head")
        start(bench)
        switch(False)
        end(bench, "a", "b")
        assert starts_of(bench, "join") == 0
        end(bench, "c")
        assert starts_of(bench, "join") == 1

    def test_an_attempt_that_fails_while_it_is_off_lets_the_join_go_on(self, bench, switch):
        end(bench, "head")
        start(bench)
        switch(False)
        end(bench, "a", "b")
        end(bench, "c", outcome=FAILED)
        assert starts_of(bench, "join") == 1

    def test_an_explicit_join_is_short_without_it(self, bench, switch):
        declare_join(group="behind")
        switch(False)
        assert end_all(bench) == ["head", "a", "b"]
        assert state_of("join", runs()[0]).outcome == JoinOutcome.SHORT
        switch(True)
        assert end_all(bench) == ["c", "join"]
        check_all_closed(bench)


def test_a_member_that_an_operator_starts_although_it_is_disabled_is_waited_for(bench):
    make_diamond(**FAN_IN)
    manifest("c").disable()
    end(bench, "head")
    bench.manage()
    manifest("c").trigger()
    end(bench, "a", "b")
    assert is_running("c")
    assert starts_of(bench, "join") == 0
    end(bench, "c")
    assert starts_of(bench, "join") == 1
    end_all(bench)
    check_all_closed(bench)


class TestLettersOfEarlierRuns:
    @pytest.fixture
    def stopped(self, bench):
        """A letter of the first run stops "c"; two more runs have ended without it."""
        make_diamond(**FAN_IN)
        end(bench, "head")
        end(bench, "c", outcome=GIVEN_UP)
        assert end_all(bench) == ["a", "b", "join"]
        for _ in range(2):
            next_run(bench)
            assert end_all(bench) == ["a", "b", "join"]
        return bench

    def test_a_member_that_it_stops_has_no_part_in_later_runs(self, stopped):
        assert {len(found) for found in coverage("join").values()} == {1}
        check_all_closed(stopped)

    def test_a_retry_belongs_to_its_run_and_is_followed_by_one_for_the_newest(self, stopped):
        first, _, third = runs()
        DeadLetter.objects.get().retry()
        assert end_all(stopped) == ["c", "c"]
        assert [run.run for run in executions_of("c")] == [first, first, third]
        check_all_closed(stopped)

    def test_after_an_acknowledgement_it_runs_for_the_newest(self, stopped):
        *_, third = runs()
        DeadLetter.objects.get().acknowledge()
        assert end_all(stopped) == ["c"]
        assert [run.run for run in executions_of("c")[1:]] == [third]
        check_all_closed(stopped)


class TestCancelledRuns:
    @pytest.mark.parametrize("options", [{}, FAN_IN, {"at_least": 1, "eager": True}, {"deadline": 600}])
    @pytest.mark.parametrize("ended", ["", "a", "ab"])
    def test_nothing_fires_in_it(self, bench, options, ended):
        make_diamond(**{**options, "at_least": 3} if ended and "eager" in options else options)
        Manifest.objects.schedule_dependent(ping, "report", None, depends_on="join", **GROUP)
        end(bench, "head")
        for name in ended:
            end(bench, name)
        start(bench)
        runs()[0].cancel(reason="the source was wrong")
        for name in set("abc") - set(ended):
            end(bench, name)
        bench.advance(minutes=20)
        assert end_all(bench) == []
        assert state_of("join", runs()[0]).outcome == JoinOutcome.CANCELLED
        check_all_closed(bench)

    def test_what_waits_in_it_never_runs_and_the_next_run_is_whole(self, bench):
        make_diamond()
        end(bench, "head")
        bench.manage()
        assert runs()[0].cancel().queued == 3
        assert end_all(bench) == []
        check_all_closed(bench)
        bench.advance(hours=1)
        assert end_all(bench) == ["head", "a", "b", "c", "join"]
        check_all_closed(bench)

    def test_the_tree_of_its_head_is_the_run(self, bench):
        make_diamond()
        end(bench, "head")
        bench.manage()
        executions_of("head")[0].cancel(tree=True, reason="on second thought")
        assert (runs()[0].cancel_reason, runs()[0].cancelled_at) == ("on second thought", bench.now)
        assert end_all(bench) == []
        check_all_closed(bench)

    @pytest.mark.parametrize(("cancelled", "is_run"), [([1], True), ([2], True), ([1, 2], False)])
    def test_an_item_that_stands_for_another_run_too_goes_on(self, bench, cancelled, is_run):
        make_diamond()
        end(bench, "head")
        for _ in range(2):
            end(bench, "a", "b", "c")
            next_run(bench)
        end(bench, "a", "b", "c")
        start(bench)
        assert is_running("join"), "for the first run; it is due for the second and the third"
        for number in cancelled:
            runs()[number].cancel()
        assert end_all(bench) == ["join", *(["join"] if is_run else [])]
        found = list(coverage("join").values())
        assert len(found[0]) == 1
        for number in (1, 2):
            if number not in cancelled:
                assert len(found[number]) == 1
        check_all_closed(bench)

    @pytest.mark.parametrize("stage", ["queued", "running"])
    def test_a_row_that_stands_for_another_run_too_goes_on(self, bench, stage):
        make_diamond()
        Manifest.objects.schedule(ping, "other", None, None, priority=31, group="full", group_max_active_jobs=1)
        Manifest.objects.schedule_dependent(ping, "a", None, depends_on="head", group="full")
        declare_join(group="behind")
        manifest("other").trigger()
        start(bench)
        end(bench, "head")
        next_run(bench)
        start(bench)
        assert "a" in bench.queued(), "for both runs"
        if stage == "running":
            end(bench, "other")
            start(bench)
            assert is_running("a")
        first, second = runs()
        second.cancel()
        ran = end_all(bench)
        assert ran.count("a") == 1
        assert ran.count("join") == 1
        assert first in {join.run for join in executions_of("join")}
        assert coverage("join")[first.id] == [executions_of("join")[0].id]
        check_all_closed(bench)

    @pytest.mark.parametrize("stage", ["due", "queued", "running"])
    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_a_row_that_stands_for_two_runs_is_cancelled_with_the_last_of_them(self, bench, order, stage):
        """In whatever order: it is named after the newer one."""
        make_diamond(**FAN_IN)
        manifest("head").trigger()
        start(bench)
        manifest("a").trigger()
        start(bench)
        end(bench, "head")
        next_run(bench)
        start(bench)
        if stage != "due":
            end(bench, "a")
            bench.manage()
        if stage == "running":
            start(bench)
        first, second = (run for run in runs() if run.head_external_id == "head")
        for run in [(first, second)[at] for at in order]:
            run.cancel()
        if stage != "running":
            assert manifest("a").state.due_run is None
            assert "a" not in bench.queued()
        end_all(bench)
        assert len(executions_of("a")) == (2 if stage == "running" else 1)
        check_all_closed(bench)

    def test_a_letter_of_a_cancelled_run_is_refused(self, bench):
        make_diamond()
        end(bench, "head")
        end(bench, "a", outcome=GIVEN_UP)
        runs()[0].cancel()
        letter = DeadLetter.objects.get()
        resolved = letter.retry()
        assert "its run was cancelled" in resolved.skipped[letter.id]

    def test_an_inner_execution_is_a_cancelled_arrival(self, bench):
        make_diamond(**FAN_IN)
        end(bench, "head")
        start(bench)
        executions_of("c")[0].cancel(tree=True)
        end(bench, "a", "b")
        end(bench, "c")
        assert starts_of(bench, "join") == 1
        end_all(bench)
        check_all_closed(bench)


# What happens to the graph in the middle of a run.


def a_member_comes(_bench):
    Manifest.objects.schedule_dependent(ping, "d", None, depends_on="head", **GROUP)


def a_member_of_the_join_comes(_bench):
    Manifest.objects.schedule_dependent(ping, "d", None, depends_on="head", **GROUP)
    declare_join(depends_on=["a", "b", "c", "d"])


def a_link_comes(_bench):
    Manifest.objects.schedule_dependent(ping, "tail", None, depends_on="c", **GROUP)
    declare_join(depends_on=["a", "b", "tail"])


def something_follows_the_join(_bench):
    Manifest.objects.schedule_dependent(ping, "report", None, depends_on="join", **GROUP)


def another_join_comes(_bench):
    Manifest.objects.schedule_dependent(ping, "second", None, depends_on=["a", "join"], **GROUP)


def a_member_is_removed(_bench):
    manifest("c").delete()


def two_members_are_removed(_bench):
    for name in "bc":
        manifest(name).delete()


def the_join_is_removed(_bench):
    manifest("join").delete()


def the_head_is_removed(_bench):
    manifest("head").delete()


def the_join_gets_another_parent(_bench):
    declare_join(depends_on=["a", "b"])


def the_join_becomes_plain(_bench):
    declare_join(depends_on="a")


def the_join_becomes_a_fan_in(_bench):
    declare_join(**FAN_IN)


def the_join_becomes_a_fan_in_over_the_tree(_bench):
    declare_join(depends_on="head", fan_in="tree")


def the_join_gets_a_schedule(_bench):
    Manifest.objects.schedule(ping, "join", None, None, **GROUP)


def a_member_moves_below_another(_bench):
    Manifest.objects.schedule_dependent(ping, "c", None, depends_on="b", **GROUP)


def a_member_gets_a_schedule(_bench):
    declare_join(depends_on=["a", "b"])
    Manifest.objects.schedule(ping, "c", None, None, **GROUP)


def a_member_becomes_dormant(_bench):
    Manifest.objects.schedule_dependent(ping, "c", None, depends_on="head", dormant=True, **GROUP)


CHANGES = [
    a_member_comes,
    a_member_of_the_join_comes,
    a_link_comes,
    something_follows_the_join,
    another_join_comes,
    a_member_is_removed,
    two_members_are_removed,
    the_join_is_removed,
    the_head_is_removed,
    the_join_gets_another_parent,
    the_join_becomes_plain,
    the_join_becomes_a_fan_in,
    the_join_becomes_a_fan_in_over_the_tree,
    the_join_gets_a_schedule,
    a_member_moves_below_another,
    a_member_gets_a_schedule,
    a_member_becomes_dormant,
]


class TestChangesInMidRun:
    @pytest.mark.parametrize(
        "ended",
        [
            pytest.param(None, id="the head runs", marks=pytest.mark.slow),
            pytest.param("", id="all run"),
            pytest.param("ab", id="one runs", marks=pytest.mark.slow),
        ],
    )
    @pytest.mark.parametrize("change", CHANGES, ids=[change.__name__.replace("_", " ") for change in CHANGES])
    def test_nothing_stays_open_in_a_closed_run(self, bench, change, ended):
        make_diamond()
        start(bench)
        for name in () if ended is None else ("head", *ended):
            end(bench, name)
        change(bench)
        end_all(bench)
        check_all_closed(bench)
        bench.advance(hours=1)
        end_all(bench)
        check_all_closed(bench)

    @pytest.mark.parametrize("change", CHANGES, ids=[change.__name__.replace("_", " ") for change in CHANGES])
    def test_nor_if_the_members_are_still_to_be_started(self, bench, change):
        make_diamond()
        end(bench, "head")
        bench.manage()
        change(bench)
        end_all(bench)
        check_all_closed(bench)


class TestFsck:
    @pytest.mark.parametrize("by", [1, 5])
    def test_it_finds_a_count_that_was_changed_by_hand_and_mends_it(self, bench, by):
        make_diamond()
        end(bench, "head")
        end(bench, "a", "b")
        start(bench)
        JoinState.objects.filter(join_id=manifest("join").id).update(open=F("open") + by)
        end(bench, "c")
        assert starts_of(bench, "join") == 0
        (finding,) = run_fsck(now=bench.now)
        assert (finding.check, finding.is_repaired) == ("tokens", False)
        run_fsck(now=bench.now, repair=True)
        assert starts_of(bench, "join") == 1
        end_all(bench)
        check_all_closed(bench)

    def test_a_count_that_is_too_small_does_not_let_it_run_once_it_is_mended(self, bench):
        make_diamond()
        end(bench, "head")
        end(bench, "a")
        start(bench)
        JoinState.objects.filter(join_id=manifest("join").id).update(open=1)
        (finding,) = run_fsck(now=bench.now, repair=True)
        assert "1 open items are counted, 2 hold a token" in finding.evidence
        end(bench, "b")
        assert starts_of(bench, "join") == 0
        end(bench, "c")
        assert starts_of(bench, "join") == 1


class TestTooManyOpenRuns:
    @pytest.fixture
    def slow(self, bench, settings):
        """Three runs are open, which is all that may be: "c" has not ended once, the others have in each."""
        settings.CHAINSCHED = {"MAX_OPEN_RUNS": 3}
        make_diamond(**FAN_IN)
        for _ in range(3):
            end(bench, "head")
            end(bench, "a", "b")
            bench.advance(hours=1)
        assert GraphRun.objects.open().count() == 3
        return bench

    def test_the_head_keeps_its_schedule_in_the_newest_run(self, slow):
        for _ in range(4):
            end(slow, "head")
            end(slow, "a", "b")
            slow.advance(hours=1)
        assert len(runs()) == 3
        newest = runs()[-1]
        assert [run.run for run in executions_of("head")[3:]] == [newest] * 4
        assert all(run.is_again for run in executions_of("head")[3:])

    def test_the_oldest_run_still_closes(self, slow):
        end(slow, "head")
        end(slow, "c")
        end(slow, "join")
        start(slow)
        first, *others = runs()
        assert first.closed_at is not None
        assert [run.closed_at for run in others] == [None, None]

    def test_a_new_run_is_born_as_soon_as_there_is_room(self, slow):
        end(slow, "head")
        end(slow, "c")
        end(slow, "join")
        slow.advance(hours=1)
        end(slow, "head")
        assert len(runs()) == 4

    def test_every_run_is_joined_once_in_the_end(self, slow):
        for _ in range(3):
            end(slow, "head")
            slow.advance(hours=1)
        Manifest.objects.filter(external_id="head").update(is_enabled=False)
        end_all(slow)
        assert {len(found) for found in coverage("join").values()} == {1}
        check_all_closed(slow)

    def test_a_trigger_never_rides(self, slow):
        manifest("head").disable()
        manifest("head").trigger()
        end(slow, "head")
        assert len(runs()) == 4

    def test_without_a_run_that_may_take_it_in_a_new_one_is_born(self, slow):
        """The join is decided in all of them, by a deadline."""
        JoinState.objects.filter(join_id=manifest("join").id).update(deadline_at=slow.now)
        end(slow, "head")
        assert len(runs()) == 4
