"""A child, as far as it can be tried without being one."""

import signal
import socket
import threading

import pytest

from chainsched.runtime.child import Child, Habits, Interrupted
from chainsched.runtime.wire import Channel, Decoder, encode, pack_claim
from tests.runtime.claims import claim


class Alarm(Exception):
    """What a job's own alarm raises, wherever it happens to be."""


class AlarmedSocket:
    def sendall(self, _data):
        raise Alarm


def test_an_alarm_that_strikes_while_progress_is_sent_holds_no_interruption_up():
    child = Child(AlarmedSocket(), Habits())
    child._running[1] = threading.get_ident()
    with pytest.raises(Alarm):
        child.report(1, {"done": 1})
    with pytest.raises(Interrupted):
        child._on_sigterm(signal.SIGTERM, None)


@pytest.fixture
def wired():
    """A child that does not run, and its supervisor's end of the wire."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Child(theirs, Habits()), Channel(ours)


def test_a_job_that_waits_and_is_to_stop_is_not_begun_any_more(wired):
    child, supervisor = wired
    (given,) = Decoder().feed(encode({"run": [pack_claim(claim(number)) for number in (1, 2, 3)]}))
    child._hear(given)
    child._hear({"stop": 2})
    assert supervisor.receive() == ([{"returned": [2]}], True)
    assert [item.execution_id for item in child._inbox] == [1, 3]
