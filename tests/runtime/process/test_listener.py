"""A listener that cannot listen or hears nothing: one line in the log when that begins and one when it ends."""

import logging
import threading
import time

import pytest

from chainsched.db import notify
from chainsched.runtime.process import listener as listening
from chainsched.runtime.process.listener import ECHO_PATIENCE_SECONDS, ECHO_SECONDS, Echo, Listener
from chainsched.runtime.support.hearing import hearing
from tests.factories import NOW
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
    lost, found = "Listener is not connected; loops poll more often", "Listener is connected again."
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
        "Listener is not connected; loops poll more often: the server does not reply",
        "Listener is connected again.",
    ]


def is_lost() -> bool:
    return hearing.is_lost


class TestItsOwnNotice:
    @pytest.fixture
    def echo(self, monkeypatch):
        monkeypatch.setattr(notify, "echo", lambda token: None)
        return Echo(token="mine")

    def test_it_is_missed_when_it_takes_too_long_and_that_is_told_once(self, echo, caplog):
        echo.send(100.0)
        assert not echo.judge(100.0 + ECHO_PATIENCE_SECONDS - 0.1)
        assert not is_lost()
        assert echo.judge(100.0 + ECHO_PATIENCE_SECONDS)
        assert is_lost()
        echo.send(200.0)
        assert not echo.judge(200.0 + ECHO_PATIENCE_SECONDS)
        (record,) = caplog.records
        assert record.levelname == "WARNING"
        assert "LISTEN" in record.message

    def test_one_that_is_heard_late_still_counts(self, echo, caplog):
        echo.send(100.0)
        echo.judge(100.0 + ECHO_PATIENCE_SECONDS)
        with caplog.at_level(logging.INFO, "chainsched"):
            echo.note_heard()
            echo.note_heard()
        assert not is_lost()
        assert caplog.messages[1:] == ["Listener hears notices again."]

    def test_it_is_sent_again_at_a_slow_pace(self, echo):
        echo.send(100.0)
        assert echo.wait_until() == 100.0 + ECHO_PATIENCE_SECONDS
        echo.note_heard()
        assert echo.wait_until() == 100.0 + ECHO_SECONDS

    def test_it_wakes_no_loop_and_those_of_others_wake_none_either(self):
        topics: list[str] = []
        heard = Listener(topics.append, echo=Echo(token="mine"))
        hearing.lose()
        heard._receive("echo:other:sender")
        assert is_lost()
        heard._receive("echo:mine:sender")
        heard._receive("manager:sender")
        assert not is_lost()
        assert topics == ["manager:sender"]

    def test_the_time_of_the_loss_stays_until_notices_are_heard(self):
        assert hearing.deaf_since(NOW) is None
        hearing.lose()
        since = hearing.deaf_since(NOW)
        assert since is not None
        hearing.lose()
        assert hearing.deaf_since(NOW + (NOW - since)) == since
        hearing.regain()
        assert hearing.deaf_since(NOW) is None


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
class TestOnPostgreSQL:
    @pytest.fixture
    def topics(self):
        return []

    @pytest.fixture
    def running(self, topics):
        heard = Listener(topics.append)
        yield heard
        heard.stop()

    def test_one_whose_notices_are_swallowed_notices_it_and_when_they_come_again(
        self, running, topics, monkeypatch, caplog
    ):
        sent: list[str] = []
        echo = notify.echo
        monkeypatch.setattr(notify, "echo", sent.append)
        monkeypatch.setattr(listening, "ECHO_PATIENCE_SECONDS", 0.0)
        monkeypatch.setattr(listening, "ECHO_SECONDS", 0.01)
        with caplog.at_level(logging.INFO, "chainsched"):
            running.start()
            wait_until(lambda: len(sent) >= 3)
            assert is_lost()
            # Once when it had connected, and once when the loops have to poll from then on.
            assert topics == ["", ""]
            monkeypatch.setattr(listening, "ECHO_PATIENCE_SECONDS", 100.0)
            monkeypatch.setattr(notify, "echo", echo)
            wait_until(lambda: not is_lost())
            running.stop()
            wait_until(lambda: not running._thread.is_alive())
        told = [message.partition(",")[0].partition(";")[0] for message in caplog.messages]
        assert told == ["Listener is connected but hears no notices", "Listener hears notices again."]

    def test_one_that_hears_its_own_notice_says_nothing(self, running, monkeypatch, caplog):
        heard = threading.Event()
        monkeypatch.setattr(Echo, "note_heard", lambda echo: heard.set())
        with caplog.at_level(logging.INFO, "chainsched"):
            running.start()
            assert heard.wait(100)
        assert caplog.messages == []
