"""Not a stage: explain why a manifest is or is not running, with the facts and rules that the turns use.

Reads:  the facts that a turn would read, for one manifest.
Writes: nothing.
Next:   nothing; commands, the admin and callers show the explanation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from functools import cached_property

from chainsched.conf import get_config
from chainsched.domain.due import IN_WORDS, Facts, OpenItem, Reason, decide, timing_of
from chainsched.domain.joins import JoinOutcome
from chainsched.domain.obstacles import RULES, find_obstacle, find_obstacle_to_row
from chainsched.domain.results import Explanation
from chainsched.domain.schedules import next_runs
from chainsched.domain.states import QueueStatus, Source
from chainsched.exceptions import InvalidSchedule, UnknownManifest
from chainsched.models import Metadata, WorkQueue
from chainsched.models.manifest_facts import load_facts
from chainsched.models.obstacles import RowStanding
from chainsched.models.run_reports import describe_join, last_join, waiting_joins

PREVIEW = 10
# Runs of which a join says what it waits for.
MAX_RUNS = 3


def explain(manifest_id: int, *, workflows: Collection[str], now: datetime) -> Explanation:
    """Why this manifest is or is not running. ``workflows`` are the names that some live process can run."""
    found = load_facts([manifest_id])
    if not found:
        raise UnknownManifest(f"#{manifest_id}")
    facts = found[0]
    decision = decide(facts, now=now)
    code, reason = str(decision.reason), decision.in_words
    if facts.open_item is OpenItem.QUEUED:
        code, reason = _why_waiting(facts, workflows=workflows, now=now)
    elif decision.reason is Reason.PARENT_NOT_AHEAD and facts.is_join:
        code, reason = _why_join_waits(facts, reason)
    elif facts.open_item is OpenItem.PENDING and (stranded := _find_stranded(facts, workflows=workflows)):
        code, reason = _without_worker(stranded)
    return Explanation(
        external_id=facts.external_id,
        code=code,
        reason=reason,
        next_run_at=facts.next_run_at,
        next_runs=_preview(facts, now=now),
    )


def _why_join_waits(facts: Facts, otherwise: str) -> tuple[str, str]:
    """What a join waits for in its open runs; else how it stood in the last one, if that was short."""
    waiting = waiting_joins(facts.manifest_id, limit=MAX_RUNS + 1)
    if waiting:
        more = "; and in further runs" if len(waiting) > MAX_RUNS else ""
        reports = "; ".join(describe_join(state).in_words for state in waiting[:MAX_RUNS])
        return str(Reason.WAITS_FOR_PARENTS), f"{IN_WORDS[Reason.WAITS_FOR_PARENTS]}: {reports}{more}"
    last = last_join(facts.manifest_id)
    if last is not None and last.outcome == JoinOutcome.SHORT:
        remedy = "Retry the dead letters, or run what is missing again from there"
        return str(
            Reason.TOO_FEW_ARRIVED
        ), f"{IN_WORDS[Reason.TOO_FEW_ARRIVED]}: {describe_join(last).in_words}. {remedy}"
    return str(Reason.PARENT_NOT_AHEAD), otherwise


def explain_row(row: WorkQueue, *, workflows: Collection[str], now: datetime) -> Explanation:
    """Why a row of the queue waits, or that it waits no longer; ``workflows`` as above."""
    if row.status != QueueStatus.QUEUED:
        became = f"it became execution {row.execution_id}" if row.execution_id else row.cancel_reason or "cancelled"
        return Explanation(row.name, row.status, became, None)
    known = WorkQueue.objects.with_owners().filter(id=row.id)
    explained = explain_rows(known, workflows=workflows, now=now, is_thorough=True)
    return explained[0] if explained else Explanation(row.name, "gone", "it was removed just now", None)


def explain_rows(
    rows: Iterable[WorkQueue], *, workflows: Collection[str], now: datetime, is_thorough: bool = False
) -> list[Explanation]:
    """Why each of these waiting rows, read with their owners, waits.

    A thorough answer also counts the rows ahead of one that waits only for its turn, which costs a query per row.
    """
    load = _Load()
    explained = []
    for row in rows:
        code, reason = _why_held(row, load, workflows=workflows, now=now)
        if is_thorough and code == Reason.QUEUED:
            reason += f" and {WorkQueue.objects.queued().ahead_of(row).count()} rows are ahead of it"
        explained.append(Explanation(row.name, code, reason, None))
    return explained


def _why_waiting(facts: Facts, *, workflows: Collection[str], now: datetime) -> tuple[str, str]:
    rows = WorkQueue.objects.with_owners().queued().filter(manifest=facts.manifest_id)
    for explained in explain_rows(rows, workflows=workflows, now=now, is_thorough=True):
        return explained.code, explained.reason
    return str(Reason.PENDING), "it was dispatched just now"


def _find_stranded(facts: Facts, *, workflows: Collection[str]) -> str | None:
    """The workflow that it was dispatched for, if no live process can run it; recall will take it back."""
    stranded = Metadata.objects.stranded(workflows).filter(manifest=facts.manifest_id)
    return stranded.values_list("workflow", flat=True).first()


def _without_worker(workflow: str) -> tuple[str, str]:
    return "no_capable_worker", f"no live process can run {workflow!r}; start a worker that knows it"


class _Load:
    """How many jobs are active, counted at the first access, and once."""

    @cached_property
    def by_group(self) -> dict[int | None, int]:
        return Metadata.objects.active_by_group()

    @cached_property
    def total(self) -> int:
        return sum(self.by_group.values())


def _why_held(row: WorkQueue, load: _Load, *, workflows: Collection[str], now: datetime) -> tuple[str, str]:
    """Why a queued row is not dispatched, checked in the dispatcher's order."""
    if row.not_before is not None and row.not_before > now:
        return "waits_for_time", f"attempt {row.attempt} waits until {row.not_before.isoformat()}"
    if row.manifest is None and row.manifest_id is not None:
        return "manifest_gone", "its manifest was deleted outside the engine; cancel it"
    if (obstacle := find_obstacle_to_row(_standing_of(row), Source(row.source))) is not None:
        return obstacle.value, RULES[obstacle].held_row_in_words
    if row.workflow not in workflows:
        return _without_worker(row.workflow)
    return _why_no_room(row, load)


def _standing_of(row: WorkQueue) -> RowStanding:
    """The columns that obstacles to a queued row are judged by, of a row that was read with its owners."""
    manifest = row.manifest
    return RowStanding(
        is_retired=manifest is not None and manifest.retired_at is not None,
        is_done=manifest is not None and manifest.done_at is not None,
        is_enabled=manifest is None or manifest.is_enabled,
        is_group_enabled=row.group is None or row.group.is_enabled,
    )


def _why_no_room(row: WorkQueue, load: _Load) -> tuple[str, str]:
    limit = get_config().max_active_jobs
    if limit is not None and load.total >= limit:
        return "no_room", f"{load.total} jobs are active; MAX_ACTIVE_JOBS allows {limit}"
    group, used = row.group, load.by_group.get(row.group_id, 0)
    if group is not None and group.max_active_jobs is not None and used >= group.max_active_jobs:
        return "group_full", f"{used} jobs of group {group.name!r} are active; it allows {group.max_active_jobs}"
    return str(Reason.QUEUED), "it is queued"


def _preview(facts: Facts, *, now: datetime) -> tuple[datetime, ...]:
    """The next runs by its schedule alone; empty if an obstacle or a dead letter stops it."""
    is_stopped = find_obstacle(facts) is not None or facts.open_item is OpenItem.DEAD_LETTER
    if is_stopped or not facts.schedule_type.is_timed:
        return ()
    after = now
    if facts.interval_seconds is not None and facts.next_run_at is not None:
        # An interval counts from the alarm that is set, not from the time of this call; a late one runs now.
        after = max(facts.next_run_at, now) - timedelta(seconds=facts.interval_seconds)
    try:
        return tuple(next_runs(timing_of(facts), after=after, count=PREVIEW))
    except InvalidSchedule:
        return ()
