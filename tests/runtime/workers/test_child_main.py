"""A child, as far as it can be tried without being one."""

import contextlib
import json
import math
import os
import select
import signal
import socket
import threading
import time

import pytest

from chainsched.domain import outcomes
from chainsched.runtime.workers.child_main import ChildLimits, ChildProcess, Interrupted, Result
from chainsched.runtime.workers.protocol import Channel, pack_claim, pack_outcome
from chainsched.runtime.workers.reports import ReportWriter
from chainsched.runtime.workers.start_tokens import StartTokenReader
from tests.runtime.workers.claims import claim
from tests.waiting import wait_until


class Alarm(Exception):
    """Raised by a timer signal of a job, at any point of its code."""


class AlarmedSocket:
    def sendall(self, _data):
        raise Alarm


def test_an_alarm_that_strikes_while_progress_is_sent_holds_no_interruption_up():
    child = ChildProcess(AlarmedSocket(), None, None, ChildLimits())
    child._running[1] = threading.get_ident()
    with pytest.raises(Alarm):
        child.report(1, {"done": 1})
    with pytest.raises(Interrupted):
        child._on_sigterm(signal.SIGTERM, None)


@pytest.fixture
def wired(tokens, reports):
    """A child that does not run, and its supervisor's end of the socket."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        readers = StartTokenReader(tokens.descriptor), ReportWriter(reports.write_end)
        yield ChildProcess(theirs, *readers, ChildLimits()), Channel(ours)


def give(child, tokens, *numbers, until=math.inf):
    tokens.grant(len(numbers), until=until)
    packed = json.loads(json.dumps([pack_claim(claim(number)) for number in numbers], default=str))
    child._receive({"run": packed, "round": tokens.round})


def result(execution_id, *, output=None, has_progress=False, progress=None):
    return Result(execution_id, pack_outcome(outcomes.completed(output)), progress, has_progress)


def reported(reports):
    """What was reported, without the times."""
    return [tuple(report[:3]) for report in reports.read()[0]]


def test_a_job_that_was_taken_back_is_not_begun(wired, tokens, reports):
    child, supervisor = wired
    give(child, tokens, 1, 2, 3)
    assert child._next(None).execution_id == 1
    assert tokens.revoke() == 2
    give(child, tokens, 4, 2)
    assert child._next(result(1)).execution_id == 4
    assert tokens.revoke() == 1
    child._receive({"end": True})
    assert child._next(result(4)) is None
    assert reported(reports) == [(0, None, 1), (1, None, 4)]
    assert supervisor.receive() == ([{"finished": 4, "outcome": None}, {"retiring": True}], True)


def test_a_result_after_which_nothing_begins_wakes_the_supervisor_at_once(wired, tokens, reports):
    child, supervisor = wired
    give(child, tokens, 1)
    assert child._next(None).execution_id == 1
    waiting = threading.Thread(target=child._next, args=[result(1)])
    waiting.start()
    (message,) = wait_until(lambda: supervisor.receive()[0])
    assert message == {"finished": 1, "outcome": None}
    child._receive({"end": True})
    waiting.join()


@pytest.mark.parametrize("seen", [{"output": "x" * select.PIPE_BUF}, {"has_progress": True, "progress": {"done": 1}}])
def test_what_does_not_fit_and_what_follows_progress_is_sent(wired, tokens, reports, seen):
    child, supervisor = wired
    give(child, tokens, 1, 2)
    child._next(None)
    child._next(result(1, **seen))
    assert supervisor.receive() == ([result(1, **seen).as_message()], True)
    assert reported(reports) == [(0, None, 1), (0, None, 2)]


def test_starts_and_results_are_sent_while_the_pipe_is_full(wired, tokens, reports):
    child, supervisor = wired
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(reports.write_end, bytes(select.PIPE_BUF))
    give(child, tokens, 1, 2)
    child._next(None)
    child._next(result(1))
    sent, _ = supervisor.receive()
    assert sent == [{"began": 1}, {"finished": 1, "outcome": None}, {"began": 2}]


def test_a_child_answers_when_it_is_asked_whether_it_listens(wired):
    child, supervisor = wired
    child._receive({"answer": True})
    assert supervisor.receive() == ([{"answered": True}], True)


def test_a_job_whose_time_is_over_is_handed_back(wired, tokens, reports):
    child, supervisor = wired
    give(child, tokens, 1, 2, until=time.monotonic())
    give(child, tokens, 3)
    assert child._next(None).execution_id == 3
    assert supervisor.receive() == ([{"declined": 1}, {"declined": 2}], True)
    assert reported(reports) == [(0, None, 3)]
    assert tokens.revoke() == 0
