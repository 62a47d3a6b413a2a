"""The process that bears children, without a supervisor around it."""

import errno
import os
import select
import socket
import subprocess
import sys

import pytest

from chainsched.runtime.brood import Brood
from chainsched.runtime.nursery import Nursery
from chainsched.runtime.roster import Child

PATIENCE = 30

real_fork = os.fork


@pytest.fixture
def failures(monkeypatch):
    """Let the forks fail whose turn is in the list, counted from the nursery's own."""
    failing: list[int] = []
    forks: list[None] = []

    def fork():
        forks.append(None)
        if len(forks) in failing:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return real_fork()

    monkeypatch.setattr(os, "fork", fork)
    return failing


def test_children_are_born_as_soon_as_there_is_room_for_them(failures, request):
    failures += [2, 3]
    nursery = Nursery(lambda end: end.recv(1))
    request.addfinalizer(nursery.close)
    ours = bear(nursery)
    messages, is_there = hear(nursery)
    assert [list(message) for message in messages] == [["born"]]
    assert is_there
    ours.close()
    (died,), _ = hear(nursery)
    assert died == {"died": messages[0]["born"], "status": 0}


def test_a_child_that_has_no_group_yet_is_killed():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    child = Child(channel=None, pid=process.pid)
    Brood(None, None, None).kill(child)
    assert process.wait(PATIENCE) < 0
    process.stdin.close()


def bear(nursery):
    ours, theirs = socket.socketpair()
    nursery.bear(theirs)
    return ours


def hear(nursery):
    ready, _, _ = select.select([nursery.channel.socket], [], [], PATIENCE)
    assert ready, "the nursery says nothing"
    return nursery.channel.receive()
