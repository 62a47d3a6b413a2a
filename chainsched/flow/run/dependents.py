"""Stage 8 of 8: outcomes make dependents due. A dependent counts executions, not minutes.

Reads:  the dependents of the manifests that ended, and their numbers.
Writes: ``due_execution``; rows that still wait for their first attempt are moved to the newer parent.
Next:   arm gives what is due its alarm.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from django.db.models import Exists, OuterRef

from chainsched.db import bulk
from chainsched.domain.outcomes import matches
from chainsched.domain.states import ExecutionState, RunCondition
from chainsched.exceptions import ChainschedError
from chainsched.flow.run.enqueue import lineages_of
from chainsched.models import DeadLetter, Manifest, ManifestState, WorkQueue

logger = logging.getLogger(__name__)

R = TypeVar("R")

MAX_TRIES = 5


class EdgesMoved(ChainschedError):
    """A dependent appeared between the lock and the read; the caller locks again."""


def with_steady_edges(write: Callable[[], R]) -> R:
    """Write; when the graph changed between the lock and the look, lock and look again."""
    for _ in range(MAX_TRIES - 1):
        try:
            return write()
        except EdgesMoved:
            logger.info("The graph changed under a write; looking again.")
    return write()


@dataclass(frozen=True, slots=True)
class Ended:
    """An outcome of a manifest's run, as far as dependents care."""

    manifest_id: int
    execution_id: int
    state: ExecutionState
    is_dead_lettered: bool


def mark_due(ended: Sequence[Ended], *, locked: Collection[int]) -> list[int]:
    """Let each dependent's number grow to the newest execution that matches its condition; returns those to arm.

    These are the ones whose number grew, and the continuations that have to wait for them from now on. The caller
    holds the states in ``locked``. Numbers only grow, so nothing fires twice and nothing is lost: several outcomes
    while a dependent is busy make one run for the newest.
    """
    dependents = _load_dependents([outcome.manifest_id for outcome in ended])
    if not {row["id"] for row in dependents} <= set(locked):
        raise EdgesMoved("a dependent was declared or moved while its parent was being recorded")
    by_parent = {outcome.manifest_id: outcome for outcome in ended}
    grown = {
        row["id"]: by_parent[row["depends_on_id"]].execution_id
        for row in dependents
        if _fires(row, by_parent[row["depends_on_id"]])
    }
    if not grown:
        return []
    by_id = {row["id"]: row for row in dependents}
    continuations = {row["id"] for row in dependents if row["is_fan_in_continuation"]}
    rows = [
        {
            "manifest": manifest_id,
            "due_execution": execution_id,
            "outstanding_for": _outstanding_part(by_id[manifest_id]),
        }
        for manifest_id, execution_id in grown.items()
    ]
    bulk.update(ManifestState, rows, key="manifest")
    # A continuation that waits in the queue stays with the execution whose parts are all done.
    _move_waiting_rows({id_: to for id_, to in grown.items() if id_ not in continuations})
    return sorted({*grown, *continuations})


def find_continuations(manifest_ids: Sequence[int], *, locked: Collection[int]) -> list[int]:
    """The continuations that may have waited for these manifests; their states are locked already."""
    found = list(Manifest.objects.continuations_after(manifest_ids).order_by("id").values_list("id", flat=True))
    if not set(found) <= set(locked):
        raise EdgesMoved("a continuation was declared or moved while its sibling was being recorded")
    return found


def _load_dependents(parent_ids: Sequence[int]) -> list[dict[str, Any]]:
    dependents = Manifest.objects.firing_after(list(parent_ids)).order_by("id")
    # Most manifests have none, and to put the whole question takes longer than to answer it.
    if not dependents.exists():
        return []
    has_part = Exists(Manifest.objects.having_parts().filter(id=OuterRef("id")))
    is_stopped = Exists(DeadLetter.objects.awaiting().filter(manifest=OuterRef("id")))
    columns = ("id", "depends_on_id", "run_condition", "is_fan_in_continuation", "state__due_execution")
    return [dict(row) for row in dependents.values(*columns, has_part=has_part, is_stopped=is_stopped)]


def _outstanding_part(dependent: dict[str, Any]) -> int | None:
    """The parent whose continuations have to wait for this dependent, if they do."""
    return dependent["depends_on_id"] if dependent["has_part"] and not dependent["is_stopped"] else None


def _fires(dependent: dict[str, Any], outcome: Ended) -> bool:
    condition = RunCondition(dependent["run_condition"])
    is_match = matches(condition, state=outcome.state, is_dead_lettered=outcome.is_dead_lettered)
    return is_match and outcome.execution_id > dependent["state__due_execution"]


def _move_waiting_rows(grown: dict[int, int]) -> None:
    """A row that waits for its first attempt runs for the newest outcome instead of an older one."""
    lineages = lineages_of(grown.values())
    moved = WorkQueue.objects.move_to_newer_parent(
        [
            {
                "manifest": manifest_id,
                "parent_execution": execution_id,
                "root_execution": lineages[execution_id].root_execution_id,
                "causation_id": lineages[execution_id].causation_id,
                "root_correlation_id": lineages[execution_id].root_correlation_id,
            }
            for manifest_id, execution_id in grown.items()
        ]
    )
    rows = [{"manifest": manifest_id, "covered_execution": grown[manifest_id]} for manifest_id in moved]
    bulk.update(ManifestState, rows, key="manifest")
