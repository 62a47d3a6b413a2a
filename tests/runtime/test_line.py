"""What connects a job with its supervisor: progress is passed on, but not each time."""

import pytest

from chainsched.runtime.line import ChildLine
from tests.waiting import wait_until


@pytest.fixture
def told():
    return []


@pytest.fixture
def line(told):
    return ChildLine(is_stopped=lambda: False, tell=told.append)


def test_progress_is_passed_on_after_a_while_however_quickly_it_came(line, told, monkeypatch):
    monkeypatch.setattr("chainsched.runtime.line.PROGRESS_INTERVAL", 0.2)
    for done in (1, 2, 3):
        line.report({"done": done})
    wait_until(lambda: len(told) == 2)
    assert told == [{"done": 1}, {"done": 3}]
    assert line.close() is None


def test_what_was_not_passed_on_before_the_end_is_left_to_the_result(line, told, monkeypatch):
    monkeypatch.setattr("chainsched.runtime.line.PROGRESS_INTERVAL", 3600)
    for done in (1, 2):
        line.report({"done": done})
    assert line.close() == {"done": 2}
    assert told == [{"done": 1}]
