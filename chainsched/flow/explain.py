"""Beside the stages: say why a manifest is or is not running, with the facts and rules that the turns use.

Reads:  everything that a turn would look at, for one manifest.
Writes: nothing.
Next:   people.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from chainsched.conf import get_config
from chainsched.domain.answers import Explanation
from chainsched.domain.due import Facts, OpenItem, Reason, decide, find_obstacle, timing_of
from chainsched.domain.schedules import next_runs
from chainsched.domain.states import SOURCES_PAST_DISABLED, QueueStatus
from chainsched.exceptions import InvalidSchedule, UnknownManifest
from chainsched.models import ManifestGroup, Metadata, WorkQueue
from chainsched.models.facts import load_facts

PREVIEW = 10


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
    return Explanation(
        external_id=facts.external_id,
        code=code,
        reason=reason,
        next_run_at=facts.next_run_at,
        next_runs=_preview(facts, now=now),
    )


def explain_row(row: WorkQueue, *, workflows: Collection[str], now: datetime) -> Explanation:
    """What a row of the queue waits for, or that it waits no longer; ``workflows`` as above."""
    name = row.manifest_external_id or row.workflow
    if row.status != QueueStatus.QUEUED:
        became = f"it became execution {row.execution_id}" if row.execution_id else row.cancel_reason or "cancelled"
        return Explanation(name, row.status, became, None)
    found = load_facts([row.manifest_id]) if row.manifest_id else []
    code, reason = _why_held(row, found[0] if found else None, workflows=workflows, now=now)
    return Explanation(name, code, reason, None)


def _why_waiting(facts: Facts, *, workflows: Collection[str], now: datetime) -> tuple[str, str]:
    row = WorkQueue.objects.queued().filter(manifest=facts.manifest_id).first()
    if row is None:
        return str(Reason.PENDING), "it was dispatched this very moment"
    return _why_held(row, facts, workflows=workflows, now=now)


def _why_held(row: WorkQueue, facts: Facts | None, *, workflows: Collection[str], now: datetime) -> tuple[str, str]:
    """What keeps a queued row from being dispatched, in the order in which the dispatcher asks."""
    if row.not_before is not None and row.not_before > now:
        return "waits_for_time", f"attempt {row.attempt} waits until {row.not_before.isoformat()}"
    if facts is None and row.manifest_id is not None:
        return "manifest_gone", "its manifest was deleted behind the engine's back; cancel it"
    if facts is not None and not facts.is_enabled and row.source not in SOURCES_PAST_DISABLED:
        return str(Reason.DISABLED), "it is queued, but the manifest is disabled; enable or trigger it"
    if not _is_group_enabled(row, facts):
        return str(Reason.GROUP_DISABLED), "it is queued, but its group is disabled"
    if row.workflow not in workflows:
        return "no_capable_worker", f"no live process can run {row.workflow!r}; start a worker that knows it"
    return _why_no_room(row)


def _is_group_enabled(row: WorkQueue, facts: Facts | None) -> bool:
    if facts is not None:
        return facts.is_group_enabled
    return not ManifestGroup.objects.filter(id=row.group_id or 0, is_enabled=False).exists()


def _why_no_room(row: WorkQueue) -> tuple[str, str]:
    active = Metadata.objects.active_by_group()
    limit = get_config().max_active_jobs
    if limit is not None and sum(active.values()) >= limit:
        return "no_room", f"{sum(active.values())} jobs are active; MAX_ACTIVE_JOBS allows {limit}"
    group = ManifestGroup.objects.filter(id=row.group_id or 0).first()
    used = active.get(row.group_id, 0)
    if group is not None and group.max_active_jobs is not None and used >= group.max_active_jobs:
        return "group_full", f"{used} jobs of group {group.name!r} are active; it allows {group.max_active_jobs}"
    ahead = WorkQueue.objects.queued().ahead_of(row).count()
    return str(Reason.QUEUED), f"it is queued and {ahead} rows are ahead of it"


def _preview(facts: Facts, *, now: datetime) -> tuple[datetime, ...]:
    """The next runs that its schedule alone would make, if nothing forbids them."""
    is_stopped = find_obstacle(facts) is not None or facts.open_item is OpenItem.DEAD_LETTER
    if is_stopped or not facts.schedule_type.is_timed:
        return ()
    after = now
    if facts.interval_seconds is not None and facts.next_run_at is not None:
        # An interval counts from the alarm that is set, not from the moment somebody asks.
        after = facts.next_run_at - timedelta(seconds=facts.interval_seconds)
    try:
        return tuple(next_runs(timing_of(facts), after=after, count=PREVIEW))
    except InvalidSchedule:
        return ()
