"""The commands in a project without django.contrib.admin, which needs processes of its own."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# How long a command may take; one that hangs takes for ever.
PATIENCE = 50


def test_every_command_works_without_the_admin(tmp_path):
    """With a template engine, so that Django imports the template tags. The test of the wheel also runs without one."""
    environment = {**os.environ, "HEADLESS_DATABASE": str(tmp_path / "db.sqlite3"), "HEADLESS_TEMPLATES": "yes"}
    for command in ("migrate", "every_command"):
        done = subprocess.run(
            (sys.executable, "-m", "tests.headless.manage", command),
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    assert "Every command works." in done.stdout
