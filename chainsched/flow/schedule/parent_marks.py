"""Part of seed: compare dependents with their parents for the first time.

Reads:  the parents' outcomes, under the lock that the caller holds.
Writes: the execution numbers of the dependents.
Next:   arm sets the alarms of dependents that are due.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chainsched.db import bulk
from chainsched.db.chunks import chunks
from chainsched.domain.states import RunCondition, ScheduleType
from chainsched.models import Manifest, ManifestState


def set_parent_marks(manifest_ids: Sequence[int], *, is_new_parent: bool = True) -> None:
    """Make a dependent that is new, or has a new parent, due if that parent succeeded after its own last success.

    A one-time dependent waits for a later outcome. Only here are times compared; from then on execution numbers are.
    The caller has locked the parents' states.
    """
    for part in chunks(manifest_ids):
        number = _first_numbers if is_new_parent else _next_numbers
        rows = [number(row) for row in _with_parents(part)]
        bulk.update(ManifestState, rows, key="manifest")
        freed = set(part) - {row["manifest"] for row in rows}
        ManifestState.objects.filter(manifest__in=freed, due_execution__gt=0).update(
            due_execution=0, covered_execution=0, settled_execution=0
        )
        ManifestState.objects.note_outstanding_parts(part)


def _with_parents(manifest_ids: Sequence[int]) -> list[dict[str, Any]]:
    dependents = Manifest.objects.filter(
        id__in=manifest_ids, schedule_type=ScheduleType.DEPENDENT, depends_on__isnull=False
    )
    columns = (
        "id",
        "run_condition",
        "is_one_time",
        "state__covered_execution",
        "state__settled_execution",
        "state__last_successful_run",
        "depends_on__state__last_successful_run",
        "depends_on__state__succeeded_execution",
        "depends_on__state__dead_lettered_execution",
        "depends_on__state__finished_execution",
    )
    return [dict(row) for row in dependents.values(*columns)]


def _first_numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    if row["is_one_time"]:
        present = row["depends_on__state__finished_execution"]
        return _numbers(row["id"], due=present, covered=present, settled=present)
    newest = _newest(row)
    own, parents = row["state__last_successful_run"], row["depends_on__state__last_successful_run"]
    is_behind = own is None or (parents is not None and parents > own)
    # A new sibling has no part in executions that already ended, so all of them count as settled.
    return _numbers(row["id"], due=newest, covered=0 if is_behind else newest, settled=newest)


def _next_numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    """If the parent is still the same, executions that it ran for stay covered, even if the condition changed."""
    covered = row["state__covered_execution"]
    due = max(_newest(row), covered)
    return _numbers(row["id"], due=due, covered=covered, settled=row["state__settled_execution"])


def _newest(row: Mapping[str, Any]) -> int:
    newest: int = {
        RunCondition.SUCCESS: row["depends_on__state__succeeded_execution"],
        RunCondition.FAILURE: row["depends_on__state__dead_lettered_execution"],
        RunCondition.COMPLETION: row["depends_on__state__finished_execution"],
    }[RunCondition(row["run_condition"])]
    return newest


def _numbers(manifest_id: int, *, due: int, covered: int, settled: int) -> dict[str, Any]:
    return {
        "manifest": manifest_id,
        "due_execution": due,
        "covered_execution": covered,
        "settled_execution": settled,
    }
