"""The fork server, without a supervisor around it."""

import errno
import json
import os
import selectors
import subprocess
import sys

from chainsched.runtime.workers.child_pool import ChildPool
from chainsched.runtime.workers.child_state import ChildState

PATIENCE = 60


def test_children_are_forked_as_soon_as_the_host_has_room_for_them():
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    program = [sys.executable, "-m", "tests.runtime.workers.crowded"]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    (is_open, started), (_, exited) = (json.loads(line) for line in done.stdout.splitlines())
    assert is_open
    assert list(started) == ["started"]
    assert exited == {"exited": started["started"], "status": 0}


def test_a_process_that_may_not_be_killed_is_left_and_ends_no_other():
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    program = [sys.executable, "-m", "tests.runtime.workers.strangers"]
    with subprocess.Popen(
        program, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        assert started.wait(PATIENCE) == 0
        # The process that was left behind ends now.
        started.stdin.close()
        reports = [json.loads(line) for line in started.stdout]
    assert [is_open for is_open, *_ in reports] == [True, True]
    assert [[next(iter(message)) for message in messages] for _, *messages in reports] == [["started", "exited"]] * 2


def test_a_child_that_has_no_group_yet_is_killed():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        child = ChildState(channel=None, start_tokens=None, reports=None, pid=process.pid)
        ChildPool(None, None, None).kill(child)
        assert process.wait(PATIENCE) < 0


def test_children_that_could_not_be_forked_are_requested_again_later(monkeypatch):
    monkeypatch.setattr("chainsched.runtime.workers.child_pool.FAILED_START_PAUSE", 0)
    fork_server = FullForkServer()
    pool = ChildPool(fork_server, selectors.DefaultSelector(), None)
    pool.fill(2)
    assert len(pool) == 0
    fork_server.is_full = False
    pool.fill(2)
    assert len(pool) == 2
    for child in pool:
        child.channel.close()
        child.start_tokens.close()
        child.reports.close()


class FullForkServer:
    is_full = True

    def fork(self, _end):
        if self.is_full:
            raise OSError(errno.EMFILE, "Too many open files")
