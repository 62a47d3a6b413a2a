"""The built wheel in an empty project: four steps from nothing to recorded outputs."""

import functools
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.processes.command import PATIENCE
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]

SCHEDULES = """
from chainsched import Every, schedules, workflow


@workflow
def greet(name: str) -> str:
    return f"hello {name}"


schedules.schedule(greet, "greet-world", "world", Every.seconds(5))
"""

SHOW = "from chainsched.models import Metadata; print([m.output for m in Metadata.objects.order_by('id')])"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_wheel_works_in_an_empty_project(tmp_path):
    call(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), cwd=ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    call(sys.executable, "-m", "django", "startproject", "shop", cwd=tmp_path)
    project = tmp_path / "shop"
    settings = project / "shop" / "settings.py"
    settings.write_text(settings.read_text() + '\nINSTALLED_APPS += ["chainsched", "shop"]\n')
    (project / "shop" / "schedules.py").write_text(SCHEDULES)

    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{project}", "PYTHONSAFEPATH": "1"}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    manage = (sys.executable, "manage.py")
    where = call(sys.executable, "-c", "import chainsched; print(chainsched.__file__)", cwd=project, env=environment)
    assert str(site) in where, "the wheel is tested, not the source tree"
    call(*manage, "migrate", cwd=project, env=environment)
    log = tmp_path / "log"
    with log.open("w") as said:
        scheduler = subprocess.Popen(
            (*manage, "run_scheduler"), cwd=project, env=environment, stdout=said, stderr=subprocess.STDOUT
        )
    try:
        show = functools.partial(call, *manage, "shell", "-c", SHOW, cwd=project, env=environment)
        wait_until(lambda: show().count("hello world") >= 2 or scheduler.poll() is not None)
        assert scheduler.poll() is None, log.read_text()
    finally:
        scheduler.terminate()
        code = scheduler.wait(PATIENCE)
    assert code == 0, log.read_text()


def call(*command: str, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout
