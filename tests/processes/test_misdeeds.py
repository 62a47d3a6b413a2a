"""Jobs that misbehave, in real children of a real worker: each ends as a failure that can be read."""

import re
import uuid

import pytest

from chainsched.domain.states import ExecutionState
from chainsched.models import DeadLetter, Manifest, ManifestGroup, Metadata
from chaos import processes
from chaos.rows import is_quiet
from tests.processes.command import stop
from tests.processes.jobs import running
from tests.testapp import misdeeds, workflows
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

TIMEOUT = {"timeout": 1}
# Inherited by all processes below the one that is started with it.
MARK = "CHAINSCHED_TEST_MARK"

# The workflow, the type of its failure, and words of its reason.
MISDEEDS = [
    (misdeeds.exit_without_a_word, "killed", "exit code 0, without a result"),
    (misdeeds.exit_with_a_code, "killed", "exit code 3, without a result"),
    (misdeeds.leave, "SystemExit", ""),
    (misdeeds.crash, "killed", "killed by SIGSEGV"),
    (misdeeds.abort, "killed", "killed by SIGABRT"),
    (misdeeds.kill_itself, "killed", "killed by SIGKILL, possibly because memory ran out"),
    (misdeeds.kill_itself_by_number, "killed", "killed by signal 39"),
    (misdeeds.term_itself, "Interrupted", "received SIGTERM"),
    (misdeeds.run_out_of_memory, "MemoryError", ""),
    (misdeeds.hoard, "MemoryError", ""),
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
def test_each_misdeed_ends_in_a_dead_letter_with_its_reason(launch, threads):
    chosen = MISDEEDS if threads == 1 else [row for row in MISDEEDS if _is_fit_for_threads(row)]
    # Jobs that share a process share its fate: no misdeed is done beside another, and its innocent neighbours, which
    # may be killed with it, are retried.
    ManifestGroup.objects.create(name="misdeeds", max_active_jobs=None if threads == 1 else 1)
    retries = 1 if threads == 1 else 3
    guilty = {workflow.__name__ for workflow, _, _ in chosen}
    innocent = {f"innocent-{number}" for number in range(20)}
    for workflow, _, _ in chosen:
        name = workflow.__name__
        options = {"max_retries": 1, **(TIMEOUT if "timeout" in dict(_expected())[name] else {})}
        Manifest.objects.schedule(workflow, name, None, None, group="misdeeds", **options).trigger()
    for name in innocent:
        Manifest.objects.schedule(workflows.ping, name, None, None, max_retries=retries).trigger()
    settings, mark = {"KILL_GRACE": 1, "RETRY_DELAY": 1}, {MARK: uuid.uuid4().hex}
    arguments = ("--processes", "2", "--threads", str(threads))
    process = launch("run_scheduler", *arguments, settings=settings, environment=mark)
    wait_until(lambda: _given_up() >= guilty and _completed() >= innocent, timeout=300)
    code, output = stop(process)
    assert code == 0, output

    assert _given_up() == guilty
    assert _completed() == innocent
    for workflow, failure_type, words in chosen:
        attempts = Metadata.objects.filter(manifest_external_id=workflow.__name__)
        told = [(execution.failure_type, execution.failure_reason) for execution in attempts]
        assert [kind for kind, _ in told] == [failure_type], (workflow.__name__, told)
        assert re.search(words, told[0][1]), (workflow.__name__, told)
    assert _daemons(mark[MARK]) == []


def _is_fit_for_threads(row) -> bool:
    """What kills a whole process, or takes its memory, hits all threads, and signals are for the main one."""
    workflow, failure_type, _ = row
    is_alone = workflow in (misdeeds.ignore_everything, misdeeds.hoard)
    return failure_type not in ("killed", "Interrupted") and not is_alone


def _expected():
    return [(workflow.__name__, failure_type) for workflow, failure_type, _ in MISDEEDS]


def _given_up() -> set[str]:
    return set(DeadLetter.objects.awaiting().values_list("manifest__external_id", flat=True))


def _completed() -> set[str]:
    completed = Metadata.objects.filter(state=ExecutionState.COMPLETED)
    return set(completed.values_list("manifest_external_id", flat=True))


def _daemons(mark: str) -> list[str]:
    """What the misdeed left behind in a process with this mark."""
    commands = [processes.command_of(pid) for pid in processes.carrying(MARK, mark)]
    return [command for command in commands if "chainsched-daemon" in command]


def test_a_job_that_is_killed_each_time_uses_its_attempts_and_no_others(launch):
    Manifest.objects.schedule(misdeeds.kill_itself, "greedy", None, None, max_retries=3).trigger()
    for number in range(40):
        Manifest.objects.schedule(misdeeds.stay, f"innocent-{number}", 0.1, None, max_retries=1).trigger()
    process = launch("run_scheduler", "--processes", "2", settings={"RETRY_DELAY": 1})
    wait_until(lambda: _given_up() == {"greedy"} and len(_completed()) == 40)
    code, output = stop(process)
    assert code == 0, output
    attempts = Metadata.objects.filter(manifest_external_id="greedy").order_by("id")
    assert [(row.attempt, row.failure_type) for row in attempts] == [(number, "killed") for number in (1, 2, 3)]
    assert all("possibly because memory ran out" in row.failure_reason for row in attempts)
    assert DeadLetter.objects.get().execution == attempts[2]
    assert Metadata.objects.filter(state=ExecutionState.COMPLETED).count() == 40


# When a job has come to its end: around its timeout, the interruption and the kill, which come half a grace apart.
GRACE = 1
MOMENTS = [round(turn + step * 0.005, 3) for turn in (1, 1 + GRACE / 2, 1 + GRACE) for step in range(-8, 9)]


def test_a_job_that_ends_as_its_time_is_up_has_one_outcome(launch):
    for moment in MOMENTS:
        name = f"at-{moment}"
        Manifest.objects.schedule(misdeeds.stay, name, moment, None, group="racers", timeout=1, max_retries=1)
        Manifest.objects.schedule_dependent(workflows.ping, f"after-{name}", None, depends_on=name)
        Manifest.objects.get(external_id=name).trigger()
    process = launch("run_scheduler", "--processes", "6", settings={"KILL_GRACE": GRACE})
    racers = Metadata.objects.filter(manifest_external_id__startswith="at-")
    wait_until(lambda: racers.filter(ended_at__isnull=False).count() == len(MOMENTS), timeout=300)
    wait_until(is_quiet)
    code, output = stop(process)
    assert code == 0, output
    assert "too late" not in output
    assert racers.count() == len(MOMENTS)
    came_through = {row.manifest_external_id for row in racers if row.state == ExecutionState.COMPLETED}
    for row in racers:
        is_through = row.manifest_external_id in came_through
        assert (row.output, row.failure_type) == (("stayed", "") if is_through else (None, "timeout"))
    after = Metadata.objects.filter(manifest_external_id__startswith="after-at-")
    assert {row.manifest_external_id.removeprefix("after-") for row in after} == came_through
    assert after.count() == len(came_through)
    given_up = {letter.execution.manifest_external_id for letter in DeadLetter.objects.select_related("execution")}
    assert given_up == {row.manifest_external_id for row in racers} - came_through
    assert came_through
    assert given_up


def test_a_running_job_is_told_that_it_was_cancelled_and_shows_its_progress(launch):
    manifest = Manifest.objects.schedule(misdeeds.stop_when_told, "long", None, None)
    manifest.trigger()
    process = launch("run_scheduler", "--processes", "1")
    wait_until(lambda: Metadata.objects.in_progress().filter(progress__done__gt=1).exists())
    assert Metadata.objects.get().started_at is not None
    assert manifest.cancel().running == 1
    wait_until(lambda: not Metadata.objects.active().exists())
    code, output = stop(process)
    assert code == 0, output
    execution = Metadata.objects.get()
    assert execution.state == ExecutionState.CANCELLED
    assert execution.progress["message"] == "counting"
    assert not DeadLetter.objects.exists()


def test_a_job_that_does_not_listen_is_cancelled_by_force(launch):
    manifest = Manifest.objects.schedule(misdeeds.ignore_everything, "deaf", None, None)
    manifest.trigger()
    process = launch("run_scheduler", "--processes", "1", settings={"KILL_GRACE": 1})
    wait_until(lambda: running() == 1)
    manifest.cancel()
    wait_until(lambda: not Metadata.objects.active().exists())
    code, output = stop(process)
    assert code == 0, output
    assert Metadata.objects.get().state == ExecutionState.CANCELLED
