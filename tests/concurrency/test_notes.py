"""Notes that come while another transaction holds what they are for: none waits longer than that transaction."""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from chainsched.domain.joins import JoinOutcome
from chainsched.flow.run.fold_notes import settle
from chainsched.models import DueNote, JoinNote, WorkQueue
from chainsched.runtime.loops import manager
from tests.concurrency.gathering import Gathering
from tests.concurrency.interleaving import Actor, Call, actors
from tests.concurrency.rules import check_rules
from tests.drive import executions_of, new_bench
from tests.waiting import wait_until
from tests.worlds import dump, restore

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("patience", "no_deadlock"),
]


@pytest.fixture
def gathering() -> Iterator[Gathering]:
    with new_bench() as bench:
        yield Gathering(bench, members=2)


def stops_of(call: Call, meanwhile: Callable[[Actor], Any]) -> Iterator[int]:
    """Stop a call after each of its statements, do something meanwhile on other connections, and let it go on."""
    world = dump()
    with actors() as (one, other):
        for step in count(1):
            restore(world)
            one.start(call, stop_after=step)
            if not one.stops():
                return
            meanwhile(other)
            one.go_on()
            one.result()
            yield step


def let(other: Actor, call: Call) -> Any:
    other.start(call)
    wait_until(lambda: other.is_done or other.is_held(), interval=0.001)
    assert other.is_done, "it waits for the one that stands still"
    return other.result()


def test_a_note_that_comes_while_a_folder_holds_its_join_is_folded_without_another_turn(gathering):
    """Another manager, woken by the note, passes over the join; the folder looks again after its commit."""
    now = gathering.bench.now
    gathering.members_run()
    gathering.end("m-0")
    last = gathering.recording("m-1")
    passed_over = 0

    def end_the_last(other: Actor) -> None:
        nonlocal passed_over
        assert len(let(other, last)) == 1
        let(other, lambda: manager.turn(now))
        passed_over += gathering.state().outcome == JoinOutcome.WAITING

    for step in stops_of(lambda: manager.turn(now), end_the_last):
        assert gathering.state().outcome == JoinOutcome.FIRED, f"stopped after statement {step}"
        assert (JoinNote.objects.count(), DueNote.objects.count()) == (0, 0)
        assert WorkQueue.objects.queued().filter(manifest=gathering.join).count() == 1, f"after statement {step}"
    assert passed_over > 3, "the first manager held the join while the other one looked"


def test_a_run_whose_last_note_comes_while_its_end_is_held_is_closed_without_another_turn(gathering):
    now = gathering.bench.now
    for name in ("x", "y"):
        gathering.add(name, on="join")
    gathering.members_run()
    gathering.end("m-0", "m-1")
    gathering.start()
    gathering.end("join")
    gathering.start()
    gathering.end("x")
    last = gathering.recording("y")

    def end_the_last(other: Actor) -> None:
        assert len(let(other, last)) == 1
        let(other, lambda: settle(now=now))

    for step in stops_of(lambda: settle(now=now), end_the_last):
        assert gathering.run.closed_at is not None, f"stopped after statement {step}"


def test_two_managers_that_decide_the_same_join_fire_it_once(gathering):
    now = gathering.bench.now
    gathering.members_run()
    gathering.end("m-0", "m-1")
    for step in stops_of(lambda: manager.turn(now), lambda other: let(other, lambda: manager.turn(now))):
        assert gathering.firings() == 1, f"stopped after statement {step}"
        gathering.bench.drain()
        assert len(executions_of("join")) == 1, f"stopped after statement {step}"
        check_rules(gathering.bench)


def test_a_member_that_ends_while_its_join_is_decided_by_deadline_is_counted_or_late(gathering):
    """It is counted either way, and changes nothing about the one run of the join."""
    hurried = Gathering(gathering.bench, members=2, name="hurried-", deadline=10)
    hurried.members_run()
    hurried.end("m-0")
    hurried.bench.manage()
    last = hurried.recording("m-1")
    now = hurried.bench.advance(seconds=10)
    for step in stops_of(lambda: manager.turn(now), lambda other: let(other, last)):
        hurried.bench.drain()
        state = hurried.state()
        assert (state.outcome, state.firings, state.arrived) == (JoinOutcome.FIRED, 1, 2), f"after statement {step}"
        assert len(executions_of("hurried-join")) == 1
        check_rules(hurried.bench)
