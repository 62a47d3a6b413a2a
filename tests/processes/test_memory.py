"""Memory runs out in earnest: the kernel kills who used it up, or the supervisor, and each time it is accounted for."""

import signal
from pathlib import Path

import pytest

from chainsched.domain.states import ExecutionState
from chainsched.models import DeadLetter, Manifest, Metadata
from tests.processes.command import PATIENCE, stop
from tests.processes.jobs import SHORT_LEASE, ended, running
from tests.processes.memory import memory_limit
from tests.processes.tree import descendants, is_running
from tests.testapp import misdeeds
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

MEGABYTES = 400
OUT_OF_MEMORY = ("killed", "The process that ran it was killed by SIGKILL, possibly because memory ran out.")


@pytest.fixture
def limit():
    with memory_limit(megabytes=MEGABYTES) as limit:
        yield limit


@pytest.fixture
def launch_within(limit, launch):
    """Start a scheduler with workers that has no more than this memory."""

    def start_one(*, processes, settings):
        return launch("run_scheduler", "--processes", str(processes), settings=settings, by=limit.command)

    return start_one


def test_a_job_that_uses_up_all_memory_is_killed_alone(launch_within):
    Manifest.objects.schedule(misdeeds.devour, "greedy", None, None, max_retries=2).trigger()
    for number in range(20):
        Manifest.objects.schedule(misdeeds.stay, f"innocent-{number}", 0.1, None, max_retries=1).trigger()
    process = launch_within(processes=2, settings={"RETRY_DELAY": 1})
    wait_until(lambda: DeadLetter.objects.exists() and ended() == 20)
    code, output = stop(process)
    assert code == 0, output
    assert _attempts("greedy") == [OUT_OF_MEMORY, OUT_OF_MEMORY]
    assert ended(ExecutionState.FAILED) == 2


def test_a_supervisor_that_is_killed_for_memory_loses_its_jobs_to_the_next_one(launch_within, tmp_path):
    is_served = tmp_path / "served"
    Manifest.objects.schedule(misdeeds.devour_unseen, "greedy", str(is_served), None, max_retries=2).trigger()
    first = launch_within(processes=1, settings={**SHORT_LEASE, "PROCESS_EXPIRY": 10})
    below = wait_until(lambda: _all_below(first.pid, processes=1))
    wait_until(lambda: running() == 1)
    _oom_score(first.pid).write_text("1000")
    is_served.touch()
    assert first.wait(PATIENCE) == -signal.SIGKILL
    wait_until(lambda: not any(is_running(pid) for pid in below))
    # Who has little memory is slow, and must not lose its own lease meanwhile.
    second = launch_within(processes=1, settings={**SHORT_LEASE, "PROCESS_EXPIRY": 10})
    wait_until(DeadLetter.objects.exists)
    code, output = stop(second)
    assert code == 0, output
    (lost, _), killed = _attempts("greedy")
    assert lost == "lost"
    assert killed == OUT_OF_MEMORY


def test_children_are_the_first_whom_the_kernel_kills(launch):
    process = launch("run_scheduler", "--processes", "2")
    fork_server, *children = wait_until(lambda: _all_below(process.pid, processes=2))
    own = int(_oom_score(process.pid).read_text())
    assert int(_oom_score(fork_server).read_text()) == own
    wait_until(lambda: {int(_oom_score(child).read_text()) for child in children} == {min(own + 500, 1000)})


def _all_below(pid: int, *, processes: int) -> list[int]:
    """The fork server and the children, once all of them have started."""
    below = descendants(pid)
    return below if len(below) == 1 + processes else []


def _oom_score(pid: int) -> Path:
    return Path("/proc") / str(pid) / "oom_score_adj"


def _attempts(name: str) -> list[tuple[str, str]]:
    rows = Metadata.objects.filter(manifest_external_id=name).order_by("id")
    return [(row.failure_type, row.failure_reason) for row in rows]
