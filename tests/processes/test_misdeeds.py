"""Jobs that misbehave, in real children of a real worker: each ends as a failure that can be read."""

import os
import re
from pathlib import Path

import pytest

from chainsched.domain.states import ExecutionState
from chainsched.models import DeadLetter, Manifest, Metadata
from tests.processes.command import start, stop
from tests.testapp import misdeeds, workflows
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

TIMEOUT = {"timeout": 1}

# The workflow, the type of its failure, and words of its reason.
MISDEEDS = [
    (misdeeds.exit_without_a_word, "killed", "exit code 0, without a result"),
    (misdeeds.exit_with_a_code, "killed", "exit code 3, without a result"),
    (misdeeds.leave, "SystemExit", ""),
    (misdeeds.crash, "killed", "killed by SIGSEGV"),
    (misdeeds.abort, "killed", "killed by SIGABRT"),
    (misdeeds.kill_itself, "killed", "killed by SIGKILL, possibly because memory ran out"),
    (misdeeds.term_itself, "Interrupted", "received SIGTERM"),
    (misdeeds.run_out_of_memory, "MemoryError", ""),
    (misdeeds.oversleep, "timeout", "longer than its timeout of 1 s"),
    (misdeeds.spin, "timeout", "longer than its timeout of 1 s"),
    (misdeeds.ignore_everything, "timeout", "timeout of 1 s and was killed"),
    (misdeeds.block_in_c, "timeout", "timeout of 1 s and was killed"),
    (misdeeds.oversleep_async, "timeout", "longer than its timeout of 1 s"),
    (misdeeds.interrupt_from_the_keyboard, "KeyboardInterrupt", ""),
    (misdeeds.close_everything, "killed", "The process that ran it"),
    (misdeeds.leave_a_daemon, "killed", "exit code 1, without a result"),
    (misdeeds.return_nonsense, "bad_output", "return_nonsense"),
    (misdeeds.return_no_number, "bad_output", "return_no_number"),
    (misdeeds.return_too_much, "bad_output", "return_too_much"),
    (misdeeds.raise_nul_bytes, "ValueError", "a"),
]


@pytest.mark.parametrize("threads", [1, 3])
def test_each_misdeed_ends_in_a_dead_letter_with_its_reason(threads):
    chosen = MISDEEDS if threads == 1 else [row for row in MISDEEDS if _is_fit_for_threads(row)]
    for workflow, _, _ in chosen:
        name = workflow.__name__
        options = {"max_retries": 1, **(TIMEOUT if "timeout" in dict(_expected())[name] else {})}
        Manifest.objects.schedule(workflow, name, None, None, group="misdeeds", **options).trigger()
    for number in range(20):
        # Jobs that share a process share its fate: one that is killed beside another is retried.
        retries = 1 if threads == 1 else 3
        Manifest.objects.schedule(workflows.ping, f"innocent-{number}", None, None, max_retries=retries).trigger()
    process = start("run_scheduler", "--processes", "2", "--threads", str(threads), settings={"KILL_GRACE": 1})
    try:
        wait_until(lambda: not Metadata.objects.active().exists() and _ended() >= len(chosen) + 20)
    finally:
        code, output = stop(process)
    assert code == 0, output

    found = {
        letter.execution.manifest_external_id: letter.execution
        for letter in DeadLetter.objects.awaiting().select_related("execution")
    }
    assert set(found) == {workflow.__name__ for workflow, _, _ in chosen}
    for workflow, failure_type, words in chosen:
        execution = found[workflow.__name__]
        assert execution.failure_type == failure_type, (workflow.__name__, execution.failure_reason)
        assert re.search(words, execution.failure_reason), (workflow.__name__, execution.failure_reason)
    assert _daemons() == []


def _is_fit_for_threads(row) -> bool:
    """What kills a whole process hits all threads, and signals are for the main one."""
    workflow, failure_type, _ = row
    return failure_type not in ("killed", "Interrupted") and workflow is not misdeeds.ignore_everything


def _expected():
    return [(workflow.__name__, failure_type) for workflow, failure_type, _ in MISDEEDS]


def _ended():
    return Metadata.objects.filter(ended_at__isnull=False).count()


def _daemons() -> list[str]:
    """Processes that the misdeed left behind."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"chainsched-daemon" in command:
                found.append(command.decode())
    return found


def test_a_running_job_is_told_that_it_was_cancelled_and_shows_its_progress():
    manifest = Manifest.objects.schedule(misdeeds.stop_when_told, "long", None, None)
    manifest.trigger()
    process = start("run_scheduler", "--processes", "1")
    try:
        wait_until(lambda: Metadata.objects.in_progress().filter(progress__done__gt=1).exists())
        assert Metadata.objects.get().started_at is not None
        assert manifest.cancel().running == 1
        wait_until(lambda: not Metadata.objects.active().exists())
    finally:
        code, output = stop(process)
    assert code == 0, output
    execution = Metadata.objects.get()
    assert execution.state == ExecutionState.CANCELLED
    assert execution.progress["message"] == "counting"
    assert not DeadLetter.objects.exists()


def test_a_job_that_does_not_listen_is_cancelled_by_force():
    manifest = Manifest.objects.schedule(misdeeds.ignore_everything, "deaf", None, None)
    manifest.trigger()
    process = start("run_scheduler", "--processes", "1", settings={"KILL_GRACE": 1})
    try:
        wait_until(lambda: Metadata.objects.in_progress().filter(started_at__isnull=False).exists())
        manifest.cancel()
        wait_until(lambda: not Metadata.objects.active().exists())
    finally:
        code, output = stop(process)
    assert code == 0, output
    assert Metadata.objects.get().state == ExecutionState.CANCELLED
