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
from chainsched.flow.run.tokens import TokenLedger
from chainsched.models import JoinState, Manifest, ManifestState
from chainsched.models.manifest_state import NOTHING_DUE


def set_parent_marks(manifest_ids: Sequence[int], *, is_new_parent: bool = True) -> None:
    """Make a dependent that is new, or has a new parent, due if that parent succeeded after its own last success.

    A one-time dependent waits for a later outcome, and a join for the next run. Only here are times compared; from
    then on execution numbers are. The caller has locked the states of these manifests and of their parents. The item
    that a join is due for when it gets other parents, and a dependent when it becomes a join, ends as it was opened.
    """
    for part in chunks(manifest_ids):
        going_on = _due_as_joins(part) if is_new_parent else set(part)
        rows = [
            _numbers_of(row, is_new_parent=is_new_parent, goes_on=row["id"] in going_on) for row in _with_parents(part)
        ]
        numbers = {row["manifest"]: row for row in rows}
        _drop_due_items([id_ for id_ in part if id_ not in going_on or not _stays_due(numbers.get(id_))])
        bulk.update(ManifestState, rows, key="manifest")
        if is_new_parent:
            freed = set(part) - numbers.keys() - going_on
            ManifestState.objects.filter(manifest__in=freed, due_execution__gt=0).update(
                due_execution=0, covered_execution=0
            )


def _due_as_joins(manifest_ids: Sequence[int]) -> set[int]:
    """Those of these dependents that are due and are a join, or are due because they were one."""
    due = dict(ManifestState.objects.with_due_items(manifest_ids).values_list("manifest_id", "due_run"))
    dependents = Manifest.objects.filter(id__in=due, schedule_type=ScheduleType.DEPENDENT)
    is_join = dict(dependents.values_list("id", "is_join"))
    fired = JoinState.objects.of_joins([(id_, due[id_] or 0) for id_ in is_join])
    return {id_ for id_, is_one in is_join.items() if is_one or (id_, due[id_]) in fired}


def _stays_due(numbers: Mapping[str, Any] | None) -> bool:
    """Whether the item that a manifest is due for stays; that of a join, which has no numbers here, does."""
    return numbers is None or numbers["due_execution"] > numbers["covered_execution"]


def _drop_due_items(manifest_ids: Sequence[int]) -> None:
    """Give back the tokens of items that manifests were due for and are no longer."""
    states = list(ManifestState.objects.with_due_items(manifest_ids))
    ledger = TokenLedger()
    for state in states:
        ledger.give_back(state.due_tokens if state.due_has_tokens else ())
    ManifestState.objects.filter(manifest__in=[state.manifest_id for state in states]).update(**NOTHING_DUE)
    ledger.write()


def _with_parents(manifest_ids: Sequence[int]) -> list[dict[str, Any]]:
    dependents = Manifest.objects.filter(
        id__in=manifest_ids, schedule_type=ScheduleType.DEPENDENT, depends_on__isnull=False, is_join=False
    )
    columns = (
        "id",
        "run_condition",
        "is_one_time",
        "state__covered_execution",
        "state__last_successful_run",
        "depends_on__state__last_successful_run",
        "depends_on__state__succeeded_execution",
        "depends_on__state__dead_lettered_execution",
        "depends_on__state__finished_execution",
    )
    return [dict(row) for row in dependents.values(*columns)]


def _numbers_of(row: Mapping[str, Any], *, is_new_parent: bool, goes_on: bool) -> dict[str, Any]:
    if is_new_parent and goes_on:
        # It was a join, and stays due: from now on by the numbers of its only parent.
        newest = _newest(row)
        return _numbers(row["id"], due=newest, covered=min(row["state__covered_execution"], max(newest - 1, 0)))
    return _first_numbers(row) if is_new_parent else _next_numbers(row)


def _first_numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    if row["is_one_time"]:
        present = row["depends_on__state__finished_execution"]
        return _numbers(row["id"], due=present, covered=present)
    newest = _newest(row)
    own, parents = row["state__last_successful_run"], row["depends_on__state__last_successful_run"]
    is_behind = own is None or (parents is not None and parents > own)
    return _numbers(row["id"], due=newest, covered=0 if is_behind else newest)


def _next_numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    """If the parent is still the same, executions that it ran for stay covered, even if the condition changed."""
    covered = row["state__covered_execution"]
    due = max(_newest(row), covered)
    return _numbers(row["id"], due=due, covered=covered)


def _newest(row: Mapping[str, Any]) -> int:
    """The newest execution that the condition matches; 0 for a condition that only a newer version knows."""
    newest: dict[int, int] = {
        RunCondition.SUCCESS: row["depends_on__state__succeeded_execution"],
        RunCondition.FAILURE: row["depends_on__state__dead_lettered_execution"],
        RunCondition.COMPLETION: row["depends_on__state__finished_execution"],
    }
    return newest.get(row["run_condition"], 0)


def _numbers(manifest_id: int, *, due: int, covered: int) -> dict[str, Any]:
    return {"manifest": manifest_id, "due_execution": due, "covered_execution": covered}
