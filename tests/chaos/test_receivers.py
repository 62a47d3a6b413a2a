"""The receivers of a chaos run: they write what they hear, and do not return while they are blocked."""

import os
import threading
from types import SimpleNamespace

import pytest

from chaos import receivers
from chaos.receivers import Heard
from tests.waiting import wait_until

PATIENCE = 20


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv(receivers.FILE, str(tmp_path / "signals.jsonl"))
    return tmp_path / "signals.jsonl"


def test_what_is_heard_is_written_down(file):
    assert receivers.read(file) == []
    receivers._receiver("execution_ended")(execution=SimpleNamespace(pk=5), signal=None)
    receivers._receiver("dead_letter_created")(dead_letter=SimpleNamespace(pk=6), signal=None)
    assert receivers.read(file) == [
        Heard("execution_ended", 5, os.getpid()),
        Heard("dead_letter_created", 6, os.getpid()),
    ]


def test_a_receiver_returns_when_it_is_no_longer_blocked(file):
    receivers.blocker(file).touch()
    receive = receivers._receiver("execution_ended")
    thread = threading.Thread(target=receive, kwargs={"execution": SimpleNamespace(pk=5)}, daemon=True)
    thread.start()
    wait_until(lambda: receivers.read(file))
    assert thread.is_alive()
    receivers.blocker(file).unlink()
    thread.join(PATIENCE)
    assert not thread.is_alive()
