"""Stage 6 of 8: run the project's code.

Reads:  a claim.
Writes: nothing of its own; the run may activate children and report progress.
Next:   record.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from asgiref.sync import async_to_sync

from chainsched import correlation
from chainsched.conf import get_config
from chainsched.db.sessions import nestings, savepoints, undo_left_open
from chainsched.domain import outcomes
from chainsched.domain.inputs import to_document
from chainsched.domain.outcomes import FailureType, Outcome
from chainsched.domain.redaction import redact
from chainsched.domain.results import JoinReport, ParentRun
from chainsched.domain.run_context import Claim, RunContext, RunControl
from chainsched.domain.states import ExecutionState
from chainsched.exceptions import InvalidInput, RunHasEnded, UnknownWorkflow
from chainsched.flow.run.activate import activate
from chainsched.models import Metadata
from chainsched.models.join_reports import describe_join
from chainsched.models.run_reports import find_arrivals, find_join
from chainsched.registry import Workflow, registry
from chainsched.secret import revealed

logger = logging.getLogger(__name__)

RunAsync = Callable[[Coroutine[Any, Any, Any]], Any]


class LeftOpen(Exception):
    """A job has returned and left transactions open in these databases; raised by the runner of async jobs."""

    def __init__(self, names: Iterable[str]) -> None:
        listed = ", ".join(sorted(names))
        super().__init__(f"It left a transaction open (database {listed}); its writes there were rolled back.")


class BrokenTransaction(Exception):
    """A job has ended well in a test's transaction, which an error of the database, or the job, had broken."""

    def __init__(self, names: Iterable[str]) -> None:
        listed = ", ".join(sorted(names))
        super().__init__(
            f"An error broke the test's transaction (database {listed}), and the job's writes were rolled back. Let "
            "the job put what may fail into transaction.atomic(), or use a TransactionTestCase."
        )


class JobLink(Protocol):
    """The connection between a running job and its worker."""

    def is_cancelled(self) -> bool:
        """Whether the job should stop."""
        ...

    def report(self, progress: Any) -> None:
        """Pass on the progress that the job reports."""
        ...


def run_here(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end; its queries run one by one in the calling thread, over the connections of that."""

    async def wait() -> Any:
        return await coroutine

    return async_to_sync(wait)()


def execute_here(item: Claim) -> Outcome:
    """Execute for a caller that goes on in this thread: transactions that the job leaves open are rolled back.

    The caller may stand in a transaction itself, as a test does. A job that left one open has failed, as in a worker.
    """
    before, job_link = nestings(), _DatabaseJobLink(item)
    with savepoints() as broken:
        outcome = execute(item, job_link=job_link)
        left_open = undo_left_open(before)
    job_link.write()
    if outcome.state is not ExecutionState.COMPLETED:
        return outcome
    if broken:
        return outcomes.raised(BrokenTransaction(broken))
    return outcomes.failed(FailureType.OPEN_TRANSACTION, str(LeftOpen(left_open))) if left_open else outcome


def execute(item: Claim, *, job_link: JobLink | None = None, run_async: RunAsync = run_here) -> Outcome:
    """Run the workflow of a claim and return how it ended; any exception of the project's code becomes an outcome.

    Never called inside a transaction, except in tests.
    """
    try:
        workflow = registry.get(item.workflow)
    except UnknownWorkflow as error:
        return outcomes.failed(FailureType.UNKNOWN_WORKFLOW, str(error))
    home = os.getpid()
    try:
        with correlation.begin(str(item.correlation_id), root_correlation_id=item.root_correlation_id):
            return _call(item, workflow, job_link or _DatabaseJobLink(item), run_async)
    except LeftOpen as error:
        return outcomes.failed(FailureType.OPEN_TRANSACTION, str(error))
    except BaseException as error:  # noqa: BLE001 - the one place where the project's code may raise anything
        return outcomes.raised(error, known=revealed())
    finally:
        _end_copies(home)


def _end_copies(home: int) -> None:
    """End the copy that a job made by forking. It would send its own result, and run the waiting jobs a second time."""
    if os.getpid() != home:
        os._exit(0)


def _call(item: Claim, workflow: Workflow, job_link: JobLink, run_async: RunAsync) -> Outcome:
    """Load the input, call the function, convert its result to JSON; all three run code of the project."""
    if item.problem:
        return outcomes.failed(FailureType.BAD_INPUT, item.problem)
    try:
        value = workflow.input_type.load(item.input)
    except InvalidInput as error:
        return outcomes.failed(FailureType.BAD_INPUT, str(error), known=revealed())
    control = _Control(item, job_link)
    try:
        returned = workflow.function(**workflow.arguments(value, run=lambda: control.context(workflow.name)))
        if workflow.is_async:
            returned = run_async(returned)
        return _completed(returned, workflow)
    finally:
        control.has_ended = True


def _completed(returned: Any, workflow: Workflow) -> Outcome:
    """The outcome of a function that returned; a generator runs here."""
    if returned is None:
        return outcomes.completed(None)
    try:
        what = f"The output of workflow {workflow.name}"
        document = to_document(returned, what=what, max_bytes=get_config().max_output_bytes)
        return outcomes.completed(document, known=revealed())
    except InvalidInput as error:
        return outcomes.failed(FailureType.BAD_OUTPUT, str(error), known=revealed())


@dataclass(slots=True, eq=False)
class _Control(RunControl):
    """The requests of a run to the engine, for the claim under which it runs; refused when the run has ended."""

    item: Claim
    job_link: JobLink
    has_ended: bool = False

    def context(self, workflow: str) -> RunContext:
        """The run as its workflow sees it, under the present name of that."""
        return RunContext.of_claim(self.item, workflow=workflow, control=self)

    def activate(self, activations: Iterable[tuple[str, Any]]) -> list[str]:
        self._check()
        return activate(
            activations,
            parent_manifest_id=self.item.manifest_id,
            execution_id=self.item.execution_id,
            process_id=self.item.process_id,
        )

    def is_cancelled(self) -> bool:
        self._check()
        return self.job_link.is_cancelled()

    def report(self, progress: Any) -> None:
        self._check()
        self.job_link.report(redact(progress, known=revealed()))

    def find_join(self) -> JoinReport | None:
        state = find_join(self._execution())
        return None if state is None else describe_join(state)

    def find_parents(self) -> list[ParentRun]:
        return find_arrivals(self._execution())

    def _check(self) -> None:
        """Refuse what code asks for that kept the context: a thread that the job left behind, the next job."""
        if self.has_ended:
            raise RunHasEnded(self.item.execution_id)

    def _execution(self) -> Metadata:
        self._check()
        return Metadata.objects.only("run_id", "manifest_id", "parent_execution_id").get(id=self.item.execution_id)


@dataclass(slots=True)
class _DatabaseJobLink(JobLink):
    """For a job without a worker, as in tests: reads and writes the rows directly.

    Not in the event loop of an async job, where Django allows no query: the row is read before, and written after it.
    """

    item: Claim
    _was_cancelled: bool = False
    _unwritten: Any = None

    def __post_init__(self) -> None:
        self._was_cancelled = self.is_cancelled()

    def is_cancelled(self) -> bool:
        if _is_in_event_loop():
            return self._was_cancelled
        return Metadata.objects.filter(id=self.item.execution_id, cancel_requested=True).exists()

    def report(self, progress: Any) -> None:
        self._unwritten = progress
        if not _is_in_event_loop():
            self.write()

    def write(self) -> None:
        """Write the progress that was reported last, if it is not written yet."""
        progress, self._unwritten = self._unwritten, None
        if progress is not None:
            Metadata.objects.in_progress().filter(id=self.item.execution_id).update(progress=progress)


def _is_in_event_loop() -> bool:
    return asyncio._get_running_loop() is not None  # noqa: SLF001 - as Django asks; the public call raises instead
