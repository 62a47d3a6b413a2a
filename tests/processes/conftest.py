"""What tests with real processes share."""

import signal

import pytest

from tests.processes.command import start
from tests.processes.tree import descendants, send_all


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
