"""What tests with real processes share."""

import signal

import pytest

from tests.processes import ticks
from tests.processes.command import start
from tests.processes.tree import descendants, send_all


@pytest.fixture
def witness(tmp_path, monkeypatch):
    """The file in which jobs say that they run."""
    path = tmp_path / "ticks"
    path.touch()
    monkeypatch.setenv(ticks.VARIABLE, str(path))
    return path


@pytest.fixture
def launch():
    """Start commands that are stopped after the test, however it ends."""
    processes = []

    def start_one(*arguments, **options):
        processes.append(start(*arguments, **options))
        return processes[-1]

    yield start_one
    for process in processes:
        if process.poll() is None:
            send_all([process.pid, *descendants(process.pid)], signal.SIGKILL)
        process.stdout.close()
        process.wait()
