"""Inspection: find the causes of an execution, up to the root.

Reads:  the execution, its ancestors, and the dead letter that a retry came from.
Writes: nothing.
Next:   the operator, who reads the causes.
"""

from __future__ import annotations

from uuid import UUID

from chainsched.db.fields import with_users
from chainsched.domain.items import Item
from chainsched.domain.known import is_known
from chainsched.domain.results import Ancestry, Cause
from chainsched.domain.states import ExecutionState, Source
from chainsched.exceptions import UnknownExecution
from chainsched.flow.run.carried import find_cancelled
from chainsched.models import DeadLetter, Metadata

# Graphs are a few levels deep; a chain of triggers from run to run may be longer, and is cut here.
MAX_CAUSES = 100


_CAUSED = {
    Source.SCHEDULE: "its schedule called for it at {at}",
    Source.DEPENDENCY: "{cause} {ended}",
    Source.TRIGGER: "it was triggered by {cause}",
    Source.ACTIVATION: "it was activated by {cause}",
    Source.RETRY: "attempt {earlier} had failed; the run was caused by {cause}",
    Source.TASK: "{cause} enqueued it as a task",
}
_UNCAUSED = {
    Source.SCHEDULE: "its schedule called for it at {at}",
    Source.DEPENDENCY: "its parent's outcome called for it",
    Source.TRIGGER: "it was triggered {how}",
    Source.ACTIVATION: "it was activated {how}",
    Source.RETRY: "attempt {earlier} had failed",
    Source.TASK: "it was enqueued as a task",
}


def find_causes(execution_id: int) -> Ancestry:
    """The chain of causes: the execution itself, its cause, and so on up to the root.

    A parent that retention removed ends the chain.
    """
    runs = _load_chain(execution_id)
    if not runs:
        raise UnknownExecution(execution_id)
    chain = tuple(_as_cause(run, cause) for run, cause in zip(runs, [*runs[1:], None], strict=True))
    is_cancelled = runs[0].is_tree_cancelled or bool(find_cancelled({runs[0].id: Item.of(runs[0])}))
    return Ancestry(chain, runs[0].root_correlation_id, is_tree_cancelled=is_cancelled)


def _load_chain(execution_id: int) -> list[Metadata]:
    """The execution, its cause, the cause of its cause and so on: two or three statements for each tree on the way."""
    chain: dict[int, Metadata] = {}
    wanted: int | None = execution_id
    while wanted is not None and wanted not in chain and len(chain) < MAX_CAUSES:
        found = Metadata.objects.ancestors(wanted, limit=MAX_CAUSES - len(chain))
        chain |= {link.id: link for link in found if link.id not in chain}
        wanted = _trigger_of(found[-1]) if found else None
    return list(chain.values())


def _trigger_of(root: Metadata) -> int | None:
    """The run that triggered the root of a tree, by its causation id."""
    if root.parent_execution_id is not None:
        return None
    try:
        return Metadata.objects.filter(external_id=UUID(root.causation_id)).values_list("id", flat=True).first()
    except ValueError:
        return None


def _as_cause(execution: Metadata, cause: Metadata | None) -> Cause:
    return Cause(
        execution_id=execution.id,
        external_id=execution.manifest_external_id,
        workflow=execution.workflow,
        state=execution.state,
        source=execution.source,
        attempt=execution.attempt,
        correlation_id=str(execution.external_id),
        reason=_reason(execution, cause),
    )


def _reason(execution: Metadata, cause: Metadata | None) -> str:
    """Why it ran, in words that follow "because"."""
    if not is_known(Source, execution.source):
        return f"of a cause that this version does not know ({execution.source})"
    source = Source(execution.source)
    if source is Source.DEAD_LETTER:
        return _decided(execution)
    return (_CAUSED if cause else _UNCAUSED)[source].format(
        at=execution.scheduled_for.isoformat(),
        earlier=execution.attempt - 1,
        cause=_named(cause) if cause else "",
        ended=_ended(cause) if cause else "",
        how=f"while message {execution.causation_id} was handled" if execution.causation_id else "by hand",
    )


def _named(execution: Metadata) -> str:
    return f"{execution.manifest_external_id or execution.workflow} #{execution.id}"


def _ended(cause: Metadata) -> str:
    words: dict[str, str] = {
        ExecutionState.COMPLETED: "completed",
        ExecutionState.FAILED: "went to the dead letter",
        ExecutionState.CANCELLED: "was cancelled",
    }
    return words.get(cause.state, "ran")


def _decided(execution: Metadata) -> str:
    letters = DeadLetter.objects.filter(retry_execution=execution.id)
    letter = letters.prefetch_related(with_users("resolved_by")).first()
    if letter is None:
        return "a dead letter was retried"
    return f"dead letter {letter.id} was retried by {letter.resolved_by or 'the system'}"
