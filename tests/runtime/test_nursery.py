"""The process that bears children, without a supervisor around it."""

import json
import os
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


def test_a_child_that_has_no_group_yet_is_killed():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    child = Child(channel=None, pid=process.pid)
    Brood(None, None, None).kill(child)
    assert process.wait(PATIENCE) < 0
    process.stdin.close()
