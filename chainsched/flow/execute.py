"""Stage 6 of 8: run the user's code.

Reads:  pending executions that this process can run.
Writes: the claim, and that user code begins; outcomes are handed to record.
Next:   record.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from chainsched import scope
from chainsched.conf import get_config
from chainsched.domain import outcomes
from chainsched.domain.inputs import Unreadable, to_document
from chainsched.domain.outcomes import FailureType, Outcome
from chainsched.domain.redaction import redact
from chainsched.domain.run import RunContext, RunControl
from chainsched.exceptions import InvalidInput, UnknownWorkflow
from chainsched.flow.activate import activate
from chainsched.flow.announce import announce_executions
from chainsched.flow.transact import in_parts, transact
from chainsched.models import Metadata, Process
from chainsched.models.claims import Taken
from chainsched.registry import Workflow, registry
from chainsched.secret import revealed
from chainsched.signals import execution_started

logger = logging.getLogger(__name__)

RunAsync = Callable[[Coroutine[Any, Any, Any]], Any]


@dataclass(frozen=True, slots=True)
class Claim:
    """A claimed execution as plain values, so that it can be handed to another thread or process."""

    execution_id: int
    process_id: int
    manifest_id: int | None
    external_id: str
    correlation_id: UUID
    workflow: str
    input: Any
    scheduled_for: datetime
    attempt: int
    cron_expression: str
    timeout_seconds: int
    parent_manifest_id: int | None
    parent_execution_id: int | None
    root_execution_id: int | None
    causation_id: str
    root_correlation_id: str
    # Why there is no input, where one is stored that cannot be read.
    problem: str = ""


class LeftOpen(Exception):
    """A job has returned and left transactions open in these databases; raised where an async one is run."""

    def __init__(self, names: Iterable[str]) -> None:
        listed = ", ".join(sorted(names))
        super().__init__(f"It left a transaction open (database {listed}); what it wrote there was rolled back.")


class Line(Protocol):
    """What connects a running job with its worker."""

    def is_cancelled(self) -> bool:
        """Whether the job should stop."""
        ...

    def report(self, progress: Any) -> None:
        """Pass on how far the job says it is."""
        ...


def claim(
    *, process: Process, workflows: Collection[str], limit: int, is_begun: bool = True, now: datetime | None = None
) -> list[Claim]:
    """Take up to ``limit`` pending executions; nothing once this process was declared lost.

    The time is read after the rows are locked, unless it is given, so that none begins before it was dispatched.
    """
    if limit < 1:
        return []
    with transact():
        rows = Metadata.objects.claim(process=process, workflows=workflows, limit=limit, is_begun=is_begun, now=now)
        announce_executions(execution_started, [row.id for row in rows])
    return [_claim_of(row, process=process) for row in rows]


def hand_back(*, process: Process, known: Collection[int]) -> int:
    """Give back what stands under this process and is not in its hands."""
    with transact():
        return Metadata.objects.hand_back(process=process, known=known)


def begin(delays: Mapping[int, float], *, process: Process) -> int:
    """Note that the code of claims runs: a process that dies from now on has used an attempt."""
    with transact():
        return Metadata.objects.begin(delays, process=process)


def note_progress(progress: Mapping[int, Any], *, process: Process) -> dict[int, Any]:
    """Write down how far jobs say they are; returns what has to wait, since somebody holds its row.

    What the database refuses is dropped: no results wait for it.
    """

    def write(part: Sequence[tuple[int, Any]]) -> set[int]:
        with transact():
            return Metadata.objects.note_progress(dict(part), process=process)

    parts = in_parts(list(progress.items()), write)
    for (execution_id, _), error in parts.refused:
        logger.warning("The progress of execution %d cannot be written and is dropped: %s", execution_id, error)
    return {id_: progress[id_] for held in parts.results for id_ in held}


def find_cancelled(*, process: Process) -> set[int]:
    """Which of a process's executions somebody asked to stop."""
    asked = Metadata.objects.in_progress().filter(process=process, cancel_requested=True)
    return set(asked.values_list("id", flat=True))


def release(execution_ids: Collection[int], *, process: Process) -> set[int]:
    """Give back claims whose code never began; returns those that have to wait, since somebody holds their rows.

    They count as nothing, however often that happens.
    """
    with transact():
        given_back = Metadata.objects.release(execution_ids, process_ids=[process.pk], is_counted=False)
        if given_back == len(execution_ids):
            return set()
        return Metadata.objects.unstarted(execution_ids, process=process)


def execute(item: Claim, *, line: Line | None = None, run_async: RunAsync = asyncio.run) -> Outcome:
    """Run the workflow of a claim and say how it ended; whatever the project's code raises becomes an outcome.

    Never called inside a transaction.
    """
    line = line or _DatabaseLine(item)
    try:
        workflow = registry.get(item.workflow)
    except UnknownWorkflow as error:
        return outcomes.failed(FailureType.UNKNOWN_WORKFLOW, str(error))
    home = os.getpid()
    try:
        with scope.begin(str(item.correlation_id), root_correlation_id=item.root_correlation_id):
            return _call(item, workflow, line, run_async)
    except LeftOpen as error:
        return outcomes.failed(FailureType.OPEN_TRANSACTION, str(error))
    except BaseException as error:  # noqa: BLE001 - the one place where the project's code may raise anything
        return outcomes.raised(error, known=revealed())
    finally:
        _end_copies(home)


def _end_copies(home: int) -> None:
    """A job that forked comes back twice. The copy would give its own result, and run what waits here once more."""
    if os.getpid() != home:
        os._exit(0)


def _call(item: Claim, workflow: Workflow, line: Line, run_async: RunAsync) -> Outcome:
    """Load the input, call the function, store what it returned; all three run code of the project."""
    if item.problem:
        return outcomes.failed(FailureType.BAD_INPUT, item.problem)
    try:
        value = workflow.input_type.load(item.input)
    except InvalidInput as error:
        return outcomes.failed(FailureType.BAD_INPUT, str(error), known=revealed())
    returned = workflow.function(**workflow.arguments(value, run=_run_context(item, workflow, line)))
    if workflow.is_async:
        returned = run_async(returned)
    try:
        what = f"The output of workflow {workflow.name}"
        document = to_document(returned, what=what, max_bytes=get_config().max_output_bytes)
        return outcomes.completed(document, known=revealed())
    except InvalidInput as error:
        return outcomes.failed(FailureType.BAD_OUTPUT, str(error), known=revealed())


@dataclass(frozen=True, slots=True)
class _Control(RunControl):
    """What a run may ask of the engine, tied to the claim under which it runs."""

    item: Claim
    line: Line
    began_at: float

    def activate(self, activations: Iterable[tuple[str, Any]]) -> list[str]:
        return activate(
            activations,
            parent_manifest_id=self.item.manifest_id,
            execution_id=self.item.execution_id,
            process_id=self.item.process_id,
            ran_for=timedelta(seconds=time.monotonic() - self.began_at),
        )

    def is_cancelled(self) -> bool:
        return self.line.is_cancelled()

    def report(self, progress: Any) -> None:
        self.line.report(redact(progress, known=revealed()))


@dataclass(frozen=True, slots=True)
class _DatabaseLine(Line):
    """For a job that no worker watches over, as in tests: everything is asked of the rows."""

    item: Claim

    def is_cancelled(self) -> bool:
        return Metadata.objects.filter(id=self.item.execution_id, cancel_requested=True).exists()

    def report(self, progress: Any) -> None:
        Metadata.objects.in_progress().filter(id=self.item.execution_id).update(progress=progress)


def _run_context(item: Claim, workflow: Workflow, line: Line) -> RunContext:
    return RunContext(
        execution_id=item.execution_id,
        correlation_id=item.correlation_id,
        workflow=workflow.name,
        external_id=item.external_id,
        scheduled_for=item.scheduled_for,
        attempt=item.attempt,
        cron_expression=item.cron_expression,
        timeout_seconds=item.timeout_seconds,
        parent_manifest_id=item.parent_manifest_id,
        parent_execution_id=item.parent_execution_id,
        root_execution_id=item.root_execution_id,
        causation_id=item.causation_id,
        root_correlation_id=item.root_correlation_id,
        _control=_Control(item, line, time.monotonic()),
    )


def _claim_of(row: Taken, *, process: Process) -> Claim:
    is_readable = not isinstance(row.input, Unreadable)
    return Claim(
        execution_id=row.id,
        process_id=process.pk,
        manifest_id=row.manifest_id,
        external_id=row.manifest_external_id,
        correlation_id=row.external_id,
        workflow=row.workflow,
        input=row.input if is_readable else None,
        scheduled_for=row.scheduled_for,
        attempt=row.attempt,
        cron_expression=row.manifest__cron_expression or "",
        timeout_seconds=row.timeout_seconds or get_config().job_timeout,
        parent_manifest_id=row.manifest__depends_on_id,
        parent_execution_id=row.parent_execution_id,
        root_execution_id=row.root_execution_id,
        causation_id=row.causation_id,
        root_correlation_id=row.root_correlation_id,
        problem="" if is_readable else str(row.input),
    )
