"""What a supervisor knows about its children and the jobs in their hands, and how it judges their ends."""

from __future__ import annotations

import itertools
import signal
import time
from dataclasses import dataclass, field, replace

from chainsched.domain import outcomes
from chainsched.domain.outcomes import FailureType, Outcome
from chainsched.domain.states import ExecutionState
from chainsched.flow.run.claim import Claim
from chainsched.runtime.workers.protocol import Channel
from chainsched.runtime.workers.start_tokens import StartTokens

# What waits behind a job that takes longer than this is given to somebody else.
RECALL_SECONDS = 1.0
# A child that has not begun what it was given after this long stands still, as under a debugger.
ANSWER_SECONDS = 20.0
# A child that lives for so long was not born to end at once.
PROOF_SECONDS = 1.0


@dataclass(slots=True)
class Job:
    """A claim in the hands of a child."""

    item: Claim
    claimed_at: float
    given_at: float | None = None
    began_at: float | None = None
    is_noted: bool = False
    stop_asked_at: float | None = None
    is_interrupted: bool = False
    timed_out: bool = False

    @property
    def id(self) -> int:
        return self.item.execution_id

    @property
    def delay(self) -> float | None:
        """How long after its claim it began, if it did."""
        return None if self.began_at is None else self.began_at - self.claimed_at

    def overstayed(self, now: float) -> float:
        """For how long it has been told to stop."""
        return 0.0 if self.stop_asked_at is None else now - self.stop_asked_at


@dataclass(slots=True, eq=False)
class ChildState:
    """A child as its supervisor sees it."""

    channel: Channel
    start_tokens: StartTokens
    pid: int | None = None
    jobs: dict[int, Job] = field(default_factory=dict)
    is_retiring: bool = False
    is_deaf: bool = False
    is_silent: bool = False
    has_worked: bool = False
    heard_at: float = field(default_factory=time.monotonic)
    born_at: float = 0.0
    has_hung_up: bool = False
    makes_no_sense: bool = False
    was_killed_for: int | None = None
    is_ended_early: bool = False
    is_condemned: bool = False

    @property
    def is_ready(self) -> bool:
        """Whether it is born, and takes work."""
        return self.pid is not None and not self.is_retiring

    def is_proven(self, now: float) -> bool:
        """Whether it takes work and has shown that it can: it has worked, or has at least lived for a moment."""
        return self.is_ready and (self.has_worked or now - self.born_at >= PROOF_SECONDS)

    @property
    def begun(self) -> list[Job]:
        """What it runs. Jobs begin in the order of giving, so these come first, and what waits is not looked at."""
        return list(itertools.takewhile(lambda job: job.began_at is not None, self.jobs.values()))

    @property
    def unbegun(self) -> list[Job]:
        """What it has not begun as far as was heard, in the order of giving."""
        return [job for job in self.jobs.values() if job.began_at is None]

    def take_back(self) -> list[Job]:
        """What it has not begun and cannot begin any more, in the order of giving; it is no longer in its hands."""
        number = self.start_tokens.revoke()
        taken = self.unbegun[-number:] if number else []
        for job in taken:
            del self.jobs[job.id]
        return taken


def is_stuck(child: ChildState, now: float) -> bool:
    """Whether everything that a child runs has been running for a while."""
    running = child.begun
    return bool(running) and all(now - (job.began_at or now) >= RECALL_SECONDS for job in running)


def is_kept_waiting(child: ChildState, now: float) -> bool:
    """Whether something waits in a child for longer than it should."""
    return any(now - (job.given_at or now) >= RECALL_SECONDS for job in child.unbegun)


def is_unresponsive(child: ChildState, now: float) -> bool:
    """Whether a child has been given work and neither begins it nor says anything."""
    is_waited_for = bool(child.jobs) and not child.begun and not child.is_condemned
    return is_waited_for and now - child.heard_at >= ANSWER_SECONDS


def death_of(job: Job, child: ChildState, status: int) -> Outcome:
    """Why a job has no result: how the process that ran it ended."""
    if job.timed_out:
        return outcomes.failed(FailureType.TIMEOUT, f"{_overrun(job)} and was killed.")
    if job.stop_asked_at is not None:
        return Outcome(ExecutionState.CANCELLED)
    if child.is_ended_early:
        return outcomes.failed(FailureType.LOST, "The worker was stopped before the job had finished.")
    if child.was_killed_for not in (None, job.id):
        return outcomes.failed(FailureType.LOST, "The process was killed because of another job that ran beside it.")
    return outcomes.failed(FailureType.KILLED, _end_in_words(child, status))


def _end_in_words(child: ChildState, status: int) -> str:
    if child.makes_no_sense:
        return "The process that ran it was ended: what it said made no sense. Does the job change Python itself?"
    if status < 0:
        hint = ", possibly because memory ran out" if -status == signal.SIGKILL else ""
        return f"The process that ran it was killed by {_name_of(-status)}{hint}."
    return f"The process that ran it ended with exit code {status}, without a result."


def blame(job: Job, outcome: Outcome) -> Outcome:
    """A job that broke off because its time was up failed for that reason, wherever it happened to be."""
    if not job.timed_out or outcome.state is not ExecutionState.FAILED:
        return outcome
    timeout = outcomes.failed(FailureType.TIMEOUT, f"{_overrun(job)}.")
    return replace(timeout, failure_traceback=outcome.failure_traceback)


def _name_of(number: int) -> str:
    """A signal for people; most of the real-time ones have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _overrun(job: Job) -> str:
    return f"It ran longer than its timeout of {job.item.timeout_seconds} s"
