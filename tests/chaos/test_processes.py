"""The process table as the harness reads it."""

import os
import signal
import subprocess
import sys
import uuid
from types import SimpleNamespace

import pytest

from chaos import processes
from tests.waiting import wait_until

PARENT = """
import os, subprocess, sys
sleep = "import time; print(flush=True); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", sleep], stdout=subprocess.PIPE)
child.stdout.readline()  # until then the kernel may still be giving it its environment
print(os.getpid(), child.pid, flush=True)
child.wait()
"""
# A shell that has more to do than to take the place of the parent.
ABOVE = ["sh", "-c", '"$0" -c "$1"; exit 0', sys.executable, PARENT]

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="there is no /proc")  # noqa: PTH112


@pytest.fixture
def parent():
    """A process with a child, and with a parent that has no other descendants: the tests' own may have more."""
    mark = uuid.uuid4().hex
    above = subprocess.Popen(ABOVE, stdout=subprocess.PIPE, text=True, env={**os.environ, "CHAOS_MARK": mark})
    pid, child_pid = map(int, above.stdout.readline().split())
    yield SimpleNamespace(pid=pid, child_pid=child_pid, above_pid=above.pid, mark=mark, wait=above.wait)
    processes.send(signal.SIGKILL, processes.carrying("CHAOS_MARK", mark))
    above.communicate()


def test_a_family_are_all_descendants(parent):
    assert processes.family(parent.pid) == [parent.child_pid]
    assert set(processes.family(os.getpid())) >= {parent.pid, parent.child_pid}


def test_workers_are_the_children_of_a_fork_server_and_not_the_fork_server_itself(parent):
    assert processes.workers_below(parent.above_pid) == [parent.child_pid]
    assert processes.workers_below(parent.pid) == []


def test_descendants_are_also_found_by_their_environment(parent):
    assert set(processes.carrying("CHAOS_MARK", parent.mark)) == {
        parent.above_pid,
        parent.pid,
        parent.child_pid,
    }
    assert processes.carrying("CHAOS_MARK", parent.mark[:-1]) == []


def test_a_zombie_is_no_descendant(parent):
    processes.send(signal.SIGSTOP, [parent.pid])
    processes.send(signal.SIGKILL, [parent.child_pid])
    wait_until(lambda: not processes.family(parent.pid))
    processes.send(signal.SIGCONT, [parent.pid])


def test_a_signal_to_a_process_that_is_gone_is_no_error(parent):
    processes.send(signal.SIGKILL, [parent.pid])
    parent.wait()
    processes.send(signal.SIGKILL, [parent.pid])
    assert processes.command_of(parent.pid) == ""
