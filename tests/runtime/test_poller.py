"""A loop: when it turns, and what it survives."""

import threading
from datetime import timedelta

import pytest

from chainsched.runtime.poller import Poller, Turn

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
    monkeypatch.setattr("chainsched.runtime.poller.FIRST_BACKOFF", 0.01)

    def answer(now, number):
        if number <= 3:
            raise RuntimeError("the database is away")
        return Turn()

    turns = Turns(answer)
    caplog.set_level("INFO")
    start(turns)
    assert turns.wait_for(4)
    assert caplog.text.count("A turn of the test failed") == 1


def test_it_tells_what_a_turn_did(start):
    told = threading.Event()
    start(Turns(lambda now, number: Turn(did=7)), after=lambda turn: told.set() if turn.did == 7 else None)
    assert told.wait(PATIENCE)
