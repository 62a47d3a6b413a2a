"""The process that bears children, without a supervisor around it."""

import errno
import json
import os
import selectors
import subprocess
import sys

from chainsched.runtime.brood import Brood
from chainsched.runtime.roster import Child

PATIENCE = 60


def test_children_are_born_as_soon_as_there_is_room_for_them():
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    program = [sys.executable, "-m", "tests.runtime.crowded"]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    (is_there, born), (_, died) = (json.loads(line) for line in done.stdout.splitlines())
    assert is_there
    assert list(born) == ["born"]
    assert died == {"died": born["born"], "status": 0}


def test_what_may_not_be_ended_is_left_and_ends_nobody_else():
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    program = [sys.executable, "-m", "tests.runtime.strangers"]
    with subprocess.Popen(
        program, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        assert started.wait(PATIENCE) == 0
        # Who was left behind ends now.
        started.stdin.close()
        lives = [json.loads(line) for line in started.stdout]
    assert [is_there for is_there, *_ in lives] == [True, True]
    assert [[next(iter(message)) for message in messages] for _, *messages in lives] == [["born", "died"]] * 2


def test_a_child_that_has_no_group_yet_is_killed():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        child = Child(channel=None, permits=None, pid=process.pid)
        Brood(None, None, None).kill(child)
        assert process.wait(PATIENCE) < 0


def test_children_that_there_is_no_room_for_are_asked_for_again_later(monkeypatch):
    monkeypatch.setattr("chainsched.runtime.brood.STILLBORN_PAUSE", 0)
    nursery = FullNursery()
    brood = Brood(nursery, selectors.DefaultSelector(), None)
    brood.fill(2)
    assert len(brood) == 0
    nursery.is_full = False
    brood.fill(2)
    assert len(brood) == 2
    for child in brood:
        child.channel.close()
        child.permits.close()


class FullNursery:
    is_full = True

    def bear(self, _end):
        if self.is_full:
            raise OSError(errno.EMFILE, "Too many open files")
