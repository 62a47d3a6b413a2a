"""Not a stage: explain why a manifest is or is not running, with the facts and rules that the turns use.

Reads:  the facts that a turn would read, for one manifest.
Writes: nothing.
Next:   nothing; commands, the admin and callers show the explanation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from functools import cached_property
from typing import NamedTuple

from django.db import DatabaseError

from chainsched.conf import get_config
from chainsched.domain.due import IN_WORDS, Decision, Facts, OpenItem, Reason, decide, timing_of
from chainsched.domain.joins import JoinOutcome
from chainsched.domain.known import LEFT_TO_NEWER, find_unknown, find_unknown_of
from chainsched.domain.obstacles import RULES, find_obstacle, find_obstacle_to_row
from chainsched.domain.results import Explanation
from chainsched.domain.routing import Pool, are_taken, no_worker_takes
from chainsched.domain.schedules import next_runs
from chainsched.domain.states import QueueStatus, Source
from chainsched.exceptions import InvalidSchedule, UnknownManifest
from chainsched.models import ManifestState, Metadata, Process, WorkQueue, metadata_claims, work_queue
from chainsched.models.join_reports import describe_join
from chainsched.models.manifest import KINDS as MANIFEST_KINDS
from chainsched.models.manifest_facts import load_facts, load_unknown_items
from chainsched.models.obstacles import RowStanding
from chainsched.models.run_reports import last_join, waiting_joins

PREVIEW = 10


class PutAside(NamedTuple):
    """What could not be done with a manifest or a row, and the way to have it tried again at once."""

    done: str
    remedy: str


QUEUEING = PutAside("queued", "trigger the manifest")
DISPATCHING = PutAside("dispatched", "bring the row forward or trigger its manifest")
# Stored values that cannot be read: they may be the reason for which a manifest is put aside.
UNREADABLE = (ValueError, TypeError, DatabaseError)
# Open runs that the reason of a waiting join describes, at most.
MAX_RUNS = 3


def explain(manifest_id: int, *, pools: Collection[Pool], now: datetime) -> Explanation:
    """Why this manifest is or is not running. ``pools`` are what live processes can run."""
    try:
        found = load_facts([manifest_id])
    except UNREADABLE:
        if (put_aside := _explain_put_aside(manifest_id)) is not None:
            return put_aside
        raise
    if not found:
        raise UnknownManifest(f"#{manifest_id}")
    facts = found[0]
    if facts.is_put_aside and (put_aside := _explain_put_aside(manifest_id)) is not None:
        return put_aside
    decision = decide(facts, now=now)
    code, reason = str(decision.reason), decision.in_words
    if facts.open_item is OpenItem.QUEUED:
        code, reason = _why_waiting(facts, pools=pools, now=now)
    elif facts.open_item is not None:
        code, reason = _why_active(facts, pools=pools) or (code, reason)
    elif unknown := _find_unknown(facts, decision):
        code, reason = _unknown_value(unknown)
    elif decision.reason is Reason.PARENT_NOT_AHEAD and facts.is_join:
        code, reason = _why_join_waits(facts, reason)
    return Explanation(
        external_id=facts.external_id,
        code=code,
        reason=reason,
        next_run_at=facts.next_run_at,
        next_runs=_preview(facts, now=now),
    )


def _explain_put_aside(manifest_id: int) -> Explanation | None:
    """Why a manifest is put aside; None if it is not, or not any more."""
    found = ManifestState.objects.find_put_aside(manifest_id)
    if found is None:
        return None
    external_id, at, why = found
    return Explanation(external_id, str(Reason.PUT_ASIDE), _why_put_aside(QUEUEING, at, why), None)


def _why_active(facts: Facts, *, pools: Collection[Pool]) -> tuple[str, str] | None:
    """Why a dispatched execution does not begin, or why this version does not deal with one; None if nothing is odd."""
    active = Metadata.objects.active().filter(manifest=facts.manifest_id)
    row = active.values(*metadata_claims.KINDS).first()
    if row is not None and (unknown := find_unknown(metadata_claims.KINDS, row)):
        return _unknown_value(f"{unknown} of its execution")
    if facts.open_item is not OpenItem.PENDING:
        return None
    if facts.unknown:
        return _unknown_value(facts.unknown)
    stranded = _find_stranded(facts, pools=pools)
    return _without_worker(stranded) if stranded else None


def _find_unknown(facts: Facts, decision: Decision) -> str:
    """A value of the manifest, or of something open of it, that only a newer version knows; empty if there is none."""
    if facts.unknown:
        return facts.unknown
    if facts.next_run_at is not None:
        return ""  # nothing is open
    found = load_unknown_items([facts.manifest_id], with_rows=decision.reason is Reason.NO_ALARM)
    return found.get(facts.manifest_id, "")


def _unknown_value(unknown: str) -> tuple[str, str]:
    return str(Reason.UNKNOWN_VALUE), f"this version does not know the {unknown}; {LEFT_TO_NEWER}"


def _why_join_waits(facts: Facts, otherwise: str) -> tuple[str, str]:
    """How a join stands in the runs in which it waits; else how it stood in the last one, if that was short."""
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


def explain_row(row: WorkQueue, *, pools: Collection[Pool], now: datetime) -> Explanation:
    """Why a row of the queue waits, or that it waits no longer; ``pools`` as above."""
    if unknown := find_unknown_of(work_queue.KINDS, row):
        return Explanation(row.name, *_unknown_value(unknown), None)
    if row.status != QueueStatus.QUEUED:
        became = f"it became execution {row.execution_id}" if row.execution_id else row.cancel_reason or "cancelled"
        return Explanation(row.name, row.status, became, None)
    known = WorkQueue.objects.with_owners().filter(id=row.id)
    explained = explain_rows(known, pools=pools, now=now, is_thorough=True)
    return explained[0] if explained else Explanation(row.name, "gone", "it was removed just now", None)


def explain_rows(
    rows: Iterable[WorkQueue], *, pools: Collection[Pool], now: datetime, is_thorough: bool = False
) -> list[Explanation]:
    """Why each of these waiting rows, read with their owners, waits.

    A thorough answer also counts the rows ahead of one that waits only for its turn, which costs a query per row.
    """
    load = _Load()
    explained = []
    for row in rows:
        unknown = _unknown_of_row(row)
        code, reason = _unknown_value(unknown) if unknown else _why_held(row, load, pools=pools, now=now)
        if is_thorough and code == Reason.QUEUED:
            reason += f" and {WorkQueue.objects.in_line().ahead_of(row).count()} rows are ahead of it"
        explained.append(Explanation(row.name, code, reason, None))
    return explained


def _why_waiting(facts: Facts, *, pools: Collection[Pool], now: datetime) -> tuple[str, str]:
    rows = WorkQueue.objects.with_owners().queued().filter(manifest=facts.manifest_id)
    for explained in explain_rows(rows, pools=pools, now=now, is_thorough=True):
        return explained.code, explained.reason
    return str(Reason.PENDING), "it was dispatched just now"


def _find_stranded(facts: Facts, *, pools: Collection[Pool]) -> str | None:
    """The workflow that it was dispatched for, if no live process can run it; recall will take it back."""
    workflows = {name for pool in pools for name in pool.workflows}
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
        """How many jobs run at this moment, as MAX_ACTIVE_JOBS counts them."""
        return Metadata.objects.count_active().running(Process.objects.slots_by_process())


def _why_held(row: WorkQueue, load: _Load, *, pools: Collection[Pool], now: datetime) -> tuple[str, str]:
    """Why a queued row is not dispatched, checked in the order in which dispatch asks."""
    if row.put_aside_at is not None:
        return str(Reason.PUT_ASIDE), _why_put_aside(DISPATCHING, row.put_aside_at, row.put_aside_reason)
    if row.not_before is not None and row.not_before > now:
        return "waits_for_time", f"attempt {row.attempt} waits until {row.not_before.isoformat()}"
    if row.manifest is None and row.manifest_id is not None:
        return "manifest_gone", "its manifest was deleted outside the engine; cancel it"
    if (obstacle := find_obstacle_to_row(_standing_of(row), Source(row.source))) is not None:
        return obstacle.value, RULES[obstacle].held_row_in_words
    if not are_taken(row.workflow, row.queue, pools=pools):
        return _why_not_taken(row, pools)
    return _why_no_room(row, load)


def _why_not_taken(row: WorkQueue, pools: Collection[Pool]) -> tuple[str, str]:
    if any(row.workflow in pool.workflows for pool in pools):
        return "no_worker_for_queue", no_worker_takes(row.queue, pools=pools)
    return _without_worker(row.workflow)


def _why_put_aside(what: PutAside, at: datetime, why: str) -> str:
    minutes = get_config().reconcile_interval / 60
    return (
        f"it could not be {what.done} at {at:%Y-%m-%d %H:%M:%S %Z}: {why}. Correct the cause. It is tried again "
        f"{minutes:g} minutes after that, or at once if you {what.remedy}"
    )


def _unknown_of_row(row: WorkQueue) -> str:
    of_manifest = find_unknown_of(MANIFEST_KINDS, row.manifest) if row.manifest is not None else ""
    return find_unknown_of(work_queue.KINDS, row) or (of_manifest and f"{of_manifest} of its manifest")


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
    is_stopped = bool(facts.unknown) or find_obstacle(facts) is not None or facts.open_item is OpenItem.DEAD_LETTER
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
