"""The built wheel in an empty project: four steps from nothing to recorded outputs. Then in one without the admin."""

import functools
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
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
# Counts the executions with an empty output: their processes had not loaded the admin.
COUNT = "from chainsched.models import Metadata; print('runs:', Metadata.objects.filter(output=[]).count())"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The contents of the built wheel."""
    built = tmp_path_factory.mktemp("wheel")
    call(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(built), cwd=ROOT)
    (wheel,) = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(built / "site")
    return built / "site"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_wheel_works_in_an_empty_project(site, tmp_path):
    call(sys.executable, "-m", "django", "startproject", "shop", cwd=tmp_path)
    project = tmp_path / "shop"
    settings = project / "shop" / "settings.py"
    settings.write_text(settings.read_text() + '\nINSTALLED_APPS += ["chainsched", "shop"]\n')
    (project / "shop" / "schedules.py").write_text(SCHEDULES)
    environment = environment_of(project, site)
    manage = (sys.executable, "manage.py")
    call(*manage, "migrate", cwd=project, env=environment)
    show = functools.partial(call, *manage, "shell", "-c", SHOW, cwd=project, env=environment)
    schedule_until(lambda: show().count("hello world") >= 2, manage, cwd=project, env=environment)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("templates", ["", "yes"], ids=["no template engine", "a template engine"])
def test_the_wheel_works_in_a_project_without_the_admin(site, tmp_path, templates):
    project = tmp_path / "project"
    shutil.copytree(ROOT / "tests" / "headless", project / "tests" / "headless")
    (project / "tests" / "__init__.py").touch()
    environment = environment_of(project, site)
    environment |= {"HEADLESS_DATABASE": str(tmp_path / "db.sqlite3"), "HEADLESS_TEMPLATES": templates}
    # Not Django's manage.py: this one also fails if a command has loaded the admin.
    manage = (sys.executable, "-m", "tests.headless.manage")
    for command in (["migrate"], ["check", "--deploy", "--database", "default"], ["chainsched", "seed"]):
        call(*manage, *command, cwd=project, env=environment)
    count = functools.partial(call, *manage, "shell", "-c", COUNT, cwd=project, env=environment)
    schedule_until(lambda: "runs: 1" in count(), manage, cwd=project, env=environment)
    call(*manage, "run_worker", "--for", "1", "--processes", "1", cwd=project, env=environment)
    assert "Every command works." in call(*manage, "every_command", cwd=project, env=environment)


def environment_of(project: Path, site: Path) -> dict[str, str]:
    """The variables with which Python finds the project and the wheel, and not the source tree."""
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{project}", "PYTHONSAFEPATH": "1"}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    where = call(sys.executable, "-c", "import chainsched; print(chainsched.__file__)", cwd=project, env=environment)
    assert str(site) in where, "the wheel is tested, not the source tree"
    return environment


def schedule_until(is_done: Callable[[], bool], manage: Sequence[str], *, cwd: Path, env: dict[str, str]) -> None:
    """Run the scheduler with its children until this is so; it must live until then and end with code 0."""
    log = cwd / "log"
    with log.open("w") as output:
        scheduler = subprocess.Popen(
            (*manage, "run_scheduler"), cwd=cwd, env=env, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        wait_until(lambda: is_done() or scheduler.poll() is not None)
        assert scheduler.poll() is None, log.read_text()
    finally:
        scheduler.terminate()
        code = scheduler.wait(PATIENCE)
    assert code == 0, log.read_text()


def call(*command: str, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout
