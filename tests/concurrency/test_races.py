"""Races, named after who meets whom: in every interleaving the outcome is that of one after the other."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from django.db import transaction

from chainsched import Every
from chainsched.db.clock import database_now
from chainsched.domain.joins import JoinOutcome
from chainsched.flow.run.claim import claim
from chainsched.flow.run.dispatch import dispatch
from chainsched.models import GraphRun, Manifest, ManifestGroup, Metadata, NamedLock
from chainsched.models.named_lock import DISPATCH
from tests.concurrency.family import Call, Family, add_one_time_child, depend, join_group, remove
from tests.concurrency.gathering import Gathering
from tests.concurrency.interleaving import Actor, actors, interleave
from tests.concurrency.threads import at_once
from tests.drive import manifest, new_bench
from tests.factories import make_execution, make_manifest, make_process, make_queue_row
from tests.testapp.workflows import ping
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("patience", "no_deadlock"),
]


@pytest.fixture
def family() -> Iterator[Family]:
    with new_bench() as bench:
        yield Family(bench)


def test_manager_against_manager(family):
    family.members_are_due()
    tried = interleave(family.bench, family.evaluate, family.evaluate)
    assert {sum(answers) for answers in tried.answers} == {2}
    assert tried.waits == 0, "managers pass over each other's rows"


def test_dispatcher_against_dispatcher_with_room_for_one(family):
    family.members_wait()
    ManifestGroup.objects.filter(name="g").update(max_active_jobs=1)
    tried = interleave(family.bench, family.dispatch, family.dispatch)
    assert {sum(answers) for answers in tried.answers} == {1}
    assert tried.waits > 5, "the second turn waits for the first"


@pytest.mark.parametrize("is_turned", [False, True])
def test_worker_against_recall(family, is_turned):
    """Whoever locks an execution first has it; the other passes over it."""
    family.members_are_dispatched()
    calls: list[Call] = [lambda: len(family.claim()()), family.recall]
    tried = interleave(family.bench, *(reversed(calls) if is_turned else calls))
    assert set(tried.answers) == {(0, 2), (2, 0)}
    assert tried.waits == 0, "neither waits for the other"


def test_recall_against_recall(family):
    family.members_are_dispatched()
    tried = interleave(family.bench, family.recall, family.recall)
    assert {sum(answers) for answers in tried.answers} == {2}


def test_worker_against_worker(family):
    family.members_are_dispatched()
    tried = interleave(family.bench, family.claim(), family.claim(family.new_worker()))
    assert {sum(map(len, answers)) for answers in tried.answers} == {2}
    assert tried.waits == 0, "workers pass over each other's rows"


def test_record_against_record_of_the_same_execution(family):
    family.members_run()
    tried = interleave(family.bench, family.record("a"), family.record("a"))
    assert {sum(map(len, answers)) for answers in tried.answers} == {1}
    assert tried.waits > 5, "the second record waits for the first"


def test_record_against_record_of_the_last_two_members_of_a_fan_in(family):
    family.members_run()
    tried = interleave(family.bench, family.record("a"), family.record("b"))
    assert tried.waits == 0, "neither waits for the other"


def test_retry_against_retry(family):
    family.member_is_given_up()
    tried = interleave(family.bench, family.letter.retry, family.letter.retry)
    assert {sum(len(answer.done) for answer in answers) for answers in tried.answers} == {1}
    said = {text for answers in tried.answers for answer in answers for text in answer.skipped.values()}
    assert all(text.startswith("already retried by") for text in said)


def test_edge_against_edge_the_other_way(family):
    family.two_stand_alone()
    tried = interleave(family.bench, depend("x", on="y"), depend("y", on="x"))
    assert {sorted(answers)[0] for answers in tried.answers} == {"CycleError"}


class Race(NamedTuple):
    """Who meets whom, and where the family stands."""

    first: str
    second: str
    given: Callable[[Family], None]
    calls: Callable[[Family], tuple[Call, Call]]


# Those that the design names, each in one order; all others, and the other orders, take minutes.


def a_job_is_there(_: Family) -> None:
    declare_job(priority=0, timeout=100)()


def declare_job(**options: int) -> Call:
    """Declare a manifest at run time; a declaration writes the columns that differ from the stored ones."""
    return lambda: Manifest.objects.schedule(ping, "job", None, Every.hours(1), group="g", **options).external_id


NAMED = [
    Race(
        "declaring",
        "another one of the same",
        a_job_is_there,
        lambda _: (declare_job(priority=1, timeout=100), declare_job(priority=0, timeout=200)),
    ),
    Race("record", "record of a dependent", Family.all_run, lambda f: (f.record("parent"), f.record("a"))),
    Race("record", "evaluate", Family.parent_runs_and_a_member_is_due, lambda f: (f.record("parent"), f.evaluate)),
    Race("cancel", "record", Family.members_run, lambda f: (manifest("a").cancel, f.record("a"))),
    Race("enable", "record of the parent", Family.member_is_off, lambda f: (manifest("a").enable, f.record("parent"))),
    Race("reap", "record", Family.worker_is_silent, lambda f: (f.reap, f.record("a", "parent"))),
    Race("record", "reap", Family.worker_is_silent, lambda f: (f.record("a", "parent"), f.reap)),
    Race("activate", "reap", Family.worker_is_silent, lambda f: (f.activate(), f.reap)),
    Race("recall", "cancel", Family.members_are_dispatched, lambda f: (f.recall, manifest("a").cancel)),
    Race("settle", "record of the last member", Family.one_member_has_ended, lambda f: (f.settle, f.record("b"))),
    Race("settle", "cancel of the run", Family.last_note_waits, lambda f: (f.settle, f.cancel_run)),
    Race("cancel of a run", "settle", Family.last_note_waits, lambda f: (f.cancel_run, f.settle)),
    Race("disable", "settle", Family.last_note_waits, lambda f: (manifest("join").disable, f.settle)),
    Race("settle", "enable", Family.member_is_off_and_due, lambda f: (f.settle, manifest("a").enable)),
    Race("park", "enable", Family.member_waits_while_off, lambda f: (f.park, manifest("a").enable)),
    Race("park", "enable of a group", Family.members_wait_while_their_group_is_off, lambda f: (f.park, f.group.enable)),
    Race("record of a parent", "dispatch", Family.two_runs_overlap, lambda f: (f.record("parent"), f.dispatch_later)),
]
OTHERS = [
    Race("park", "trigger", Family.member_waits_while_off, lambda f: (f.park, manifest("a").trigger)),
    Race("park", "cancel", Family.member_waits_while_off, lambda f: (f.park, manifest("a").cancel)),
    Race("park", "remove", Family.member_waits_while_off, lambda f: (f.park, remove("a"))),
    Race("park", "dispatch", Family.group_is_full, lambda f: (f.park, f.dispatch)),
    Race("park", "park", Family.group_is_full, lambda f: (f.park, f.park)),
    Race("park", "record", Family.group_is_full, lambda f: (f.park, f.record(*f.running()))),
    Race("park", "higher limit", Family.group_is_full, lambda f: (f.park, f.raise_limit)),
    Race("first dependent", "record", Family.one_alone_runs, lambda f: (depend("x", on="alone"), f.record("alone"))),
    Race(
        "first child",
        "record",
        Family.one_alone_runs,
        lambda f: (add_one_time_child("x", by="alone"), f.record("alone")),
    ),
    Race("cancel below", "record", Family.members_run, lambda f: (f.cancel_below("a"), f.record("a"))),
    Race("cancel below", "record of a sibling", Family.members_run, lambda f: (f.cancel_below("a"), f.record("b"))),
    Race("cancel below", "settle", Family.one_member_has_ended, lambda f: (f.cancel_below("b"), f.settle)),
    Race("settle", "settle", Family.last_note_waits, lambda f: (f.settle, f.settle)),
    Race("turn", "turn", Family.last_note_waits, lambda f: (f.turn, f.turn)),
    Race("turn", "record of the last member", Family.one_member_has_ended, lambda f: (f.turn, f.record("b"))),
    Race("consume", "trigger", Family.join_has_fired, lambda f: (f.settle, manifest("join").trigger)),
    Race("consume", "disable", Family.join_has_fired, lambda f: (f.settle, manifest("join").disable)),
    Race("consume", "remove", Family.join_has_fired, lambda f: (f.settle, remove("join"))),
    Race("consume", "disable of a group", Family.join_has_fired, lambda f: (f.settle, f.group.disable)),
    Race("consume", "cancel of the run", Family.join_has_fired, lambda f: (f.settle, f.cancel_run)),
    Race("settle", "remove of a member", Family.one_member_has_ended, lambda f: (f.settle, remove("b"))),
    Race("settle", "disable of a member", Family.members_wait, lambda f: (f.settle, manifest("a").disable)),
    Race("settle", "cancel of a member", Family.members_wait, lambda f: (f.settle, manifest("a").cancel)),
    Race("settle", "record of the parent", Family.two_runs_overlap, lambda f: (f.settle, f.record("parent"))),
    Race("settle", "retry", Family.member_is_given_up, lambda f: (f.settle, f.letter.retry)),
    Race("settle", "seed", Family.deploy_waits_while_members_are_due, lambda f: (f.settle, f.bench.seed)),
    Race("cancel of a run", "record", Family.members_run, lambda f: (f.cancel_run, f.record("a"))),
    Race("cancel of a run", "record of the parent", Family.parent_runs, lambda f: (f.cancel_run, f.record("parent"))),
    Race("cancel of a run", "evaluate", Family.members_are_due, lambda f: (f.cancel_run, f.evaluate)),
    Race("cancel of a run", "dispatch", Family.members_wait, lambda f: (f.cancel_run, f.dispatch)),
    Race("cancel of a run", "claim", Family.members_are_dispatched, lambda f: (f.cancel_run, f.claim())),
    Race("cancel of a run", "cancel of the run", Family.members_wait, lambda f: (f.cancel_run, f.cancel_run)),
    Race("cancel of a run", "retry", Family.member_is_given_up, lambda f: (f.cancel_run, f.letter.retry)),
    Race("cancel of a run", "trigger", Family.members_are_due, lambda f: (f.cancel_run, manifest("a").trigger)),
    Race("cancel of a run", "remove", Family.members_run, lambda f: (f.cancel_run, remove("a"))),
    Race("cancel of a run", "taking over", Family.two_runs_overlap, lambda f: (f.cancel_run, f.record("parent"))),
    Race("cancel of a run", "another run", Family.members_wait_for_two_runs, lambda f: (f.cancel_run, f.turn)),
    Race("cancel of a run", "record", Family.members_run_for_two_runs, lambda f: (f.cancel_run, f.record("a"))),
    Race("record", "record", Family.members_run_for_two_runs, lambda f: (f.record("a"), f.record("b"))),
    Race("record", "settle", Family.members_run_for_two_runs, lambda f: (f.record("a", "b"), f.settle)),
    Race("taking over", "cancel", Family.two_runs_overlap, lambda f: (f.record("parent"), manifest("a").cancel)),
    Race("taking over", "disable", Family.two_runs_overlap, lambda f: (f.record("parent"), manifest("a").disable)),
    Race("taking over", "trigger", Family.two_runs_overlap, lambda f: (f.record("parent"), manifest("a").trigger)),
    Race("enable", "settle", Family.member_is_off_and_due, lambda f: (manifest("a").enable, f.settle)),
    Race("enable", "turn", Family.member_is_off_and_due, lambda f: (manifest("a").enable, f.turn)),
    Race("enable of a group", "settle", Family.group_is_off, lambda f: (f.group.enable, f.settle)),
    Race("disable of a group", "settle", Family.last_note_waits, lambda f: (f.group.disable, f.settle)),
    Race("cancel", "record of the parent", Family.all_run, lambda f: (manifest("a").cancel, f.record("parent"))),
    Race("cancel", "dispatch", Family.members_wait, lambda f: (manifest("a").cancel, f.dispatch)),
    Race("cancel", "claim", Family.members_are_dispatched, lambda f: (manifest("a").cancel, f.claim())),
    Race("cancel", "evaluate", Family.members_are_due, lambda f: (manifest("a").cancel, f.evaluate)),
    Race("cancel", "cancel of a sibling", Family.members_wait, lambda f: (manifest("a").cancel, manifest("b").cancel)),
    Race("enable", "evaluate", Family.member_is_off, lambda f: (manifest("a").enable, f.evaluate)),
    Race("disable", "record of the parent", Family.parent_runs, lambda f: (manifest("a").disable, f.record("parent"))),
    Race(
        "disable", "record of the same", Family.parent_runs, lambda f: (manifest("parent").disable, f.record("parent"))
    ),
    Race("disable", "record of a sibling", Family.members_run, lambda f: (manifest("a").disable, f.record("b"))),
    Race("disable", "evaluate", Family.members_are_due, lambda f: (manifest("a").disable, f.evaluate)),
    Race("disable", "dispatch", Family.members_wait, lambda f: (manifest("a").disable, f.dispatch)),
    Race("trigger", "record", Family.members_run, lambda f: (manifest("a").trigger, f.record("a"))),
    Race("trigger", "record of the parent", Family.parent_runs, lambda f: (manifest("a").trigger, f.record("parent"))),
    Race("trigger", "evaluate", Family.members_are_due, lambda f: (manifest("a").trigger, f.evaluate)),
    Race("trigger", "dispatch", Family.members_wait, lambda f: (manifest("a").trigger, f.dispatch)),
    Race("trigger", "cancel", Family.members_wait, lambda f: (manifest("a").trigger, manifest("a").cancel)),
    Race("trigger", "trigger", Family.parent_runs, lambda f: (manifest("a").trigger, manifest("a").trigger)),
    Race("trigger", "remove", Family.members_are_due, lambda f: (manifest("a").trigger, remove("a"))),
    Race("retry", "acknowledge", Family.member_is_given_up, lambda f: (f.letter.retry, f.letter.acknowledge)),
    Race("retry", "remove", Family.member_is_given_up, lambda f: (f.letter.retry, remove("a"))),
    Race(
        "acknowledge", "record of a sibling", Family.member_is_given_up, lambda f: (f.letter.acknowledge, f.record("b"))
    ),
    Race("acknowledge", "trigger", Family.member_is_given_up, lambda f: (f.letter.acknowledge, manifest("a").trigger)),
    Race("reap", "claim", Family.worker_is_silent_before_it_claims, lambda f: (f.reap, f.claim())),
    Race("reap", "give back", Family.worker_is_silent, lambda f: (f.reap, f.give_back)),
    Race("reap", "reap", Family.worker_is_silent, lambda f: (f.reap, f.reap)),
    Race("recall", "dispatch", Family.members_are_dispatched, lambda f: (f.recall, f.dispatch)),
    Race("recall", "trigger", Family.members_are_dispatched, lambda f: (f.recall, manifest("a").trigger)),
    Race("recall", "remove", Family.members_are_dispatched, lambda f: (f.recall, remove("a"))),
    Race("recall", "disable of a group", Family.members_are_dispatched, lambda f: (f.recall, f.group.disable)),
    Race("recall", "edit", Family.members_are_dispatched, lambda f: (f.recall, depend("a", on="parent", priority=9))),
    Race("recall", "reap", Family.worker_is_silent_before_it_claims, lambda f: (f.recall, f.reap)),
    Race("activate", "record", Family.parent_runs, lambda f: (f.activate(), f.record("parent"))),
    Race("activate", "trigger", Family.parent_runs, lambda f: (f.activate(), manifest("dormant").trigger)),
    Race("activate", "remove", Family.parent_runs, lambda f: (f.activate(), remove("dormant"))),
    Race("remove", "record", Family.members_run, lambda f: (remove("a"), f.record("a"))),
    Race("remove", "record of a sibling", Family.members_run, lambda f: (remove("a"), f.record("b"))),
    Race("remove", "record of the parent", Family.parent_runs, lambda f: (remove("a"), f.record("parent"))),
    Race("remove of the parent", "record", Family.all_run, lambda f: (remove("parent"), f.record("parent"))),
    Race("remove", "evaluate", Family.members_are_due, lambda f: (remove("a"), f.evaluate)),
    Race("remove", "dispatch", Family.members_wait, lambda f: (remove("a"), f.dispatch)),
    Race(
        "new parent", "record of the old", Family.two_stand_alone, lambda f: (depend("a", on="x"), f.record("parent"))
    ),
    Race("new dependent", "record", Family.parent_runs, lambda f: (depend("new", on="parent"), f.record("parent"))),
    Race("new join", "record", Family.members_run, lambda f: (depend("new", on="parent", fan_in=True), f.record("a"))),
    Race(
        "new child",
        "record",
        Family.parent_runs,
        lambda f: (add_one_time_child("new", by="parent"), f.record("parent")),
    ),
    Race(
        "enable",
        "move below it",
        Family.one_is_off_beside_another_with_a_dependent,
        lambda _: (manifest("x").enable, depend("below", on="x")),
    ),
    Race(
        "disable",
        "move away from it",
        Family.one_is_off_beside_another_with_a_dependent,
        lambda _: (manifest("y").disable, depend("below", on="x")),
    ),
    Race(
        "enable",
        "remove of the parent",
        Family.member_is_off,
        lambda _: (manifest("a").enable, remove("parent")),
    ),
    Race("edit", "evaluate", Family.members_are_due, lambda f: (depend("a", on="parent", priority=9), f.evaluate)),
    Race("edit", "dispatch", Family.members_wait, lambda f: (depend("a", on="parent", priority=9), f.dispatch)),
    Race("enable of a group", "evaluate", Family.group_is_off, lambda f: (f.group.enable, f.evaluate)),
    Race(
        "enable of a group", "record", Family.group_is_off_while_it_runs, lambda f: (f.group.enable, f.record("parent"))
    ),
    Race("enable of a group", "new member", Family.group_is_off, lambda f: (f.group.enable, join_group("new"))),
    Race("disable of a group", "evaluate", Family.members_are_due, lambda f: (f.group.disable, f.evaluate)),
    Race("disable of a group", "dispatch", Family.members_wait, lambda f: (f.group.disable, f.dispatch)),
    Race("disable of a group", "trigger", Family.members_are_due, lambda f: (f.group.disable, manifest("a").trigger)),
    Race("seed", "record", Family.deploy_waits, lambda f: (f.bench.seed, f.record("parent"))),
    Race("seed", "evaluate", Family.deploy_waits_while_members_are_due, lambda f: (f.bench.seed, f.evaluate)),
    Race("seed", "trigger", Family.deploy_waits, lambda f: (f.bench.seed, manifest("a").trigger)),
    Race("seed", "seed", Family.deploy_waits, lambda f: (f.bench.seed, f.bench.seed)),
]


def cases() -> Iterator[Any]:
    for race in [*NAMED, *OTHERS]:
        marks = [] if race in NAMED else [pytest.mark.slow]
        yield pytest.param(race, False, id=f"{race.first} against {race.second}", marks=marks)
        yield pytest.param(race, True, id=f"{race.second} against {race.first}, back", marks=[pytest.mark.slow])


@pytest.mark.parametrize(("race", "is_turned"), list(cases()))
def test_in_every_interleaving(family, race, is_turned):
    race.given(family)
    first, second = race.calls(family)
    tried = interleave(family.bench, *((second, first) if is_turned else (first, second)))
    assert tried.stops > 1


def test_a_trigger_inside_a_long_transaction_delays_nothing(family):
    """Not even the end of its parent: what it makes due waits in a note."""
    family.all_run()
    family.end("a")
    Manifest.objects.filter(external_id="after").update(is_enabled=False)
    meanwhile: list[Call] = [
        family.turn,
        family.dispatch,
        family.claim(),
        family.reap,
        manifest("b").trigger,
        manifest("join").trigger,
        family.activate(),
        family.bench.seed,
        family.record("parent"),
        family.turn,
    ]
    with actors(1) as (other,):
        with transaction.atomic():
            manifest("a").trigger()
            for call in meanwhile:
                other.start(call)
                assert not is_held_up(other), call
                other.result()
        family.claim()()
    family.bench.drain()
    assert Metadata.objects.filter(manifest_external_id="a").count() == 3, "for the parent, on demand, and again"


def is_held_up(actor: Actor) -> bool:
    """Wait until it is done or waits for a lock; whether it waits."""
    return bool(wait_until(lambda: actor.is_done or actor.is_held(), interval=0.001)) and not actor.is_done


def test_a_dispatcher_takes_its_time_after_its_lock():
    """Otherwise what starts would seem to have started before that had ended which made room for it."""
    make_queue_row(make_manifest(state={}))
    with actors(1) as (other,):
        with transaction.atomic():
            NamedLock.objects.hold(DISPATCH, now=database_now())
            other.start(lambda: dispatch(workflows=["testapp.ping"]))
            assert is_held_up(other)
            released_at = database_now()
        other.result()
    assert Metadata.objects.get().created_at > released_at


@pytest.mark.parametrize("statements", range(1, 12))
def test_what_is_queued_while_a_dispatcher_stands_still_starts_after_that(statements):
    """A dispatcher may be frozen in the middle of its turn, with the time in its hand."""
    make_queue_row(make_manifest(state={}))
    with actors(1) as (other,):
        other.start(lambda: dispatch(workflows=["testapp.ping"]), stop_after=statements)
        assert other.stops()
        late = make_queue_row(make_manifest(state={}), created_at=database_now())
        other.go_on()
        other.result()
    for started in Metadata.objects.filter(work_queue=late.id):
        assert started.created_at > late.created_at


def test_a_worker_takes_its_time_after_its_lock():
    make_execution(make_manifest(state={}), created_at=database_now())
    worker = make_process()
    with actors(1) as (other,):
        other.start(lambda: claim(process=worker, workflows=["testapp.ping"], limit=1), stop_after=2)
        assert other.stops()
        locked_at = database_now()
        other.go_on()
        other.result()
    assert Metadata.objects.get().claimed_at > locked_at


@pytest.mark.slow
def test_the_last_two_members_of_a_fan_in_that_end_at_one_barrier_fire_it_once_a_hundred_times(family):
    gathering = Gathering(family.bench, members=2, name="of-two-")
    for number in range(1, 101):
        gathering.members_run()
        calls: list[Call] = [gathering.recording("m-0"), gathering.recording("m-1"), family.settle]
        one, other, _ = at_once(*calls)
        assert len(one) == len(other) == 1
        family.settle()
        assert (gathering.state().outcome, gathering.firings()) == (JoinOutcome.FIRED, number)
        gathering.start()
        gathering.end("join")
        family.settle()
    assert not GraphRun.objects.open().filter(head=gathering.head.id).exists()
