"""A child, as far as it can be tried without being one."""

import json
import math
import signal
import socket
import threading
import time

import pytest

from chainsched.runtime.workers.child_main import ChildLimits, ChildProcess, Interrupted
from chainsched.runtime.workers.protocol import Channel, pack_claim
from chainsched.runtime.workers.start_tokens import StartTokenReader
from tests.runtime.workers.claims import claim


class Alarm(Exception):
    """Raised by a timer signal of a job, at any point of its code."""


class AlarmedSocket:
    def sendall(self, _data):
        raise Alarm


def test_an_alarm_that_strikes_while_progress_is_sent_holds_no_interruption_up():
    child = ChildProcess(AlarmedSocket(), None, ChildLimits())
    child._running[1] = threading.get_ident()
    with pytest.raises(Alarm):
        child.report(1, {"done": 1})
    with pytest.raises(Interrupted):
        child._on_sigterm(signal.SIGTERM, None)


@pytest.fixture
def wired(tokens):
    """A child that does not run, and its supervisor's end of the socket."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ChildProcess(theirs, StartTokenReader(tokens.descriptor), ChildLimits()), Channel(ours)


def give(child, tokens, *numbers, until=math.inf):
    tokens.grant(len(numbers), until=until)
    packed = json.loads(json.dumps([pack_claim(claim(number)) for number in numbers], default=str))
    child._receive({"run": packed, "round": tokens.round})


def test_a_job_that_was_taken_back_is_not_begun(wired, tokens):
    child, supervisor = wired
    give(child, tokens, 1, 2, 3)
    assert child._next({}).execution_id == 1
    assert tokens.revoke() == 2
    give(child, tokens, 4, 2)
    assert child._next({"finished": 1}).execution_id == 4
    assert tokens.revoke() == 1
    child._receive({"end": True})
    assert child._next({"finished": 4}) is None
    messages = [{"began": 1}, {"finished": 1, "began": 4}, {"finished": 4}, {"retiring": True}]
    assert supervisor.receive() == (messages, True)


def test_a_child_answers_when_it_is_asked_whether_it_listens(wired):
    child, supervisor = wired
    child._receive({"answer": True})
    assert supervisor.receive() == ([{"answered": True}], True)


def test_a_job_whose_time_is_over_is_handed_back(wired, tokens):
    child, supervisor = wired
    give(child, tokens, 1, 2, until=time.monotonic())
    give(child, tokens, 3)
    assert child._next({}).execution_id == 3
    assert supervisor.receive() == ([{"declined": 1}, {"declined": 2}, {"began": 3}], True)
    assert tokens.revoke() == 0
