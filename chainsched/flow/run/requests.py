"""Used by the stages that open queue rows: what they ask for, and what caused it.

Reads:  the executions that cause runs, for what these inherit.
Writes: nothing.
Next:   enqueue opens the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from chainsched import correlation
from chainsched.db.compiled import CompiledQuery, Ids
from chainsched.db.id_in import id_in
from chainsched.domain.inputs import OWN_INPUT
from chainsched.domain.items import Item
from chainsched.domain.states import Source
from chainsched.domain.triggers import Answered
from chainsched.models import Metadata
from chainsched.models.metadata import Attempt

# A trigger that asks for another run than the one that waits queues that one first.
ANSWERED = {
    Source.TRIGGER: Answered.ALL,
    Source.SCHEDULE: Answered.WITHOUT_INPUT,
    Source.DEPENDENCY: Answered.WITHOUT_INPUT,
}


@dataclass(frozen=True, slots=True)
class Lineage:
    """What caused a run: its parent and the root of its tree, as rows and as correlation ids."""

    parent_execution_id: int | None = None
    root_execution_id: int | None = None
    causation_id: str = ""
    root_correlation_id: str = ""

    @classmethod
    def of(cls, execution: Metadata | Attempt) -> Lineage:
        """The causes of an execution, for another attempt at the same run."""
        return cls(
            parent_execution_id=execution.parent_execution_id,
            root_execution_id=execution.root_execution_id,
            causation_id=execution.causation_id,
            root_correlation_id=execution.root_correlation_id,
        )

    @classmethod
    def of_scope(cls) -> Lineage:
        """The lineage of a run that a caller asks for: caused by the scope of the call, a run, a message, or none."""
        here = correlation.current()
        return cls(causation_id=here.causation_id, root_correlation_id=here.root_correlation_id) if here else cls()


@dataclass(frozen=True, slots=True)
class QueueRequest:
    """A request for one run of a manifest.

    Without an ``input`` of its own the run gets the manifest's, or the one a trigger came with. Without a
    ``lineage`` of its own it is caused by the execution that the manifest is due for, if there is one.
    """

    manifest_id: int
    source: Source
    scheduled_for: datetime
    not_before: datetime | None = None
    attempt: int = 1
    input: Any = OWN_INPUT
    lineage: Lineage | None = None
    dead_letter_id: int | None = None
    # What the run carries on with: the item of an earlier attempt, or that of an activation. Its tokens are counted.
    item: Item | None = None

    @property
    def is_continued(self) -> bool:
        """Whether it continues a run that was queued before, so that executions that came due since then stay due."""
        return self.attempt > 1 or self.dead_letter_id is not None

    @property
    def answered(self) -> Answered:
        """Which trigger requests that are due its row answers: none, if it carries on or has an activation's input."""
        if self.item is not None:
            return Answered.NONE
        return ANSWERED.get(self.source, Answered.NONE)


_CAUSES = CompiledQuery(
    lambda: Metadata.objects.filter(id_in(id=Ids())).values_list(
        "id", "external_id", "root_execution_id", "root_correlation_id"
    )
)


def lineages_of(execution_ids: Iterable[int]) -> dict[int, Lineage]:
    """What runs caused by these executions inherit. An execution that retention removed still counts as parent."""
    wanted = set(execution_ids)
    if not wanted:
        return {}
    found = {
        id_: Lineage(
            parent_execution_id=id_,
            root_execution_id=root_execution_id or id_,
            causation_id=str(external_id),
            root_correlation_id=root_correlation_id or str(external_id),
        )
        for id_, external_id, root_execution_id, root_correlation_id in _CAUSES.rows(ids=wanted)
    }
    return {gone: Lineage(parent_execution_id=gone, root_execution_id=gone) for gone in wanted} | found


def given_input(request: QueueRequest, job: Mapping[str, Any], *, now: datetime) -> dict[str, Any]:
    """The request's own input or that of the trigger request it answers; none if the manifest's is meant."""
    if request.input is not OWN_INPUT:
        return {"input": request.input}
    wanted = job["state__trigger_input"]
    return {"input": wanted} if wanted is not None and answers_trigger(request, job, now=now) else {}


def answers_trigger(request: QueueRequest, job: Mapping[str, Any], *, now: datetime) -> bool:
    """Whether the run is the one that a stored trigger request asked for."""
    wanted_at = job["state__trigger_at"]
    return request.source is Source.TRIGGER and wanted_at is not None and wanted_at <= now
