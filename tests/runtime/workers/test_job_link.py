"""The link of a job to its supervisor: progress is sent, but not each time."""

import threading

import pytest

from chainsched.runtime.workers.job_link import ChildJobLink
from tests.waiting import wait_until

PATIENCE = 20


@pytest.fixture
def sent():
    return []


@pytest.fixture
def job_link(sent):
    return ChildJobLink(is_stopped=lambda: False, send=sent.append)


def test_progress_is_passed_on_after_a_while_however_quickly_it_came(job_link, sent, monkeypatch):
    # However long the reports take, no while is over before the last of them.
    monkeypatch.setattr("chainsched.runtime.workers.job_link.PROGRESS_INTERVAL", 3600)
    are_reported, waits = threading.Event(), []

    class Timer(threading.Timer):
        def __init__(self, seconds, send):
            waits.append(seconds)
            super().__init__(0, lambda: are_reported.wait(PATIENCE) and send())

    monkeypatch.setattr(threading, "Timer", Timer)
    for done in (1, 2, 3):
        job_link.report({"done": done})
    assert sent == [{"done": 1}]
    assert len(waits) == 1
    assert 0 < waits[0] <= 3600
    are_reported.set()
    wait_until(lambda: len(sent) == 2)
    assert sent == [{"done": 1}, {"done": 3}]
    assert job_link.close() is None


def test_what_was_not_passed_on_before_the_end_is_left_to_the_result(job_link, sent, monkeypatch):
    monkeypatch.setattr("chainsched.runtime.workers.job_link.PROGRESS_INTERVAL", 3600)
    for done in (1, 2):
        job_link.report({"done": done})
    assert job_link.close() == {"done": 2}
    assert sent == [{"done": 1}]
