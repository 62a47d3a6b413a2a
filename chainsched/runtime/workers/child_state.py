"""The supervisor's record of each child and its jobs, and the outcomes that follow from results and exits."""

from __future__ import annotations

import itertools
import signal
import time
from dataclasses import dataclass, field, replace

from chainsched.domain import outcomes
from chainsched.domain.outcomes import FailureType, Outcome
from chainsched.domain.run_context import Claim
from chainsched.domain.states import ExecutionState
from chainsched.runtime.workers.protocol import Channel
from chainsched.runtime.workers.reports import Reports
from chainsched.runtime.workers.start_tokens import StartTokens

# Jobs that wait in a child behind a job that runs longer than this go to another child.
STUCK_SECONDS = 1.0
# A child that has jobs, begins none and sends nothing for this long is frozen, as under a debugger.
ANSWER_SECONDS = 20.0
# A child that has lived for this long started properly.
PROOF_SECONDS = 1.0


@dataclass(slots=True)
class Job:
    """A claim, and its progress in a child."""

    item: Claim
    claimed_at: float
    given_at: float | None = None
    began_at: float | None = None
    stop_asked_at: float | None = None
    is_interrupted: bool = False
    timed_out: bool = False

    @property
    def id(self) -> int:
        return self.item.execution_id

    @property
    def delay(self) -> float | None:
        """The seconds from its claim to its start, if it has begun."""
        return None if self.began_at is None else self.began_at - self.claimed_at

    def seconds_since_stop(self, now: float) -> float:
        """The seconds since it was asked to stop; 0 if it was not."""
        return 0.0 if self.stop_asked_at is None else now - self.stop_asked_at


@dataclass(slots=True, eq=False)
class ChildState:
    """A child process, as its supervisor knows it."""

    channel: Channel
    start_tokens: StartTokens
    reports: Reports
    pid: int | None = None
    jobs: dict[int, Job] = field(default_factory=dict)
    is_retiring: bool = False
    is_reply_awaited: bool = False
    is_unregistered: bool = False
    has_worked: bool = False
    last_message_at: float = field(default_factory=time.monotonic)
    started_at: float = 0.0
    has_disconnected: bool = False
    sent_garbled: bool = False
    was_killed_for: int | None = None
    is_ended_early: bool = False
    is_killed: bool = False
    # When to look for reports without being woken by them; None while they wake, or none are expected.
    look_at: float | None = None
    is_watched: bool = False

    @property
    def is_ready(self) -> bool:
        """Whether it has started and takes jobs."""
        return self.pid is not None and not self.is_retiring

    def is_proven(self, now: float) -> bool:
        """Whether it takes jobs and is known to work: it has begun a job, or has lived for a moment."""
        return self.is_ready and (self.has_worked or now - self.started_at >= PROOF_SECONDS)

    @property
    def begun(self) -> list[Job]:
        """The running jobs. Jobs begin in the order of assignment, so these come first; later ones are not read."""
        return list(itertools.takewhile(lambda job: job.began_at is not None, self.jobs.values()))

    @property
    def unbegun(self) -> list[Job]:
        """The jobs that it has not reported as begun, in the order of assignment."""
        return [job for job in self.jobs.values() if job.began_at is None]

    def take_back(self) -> list[Job]:
        """Take back the jobs that it has not begun, so that it cannot begin them; in the order of assignment."""
        number = self.start_tokens.revoke()
        taken = self.unbegun[-number:] if number else []
        for job in taken:
            del self.jobs[job.id]
        return taken


def is_stuck(child: ChildState, now: float) -> bool:
    """Whether a child runs jobs, and all of them have been running for a while."""
    running = child.begun
    return bool(running) and all(now - (job.began_at or now) >= STUCK_SECONDS for job in running)


def is_kept_waiting(child: ChildState, now: float) -> bool:
    """Whether a job has waited in a child for longer than it should."""
    return any(now - (job.given_at or now) >= STUCK_SECONDS for job in child.unbegun)


def is_unresponsive(child: ChildState, now: float) -> bool:
    """Whether a child has jobs and neither begins one nor sends a message."""
    is_overdue = bool(child.jobs) and not child.begun and not child.is_killed
    return is_overdue and now - child.last_message_at >= ANSWER_SECONDS


def outcome_of_exit(job: Job, child: ChildState, status: int) -> Outcome:
    """The outcome of a job without a result, from the way in which its process ended."""
    if job.timed_out:
        return outcomes.failed(FailureType.TIMEOUT, f"{_overrun(job)} and was killed.")
    if job.stop_asked_at is not None:
        return Outcome(ExecutionState.CANCELLED)
    if child.is_ended_early:
        return outcomes.failed(FailureType.LOST, "The worker was stopped before the job had finished.")
    if child.was_killed_for not in (None, job.id):
        return outcomes.failed(FailureType.LOST, "The process was killed because of another job that ran in it.")
    return outcomes.failed(FailureType.KILLED, _end_in_words(child, status))


def _end_in_words(child: ChildState, status: int) -> str:
    if child.sent_garbled:
        return "The process that ran it sent a malformed message and was killed. Does the job change Python itself?"
    if status < 0:
        hint = ", possibly because memory ran out" if -status == signal.SIGKILL else ""
        return f"The process that ran it was killed by {_name_of(-status)}{hint}."
    return f"The process that ran it ended with exit code {status}, without a result."


def outcome_of_result(job: Job, outcome: Outcome) -> Outcome:
    """The outcome of a job with a result: one that failed after its timeout failed because of it."""
    if not job.timed_out or outcome.state is not ExecutionState.FAILED:
        return outcome
    timeout = outcomes.failed(FailureType.TIMEOUT, f"{_overrun(job)}.")
    return replace(timeout, failure_traceback=outcome.failure_traceback)


def _name_of(number: int) -> str:
    """The name of a signal; most of the real-time ones have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _overrun(job: Job) -> str:
    return f"It ran longer than its timeout of {job.item.timeout_seconds} s"
