"""A listener that cannot listen: one line in the log when that begins and one when it ends, not one for each try."""

import logging
import threading
import time

import pytest

from chainsched.runtime.process.listener import Listener
from tests.waiting import wait_until


@pytest.fixture
def listener(monkeypatch):
    """One that fails three times, succeeds, fails twice, and is then told to stop."""
    heard = Listener(lambda topic: None)
    fates = iter([False, False, False, True, False, False, None])

    def listen():
        fate = next(fates)
        if fate is None:
            heard.stop()
        if fate:
            heard._note_success()
        if not fate:
            raise OSError("no way")

    monkeypatch.setattr(heard, "_listen", listen)
    monkeypatch.setattr("chainsched.runtime.process.listener.MAX_PAUSE", 0.01)
    return heard


def test_each_change_is_told_once(listener, caplog):
    with caplog.at_level(logging.INFO, "chainsched"):
        listener.start()
        wait_until(lambda: not listener._thread.is_alive())
    told = [record.message.partition(":")[0] for record in caplog.records]
    lost, found = "Listener is not connected; loops wait for their intervals", "Listener is connected again."
    assert told == [lost, found, lost]


def test_the_wait_grows_and_begins_anew_after_success(monkeypatch):
    monkeypatch.setattr("chainsched.runtime.process.listener.random.uniform", lambda low, high: high)
    listener = Listener(lambda topic: None)
    assert [listener._note_failure(OSError()) for _ in range(7)] == [0.5, 1, 2, 4, 8, 10, 10]
    listener._note_success()
    assert listener._note_failure(OSError()) == 0.5


def test_one_that_is_not_answered_is_replaced(monkeypatch, caplog):
    monkeypatch.setattr("chainsched.runtime.process.listener.ANSWER_SECONDS", 0.1)
    may_end, listening = threading.Event(), []

    def listen(listener):
        listening.append(listener)
        listener._asked_at = time.monotonic()
        if len(listening) == 1:
            may_end.wait(20)
        else:
            listener._asked_at = None
            listener._note_success()
            listener.stop()

    monkeypatch.setattr(Listener, "_listen", listen)
    first = Listener(lambda topic: None)
    with caplog.at_level(logging.INFO, "chainsched"):
        first.start()
        second = wait_until(lambda: (other := first.renewed()) is not first and other)
        wait_until(lambda: not second._thread.is_alive())
        assert second.renewed() is second
        may_end.set()
        wait_until(lambda: not first._thread.is_alive())
    assert caplog.messages == [
        "Listener is not connected; loops wait for their intervals: the server does not reply",
        "Listener is connected again.",
    ]
