"""A second opinion: what the rows must look like, worked out from the design in plain Python.

It shares nothing with the engine: no rules, no rows, no numbers that only grow. It keeps what happened (which runs
ended how, which of them a dependent has run for) and derives the rest from that by looking at everything, every time.
Where the engine is free to choose (which of several rows of one priority starts, how long a retry is put off within
its spread), the machine reports the choice, and the model says whether it was allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

INTERVAL, CRON, ONCE, ON_DEMAND = "interval", "cron", "once", "on_demand"
DEPENDENT, DORMANT = "dependent", "dormant_dependent"
TIMED = (INTERVAL, CRON, ONCE)
SUCCESS, FAILURE, HOPELESS, LOST, CANCELLED = "success", "failure", "hopeless", "lost", "cancelled"
# What a run's end is called where dependents look at it, and which condition of theirs it meets.
SUCCEEDED, DEAD_LETTERED = "succeeded", "dead-lettered"
ON_SUCCESS, ON_FAILURE, ON_COMPLETION = 1, 2, 3
MEETS = {
    SUCCEEDED: (ON_SUCCESS, ON_COMPLETION),
    DEAD_LETTERED: (ON_FAILURE, ON_COMPLETION),
    CANCELLED: (ON_COMPLETION,),
}
BY_A_PERSON = ("trigger", "dead_letter")
BOOST, HIGHEST = 16, 31
RETRY_DELAY, SPREAD = 60.0, 0.1
EXPIRY = timedelta(seconds=30)


@dataclass
class Group:
    name: str
    limit: int | None = None
    priority: int = 0
    is_enabled: bool = True


@dataclass
class TriggerRequest:
    at: datetime
    input: Any = None


@dataclass
class Row:
    """A queue row, or the execution that it became."""

    name: str
    source: str
    input: Any
    scheduled_for: datetime
    parent: int | None = None
    root: int | None = None
    attempt: int = 1
    not_before: datetime | None = None
    # For a retry, whose wait has a random part: between which times it lies.
    not_before_between: tuple[datetime, datetime] | None = None


@dataclass
class Run(Row):
    id: int = 0
    group: str = ""
    priority: int = 0
    process: int | None = None
    is_told_to_stop: bool = False
    # The row that it was, and whether it has done anything yet.
    row: Row | None = None
    has_acted: bool = False


@dataclass
class Outcome:
    id: int
    kind: str


@dataclass
class Job:
    """A manifest: what people said about it, what it has open, and what happened to it."""

    name: str
    kind: str
    group: str
    input: Any
    parent: str | None = None
    condition: int = 0
    period: int = 0
    once_at: datetime | None = None
    priority: int | None = None
    max_retries: int = 3
    is_enabled: bool = True
    is_retired: bool = False
    is_done: bool = False

    row: Row | None = None
    run: Run | None = None
    letter: Run | None = None
    request: TriggerRequest | None = None

    occurrence: datetime | None = None
    failures: int = 0
    outcomes: list[Outcome] = field(default_factory=list)
    last_success: datetime | None = None
    last_over: datetime | None = None
    # Of its parent's outcomes: up to which it has been queued.
    ran_for: int = 0
    # What a parent that was removed had done; a run that somebody asks for is still for that.
    left_behind: list[int] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        return self.row is not None or self.run is not None or self.letter is not None

    @property
    def has_parent(self) -> bool:
        return self.kind in (DEPENDENT, DORMANT)


class Model:
    """All jobs, groups and processes at one time."""

    def __init__(self, now: datetime, *, limit: int) -> None:
        self.now = now
        self.limit = limit
        self.jobs: dict[str, Job] = {}
        self.groups: dict[str, Group] = {}
        self.heartbeats: dict[int, datetime] = {}
        # Runs whose manifest was removed; and how every run that is over ended.
        self.orphans: dict[int, Run] = {}
        self.ended: dict[int, str] = {}
        self.roots: dict[int, int | None] = {}

    # What follows from what happened.

    def is_blocked(self, job: Job) -> bool:
        """Whether something forbids every run that nobody asked for in person."""
        if job.is_retired or job.is_done or not job.is_enabled or not self.groups[job.group].is_enabled:
            return True
        if job.kind != DEPENDENT:
            return job.kind not in TIMED
        parent = self.jobs.get(job.parent or "")
        return parent is None or not parent.is_enabled or parent.is_retired

    def matching(self, job: Job) -> list[int]:
        """The outcomes of its parent that meet its condition."""
        parent = self.jobs.get(job.parent or "")
        if job.kind != DEPENDENT or parent is None:
            return job.left_behind
        return [outcome.id for outcome in parent.outcomes if job.condition in MEETS[outcome.kind]]

    def owed(self, job: Job) -> list[int]:
        """The outcomes of its parent that it still has to run for."""
        return [id_ for id_ in self.matching(job) if id_ > job.ran_for]

    def is_behind(self, job: Job) -> bool:
        """Whether it is to run now for what its parent did."""
        may_run = not job.is_open and not self.is_blocked(job)
        return may_run and bool(self.owed(job))

    def alarm(self, job: Job) -> datetime | None:
        """When it is to be looked at; for what is due already the present stands for any time up to it."""
        if job.is_open:
            return None
        times = [job.request.at] if job.request is not None and self.groups[job.group].is_enabled else []
        if not self.is_blocked(job):
            times += [job.occurrence] if job.occurrence is not None else []
            times += [self.now] if self.is_behind(job) else []
        return min(times, default=None)

    def due(self) -> list[Job]:
        return [job for job in self.jobs.values() if (alarm := self.alarm(job)) is not None and alarm <= self.now]

    def rank(self, job: Job) -> int:
        own = self.groups[job.group].priority if job.priority is None else job.priority
        return min(own + (BOOST if job.has_parent else 0), HIGHEST)

    def active(self) -> list[Run]:
        return [*self.orphans.values(), *(job.run for job in self.jobs.values() if job.run is not None)]

    def pending(self) -> list[Run]:
        return [run for run in self.active() if run.process is None]

    def running(self, process: int | None = None) -> list[Run]:
        runs = [run for run in self.active() if run.process is not None]
        return [run for run in runs if process is None or run.process == process]

    def children(self, name: str) -> Iterator[Job]:
        return (job for job in self.jobs.values() if job.parent == name)

    def settle_alarms(self) -> None:
        """After every step: a schedule that may run goes on from now, one that may not has no next time."""
        for job in self.jobs.values():
            if job.kind not in TIMED or job.is_open or self.is_blocked(job):
                job.occurrence = None
            elif job.occurrence is None:
                job.occurrence = self._next_time(job)

    def _next_time(self, job: Job) -> datetime | None:
        if job.kind == ONCE:
            return job.once_at
        if job.kind == INTERVAL:
            return self.now if job.last_over is None else self.now + timedelta(seconds=job.period)
        midnight = self.now.replace(hour=0, minute=0, second=0, microsecond=0)
        period = timedelta(seconds=job.period)
        return midnight + ((self.now - midnight) // period + 1) * period

    # Definitions.

    def declare(self, job: Job) -> None:
        """Create a manifest."""
        self.jobs[job.name] = job
        if job.kind == DEPENDENT:
            self.link(job)

    def reschedule(self, job: Job, *, period: int | None = None, once_at: datetime | None = None) -> None:
        if (job.period, job.once_at) == (period or 0, once_at):
            return
        job.period, job.once_at = period or 0, once_at
        job.is_done, job.occurrence = False, None

    def give_parent(self, job: Job, parent: str) -> None:
        if job.parent != parent:
            job.parent = parent
            if job.kind == DEPENDENT:
                self.link(job)

    def link(self, job: Job) -> None:
        """Look at a parent for the first time: due if it succeeded since."""
        parent = self.jobs[job.parent or ""]
        newest = max(self.matching(job), default=0)
        is_ahead = parent.last_success is not None and (
            job.last_success is None or parent.last_success > job.last_success
        )
        job.ran_for = 0 if job.last_success is None or is_ahead else newest

    def retire(self, job: Job) -> None:
        if job.row is None and job.run is None:
            job.is_retired = True

    def remove(self, job: Job) -> None:
        if job.run is not None:
            self.orphans[job.run.id] = job.run
        for child in self.children(job.name):
            child.left_behind, child.parent = self.matching(child), None
        del self.jobs[job.name]

    # Wishes and decisions of people.

    def trigger(self, job: Job, *, delay: timedelta | None, input: Any) -> str:
        """The answer: the first request that waits is kept, and another for the same joins it."""
        if job.letter is not None:
            return "awaits_dead_letter"
        request = TriggerRequest(self.now + (delay or timedelta(0)), input)
        if job.request is not None and not self._asks_for_the_same(job.request, request) and job.request.at <= self.now:
            # What waits could run now: it goes first, and the new request comes after it.
            self._open_what_waits(job)
        answer = self._answer(job, request)
        if answer in ("delayed", "will_run_again", "waits_for_group"):
            if job.request is not None and not self._asks_for_the_same(job.request, request):
                return "other_request_waits"
            job.request = job.request or request
        elif answer == "already_queued":
            assert job.row is not None
            job.row.not_before, job.row.not_before_between = None, None
            if not job.is_enabled:
                job.row.source = "trigger"
        else:
            self._open(job, "trigger", self.now, input=input)
        return answer

    def _answer(self, job: Job, request: TriggerRequest) -> str:
        if request.at > self.now:
            return "delayed"
        if job.row is not None and request.input is None and job.row.input == job.input:
            return "already_queued"
        if job.is_open or (request.input is not None and self.is_behind(job)):
            return "will_run_again"
        return "queued" if self.groups[job.group].is_enabled else "waits_for_group"

    def _asks_for_the_same(self, one: TriggerRequest, other: TriggerRequest) -> bool:
        are_both_now = one.at <= self.now and other.at <= self.now
        return one.input == other.input and (one.at == other.at or are_both_now)

    def _open_what_waits(self, job: Job) -> None:
        if not job.is_open and self.groups[job.group].is_enabled:
            self._open_due(job)

    def cancel(self, job: Job) -> tuple[int, int, int]:
        """Returns how many rows, executions that had not begun, and runs were stopped."""
        job.request = None
        if job.row is not None:
            job.row = None
            self._over(job)
            return 1, 0, 0
        if job.run is None:
            return 0, 0, 0
        if job.run.process is None:
            self._end(job.run, CANCELLED)
            return 0, 1, 0
        was_told, job.run.is_told_to_stop = job.run.is_told_to_stop, True
        return 0, 0, 0 if was_told else 1

    def retry_letter(self, job: Job) -> None:
        failed, job.letter, job.failures = job.letter, None, 0
        assert failed is not None
        job.row = Row(
            job.name, "dead_letter", failed.input, failed.scheduled_for, parent=failed.parent, root=failed.root
        )

    def acknowledge_letter(self, job: Job) -> None:
        job.letter, job.failures = None, 0
        self._over(job)

    # The loops.

    def manage(self, queued: Iterable[str], *, page: int) -> None:
        """The manager queued these: as many as it looks at, of those that are due."""
        due = {job.name for job in self.due()}
        assert set(queued) <= due, f"queued although not due: {set(queued) - due}"
        assert len(set(queued)) == min(page, len(due)), f"due are {due}, queued {set(queued)}"
        for name in queued:
            self._open_due(self.jobs[name])

    def _open_due(self, job: Job) -> None:
        is_wanted = job.request is not None and job.request.at <= self.now
        if is_wanted and not self._is_first_for_parent(job):
            self._open(job, "trigger", job.request.at)
        elif job.kind == DEPENDENT:
            self._open(job, "dependency", self.now)
        else:
            assert job.occurrence is not None
            self._open(job, "schedule", job.occurrence)

    def _is_first_for_parent(self, job: Job) -> bool:
        """Whether a wish with an input of its own, which asks for another run, comes after one that is owed."""
        return job.request is not None and job.request.input is not None and self.is_behind(job)

    def activate(self, by: Run, child: Job) -> bool:
        by.has_acted = True
        if child.is_open:
            return False
        self._open(child, "activation", self.now, input=child.input, parent=by.id)
        return True

    def _open(
        self, job: Job, source: str, scheduled_for: datetime, *, input: Any = None, parent: int | None = None
    ) -> None:
        """Queue a run: for all that its parent did, or for a wish, or for both unless the wish has its own input."""
        given = [input]
        if self._is_answered(job, source):
            given += [job.request.input] if source == "trigger" else []
            job.request = None
        given = [value for value in given if value is not None]
        owed = [] if source == "trigger" and given else self.owed(job)
        parent = parent or max(owed, default=None)
        job.ran_for = max([job.ran_for, *owed])
        given.append(job.input)
        job.row = Row(job.name, source, given[0], scheduled_for, parent=parent)
        job.row.root = self._root_below(parent)

    def _is_answered(self, job: Job, source: str) -> bool:
        """Whether the wish that waits is met by a run that is queued now."""
        is_due = job.request is not None and job.request.at <= self.now
        return is_due and source != "activation" and (source == "trigger" or job.request.input is None)

    def _root_below(self, parent: int | None) -> int | None:
        return None if parent is None else self.roots.get(parent) or parent

    def startable(self) -> list[Job]:
        """Queued jobs that nothing but the limits keeps from starting."""
        return [
            job
            for job in self.jobs.values()
            if job.row is not None
            and (job.row.not_before is None or job.row.not_before <= self.now)
            and (job.is_enabled or job.row.source in BY_A_PERSON)
            and self.groups[job.group].is_enabled
        ]

    def dispatch(self, started: Sequence[tuple[str, int]]) -> None:
        """The dispatcher started these, by name and execution: within the limits, all there is room for, in order."""
        before, startable = self.active(), {job.name: job for job in self.startable()}
        names = [name for name, _ in started]
        assert set(names) <= startable.keys(), f"started although not ready: {set(names) - startable.keys()}"
        for name, execution_id in started:
            self._start(startable[name], execution_id)
        self._check_room({startable[name].group for name in names})
        left = [job for name, job in startable.items() if name not in names]
        for job in left:
            ahead = [self.jobs[name] for name in names if self.rank(self.jobs[name]) >= self.rank(job)]
            assert self._is_full(job, [run.group for run in before] + [other.group for other in ahead]), (
                f"{job.name} was left waiting although there was room"
            )

    def _start(self, job: Job, execution_id: int) -> None:
        row, job.row = job.row, None
        assert row is not None
        job.run = Run(
            job.name,
            row.source,
            row.input,
            row.scheduled_for,
            parent=row.parent,
            root=row.root,
            attempt=row.attempt,
            id=execution_id,
            group=job.group,
            priority=self.rank(job),
            row=row,
        )
        self.roots[execution_id] = row.root

    def _is_full(self, job: Job, active: Sequence[str]) -> bool:
        limit = self.groups[job.group].limit
        return len(active) >= self.limit or (limit is not None and active.count(job.group) >= limit)

    def _check_room(self, groups: Iterable[str]) -> None:
        """Asked where something started: a limit may be lowered below what is running already."""
        active = [run.group for run in self.active()]
        assert not groups or len(active) <= self.limit, f"{len(active)} active, {self.limit} allowed"
        for group in groups:
            limit = self.groups[group].limit
            assert limit is None or active.count(group) <= limit, f"{group} is over its limit"

    def claim(self, process: int, *, limit: int) -> list[int]:
        """Which executions the process gets: the pending ones by priority, then by age; none once it is lost."""
        if process not in self.heartbeats:
            return []
        taken = sorted(self.pending(), key=lambda run: (-run.priority, run.id))[:limit]
        for run in taken:
            run.process = process
        return sorted(run.id for run in taken)

    def take(self, process: int, started: Sequence[tuple[str, int]]) -> None:
        """A process took these for itself: what the dispatcher would have started; nothing once it is lost."""
        if process not in self.heartbeats:
            assert not started
            return
        self.dispatch(started)
        for name, _ in started:
            run = self.jobs[name].run
            assert run is not None
            run.process = process

    def give_back(self, run: Run) -> None:
        """It has not begun: its row waits again; told to stop it ends, and without its manifest it is lost."""
        if run.process not in self.heartbeats:
            return
        if run.is_told_to_stop:
            self._end(run, CANCELLED)
        elif run.id in self.orphans:
            self._end(run, LOST)
        else:
            self.jobs[run.name].run, self.jobs[run.name].row = None, run.row

    def finish(self, process: int, results: Iterable[tuple[int, str]]) -> list[int]:
        """Which results count: those of runs that the process still holds, if nobody declared it lost."""
        held = {run.id: run for run in self.running(process)} if process in self.heartbeats else {}
        counted = [(held[id_], kind) for id_, kind in results if id_ in held]
        for run, kind in counted:
            self._end(run, kind)
        return sorted(run.id for run, _ in counted)

    def declare_lost(self) -> int:
        """How many processes have been silent for too long; nothing that they do counts from now on."""
        silent = [process for process, beat in self.heartbeats.items() if beat < self.now - EXPIRY]
        for process in silent:
            del self.heartbeats[process]
        return len(silent)

    def reap(self) -> list[int]:
        """Which runs are lost: those of processes without a heartbeat."""
        self.declare_lost()
        lost = [run for run in self.running() if run.process not in self.heartbeats]
        for run in lost:
            self._end(run, LOST)
        return sorted(run.id for run in lost)

    def _end(self, run: Run, kind: str) -> None:
        if run.is_told_to_stop and kind in (FAILURE, HOPELESS, LOST):
            kind = CANCELLED
        self.ended[run.id] = {SUCCESS: "completed", CANCELLED: "cancelled"}.get(kind, "failed")
        if self.orphans.pop(run.id, None) is not None:
            return
        job = self.jobs[run.name]
        job.run = None
        if kind == SUCCESS:
            job.failures, job.last_success = 0, self.now
            self._over(job, run)
            self._tell(job, Outcome(run.id, SUCCEEDED))
        elif kind == CANCELLED:
            self._over(job, run)
            self._tell(job, Outcome(run.id, CANCELLED))
        else:
            job.failures += 1
            if kind == HOPELESS or job.failures >= max(job.max_retries, 1):
                job.letter = run
                self._tell(job, Outcome(run.id, DEAD_LETTERED))
            else:
                self._try_again(job, run, was_lost=kind == LOST)

    def _over(self, job: Job, run: Run | None = None) -> None:
        """It has had its run; a job for one time is then done, unless that time is still to come.

        A run that somebody triggered before stands for it.
        """
        job.last_over = self.now
        has_come = job.once_at is not None and job.once_at <= self.now
        stands_for_it = run is not None and run.source == "trigger"
        job.is_done = job.is_done or (job.kind == ONCE and (has_come or stands_for_it))

    def _tell(self, job: Job, outcome: Outcome) -> None:
        """A run is over for good: dependents hear of it."""
        job.outcomes.append(outcome)
        for child in self.children(job.name):
            waits_first_time = child.row is not None and child.row.source == "dependency" and child.row.attempt == 1
            # After a change of parent it may have a row and owe a run besides; the outcome then joins what it owes.
            if waits_first_time and self.owed(child) == [outcome.id]:
                assert child.row is not None
                child.row.parent, child.row.root = outcome.id, self._root_below(outcome.id)
                child.ran_for = outcome.id

    def _try_again(self, job: Job, run: Run, *, was_lost: bool) -> None:
        source = run.source if run.source in BY_A_PERSON else "retry"
        wait = 0.0 if was_lost and job.failures == 1 else RETRY_DELAY * 2 ** (job.failures - 1)
        earliest, latest = (self.now + timedelta(seconds=wait * (1 + sign * SPREAD)) for sign in (-1, 1))
        job.row = Row(
            job.name,
            source,
            run.input,
            run.scheduled_for,
            parent=run.parent,
            root=run.root,
            attempt=run.attempt + 1,
            not_before=latest,
            not_before_between=(earliest, latest),
        )
