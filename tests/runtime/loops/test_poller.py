"""A loop: when it turns, and what it survives."""

import queue
import threading
from datetime import timedelta

import pytest
from django.db import connection

from chainsched.runtime.loops.loops import Loops
from chainsched.runtime.loops.poller import BUSY_PAUSE, PAUSE_GROWTH, Poller, Turn
from chainsched.runtime.support.hearing import hearing
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

PATIENCE = 20


class Turns:
    """Counts turns and lets a test wait for the nth."""

    def __init__(self, answer=lambda now, number: Turn()):
        self.number = 0
        self._answer = answer
        self._changed = threading.Condition()

    def __call__(self, now):
        with self._changed:
            self.number += 1
            self._changed.notify_all()
        return self._answer(now, self.number)

    def wait_for(self, number):
        with self._changed:
            return self._changed.wait_for(lambda: self.number >= number, timeout=PATIENCE)


@pytest.fixture
def start():
    pollers = []

    def start(turns, *, interval=3600.0, **options):
        poller = Poller("test", turns, interval=interval, **options)
        poller.start()
        pollers.append(poller)
        return poller

    yield start
    for poller in pollers:
        poller.stop()
        assert poller.join(PATIENCE)


def test_it_turns_at_once_and_then_waits(start):
    turns = Turns()
    poller = start(turns)
    assert turns.wait_for(1)
    poller.stop()
    poller.join(PATIENCE)
    assert turns.number == 1


def test_it_turns_again_when_woken(start):
    turns = Turns()
    poller = start(turns)
    turns.wait_for(1)
    poller.wake()
    assert turns.wait_for(2)


def test_one_with_patience_takes_one_turn_for_all_that_wake_it_in_the_meantime(start):
    turns = Turns(lambda now, number: Turn(patience=0.5 if number == 1 else 0.0))
    poller = start(turns)
    turns.wait_for(1)
    poller._stopping = stopping = HeldEvent()
    poller.wake()
    assert stopping.waits.get(timeout=PATIENCE) == 0.5
    for _ in range(3):
        poller.wake()
    assert turns.number == 1
    stopping.release.set()
    assert turns.wait_for(2)
    poller.stop()
    assert poller.join(PATIENCE)
    assert turns.number == 2


class HeldEvent(threading.Event):
    """Tells of a wait, which is over when the test says so."""

    def __init__(self):
        super().__init__()
        self.waits: queue.SimpleQueue[float | None] = queue.SimpleQueue()
        self.release = threading.Event()

    def wait(self, timeout=None):
        self.waits.put(timeout)
        return self.release.wait(PATIENCE)


def test_one_with_patience_waits_for_no_wake_while_there_is_more(start):
    turns = Turns(lambda now, number: Turn(has_more=number < 5, patience=3600.0))
    poller = start(turns)
    for _ in range(3):
        poller.wake()
    assert turns.wait_for(5)
    poller.stop()
    assert poller.join(PATIENCE)


def test_one_with_patience_stops_at_once(start):
    turns = Turns(lambda now, number: Turn(patience=3600.0))
    poller = start(turns)
    turns.wait_for(1)
    poller.wake()
    poller.stop()
    assert poller.join(PATIENCE)


def test_it_turns_again_after_its_interval(start):
    turns = Turns()
    start(turns, interval=0.01)
    assert turns.wait_for(3)


def test_it_turns_again_when_the_next_alarm_comes(start):
    turns = Turns(lambda now, number: Turn(next_at=now + timedelta(milliseconds=20)))
    start(turns)
    assert turns.wait_for(3)


def test_it_turns_again_at_once_while_there_is_more(start):
    turns = Turns(lambda now, number: Turn(has_more=number < 5))
    start(turns)
    assert turns.wait_for(5)


def test_it_survives_a_failing_turn_and_says_so_once(start, caplog, monkeypatch):
    monkeypatch.setattr("chainsched.runtime.loops.poller.FIRST_BACKOFF", 0.01)

    def answer(now, number):
        if number <= 3:
            raise RuntimeError("the database is away")
        return Turn()

    turns = Turns(answer)
    caplog.set_level("INFO")
    start(turns)
    assert turns.wait_for(4)
    assert caplog.text.count("A turn of the test failed") == 1


def test_what_is_asked_between_turns_is_not_so_during_one(start):
    begun, released = threading.Event(), threading.Event()

    def answer(now, number):
        begun.set()
        released.wait(PATIENCE)
        return Turn()

    poller = start(Turns(answer))
    assert begun.wait(PATIENCE)
    assert not poller.holds_between_turns(lambda: True)
    released.set()
    wait_until(lambda: poller.holds_between_turns(lambda: True))
    assert not poller.holds_between_turns(lambda: False)


def test_it_tells_what_a_turn_did(start):
    told = threading.Event()
    start(Turns(lambda now, number: Turn(did=7)), after=lambda turn: told.set() if turn.did == 7 else None)
    assert told.wait(PATIENCE)


def test_a_turn_that_waits_for_the_database_hangs_and_one_that_ended_does_not(start):
    may_end = threading.Event()
    turns = Turns(lambda now, number: may_end.wait(PATIENCE) and Turn())
    poller = start(turns)
    assert turns.wait_for(1)
    wait_until(lambda: poller.is_hung(0.1))
    assert not poller.is_hung(3600)
    may_end.set()
    wait_until(lambda: not poller.is_hung(0))


def test_a_loop_that_hangs_is_replaced_and_takes_no_turn_after_it(monkeypatch):
    may_end, turns = threading.Event(), []

    def turn(now):
        turns.append(threading.get_ident())
        if len(turns) == 1:
            may_end.wait(PATIENCE)
        return Turn()

    monkeypatch.setattr("chainsched.runtime.loops.manager.turn", turn)
    loops = Loops(["manager"], after=lambda *_: None, on_death=lambda: None)
    loops.start()
    try:
        wait_until(lambda: turns)
        assert loops.renew_hung(after=3600) == []
        assert loops.renew_hung(after=0) == ["manager"]
        wait_until(lambda: len(set(turns)) == 2)
        may_end.set()
        wait_until(lambda: not [thread for thread in threading.enumerate() if thread.ident == turns[0]])
    finally:
        may_end.set()
        loops.stop()
        loops.join(PATIENCE)
    assert turns.count(turns[0]) == 1


@pytest.mark.postgres
def test_a_connection_that_died_while_it_was_idle_is_no_outage(start, caplog):
    caplog.set_level("INFO")
    backends = []

    def turn(now, number):
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            backends.append(cursor.fetchone()[0])
        return Turn()

    turns = Turns(turn)
    poller = start(turns)
    wait_until(lambda: len(backends) == 1)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 10000)", backends)
    poller.wake()
    wait_until(lambda: len(backends) == 2)
    assert backends[0] != backends[1]
    assert caplog.messages == []


class TestWhileNoticesAreNotHeard:
    def pauses(self, name, *turns):
        """How long a loop sleeps after each of these turns."""
        answers = iter(turns)
        poller = Poller(name, lambda now: next(answers), interval=1.0)
        return [poller._take_turn() for _ in turns]

    def test_a_loop_that_had_work_turns_again_soon_and_ever_later_until_its_interval(self):
        hearing.lose()
        pauses = self.pauses("manager", Turn(did=1), Turn(did=2), *[Turn()] * 12)
        assert pauses[:2] == [BUSY_PAUSE, BUSY_PAUSE]
        assert pauses[2:-2] == [pytest.approx(BUSY_PAUSE * PAUSE_GROWTH**number) for number in range(1, 11)]
        assert pauses[-2:] == [1.0, 1.0]

    def test_an_idle_one_keeps_its_interval(self):
        hearing.lose()
        assert self.pauses("worker", Turn(), Turn()) == [1.0, 1.0]

    def test_one_that_heard_of_nothing_all_the_same_remembers_that_it_had_work(self):
        answers = iter([Turn(did=1), Turn()])
        poller = Poller("dispatcher", lambda now: next(answers), interval=1.0)
        assert poller._take_turn() == 1.0
        hearing.lose()
        assert poller._take_turn() == BUSY_PAUSE * PAUSE_GROWTH

    def test_a_loop_that_no_notice_wakes_keeps_its_interval(self):
        hearing.lose()
        assert self.pauses("cleaner", Turn(did=1)) == [1.0]

    def test_a_loop_keeps_its_interval_while_notices_are_heard(self):
        assert self.pauses("manager", Turn(did=1)) == [1.0]
