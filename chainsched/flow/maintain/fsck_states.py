"""Part of fsck: the rules for the run-time states of manifests.

Reads:  states, and the facts behind their alarms.
Writes: with ``repair`` alarms, execution numbers, the parts of items and missing states; second open items.
Next:   fsck reports.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, TypeVar

from django.db.models import Exists, F, OuterRef, Q

from chainsched.db import bulk
from chainsched.db.chunks import chunks
from chainsched.db.fields import knows
from chainsched.db.locks import Patience
from chainsched.domain import due
from chainsched.domain.due import Facts
from chainsched.domain.obstacles import find_obstacle, find_obstacle_to_row
from chainsched.domain.results import Finding
from chainsched.domain.states import DeadLetterStatus, ScheduleType, Source
from chainsched.exceptions import InvalidSchedule
from chainsched.flow.announce import announce_letters
from chainsched.flow.run.alarm import arm
from chainsched.flow.run.tokens import TokenLedger, cancel_queued
from chainsched.flow.schedule.parent_marks import set_parent_marks
from chainsched.flow.transactions import in_parts, report_unwritable, transact
from chainsched.models import DeadLetter, Manifest, ManifestState, Metadata, WorkQueue
from chainsched.models.manifest import KINDS
from chainsched.models.manifest_facts import load_facts, load_unknown_items
from chainsched.signals import dead_letter_resolved

PAGE = 1000
SECOND_ITEM = "its manifest had another open item"

T = TypeVar("T")

Page = Callable[..., list[int]]


def no_alarm_is_missing(check: str, *, now: datetime, repair: bool) -> Iterator[Finding]:
    """A manifest that has no open item, and no obstacle to its next run, has an alarm."""
    for page in _pages(ManifestState.objects.without_alarm):
        for found in _each_part(page, functools.partial(_find_without_alarm, now=now, repair=repair)):
            for external_id, at in found.items():
                evidence = f"it has no alarm although it has no open item; it should have one for {at.isoformat()}"
                yield Finding(check, external_id, evidence, is_repaired=repair)


def _each_part(page: Sequence[int], look: Callable[[Sequence[int]], T]) -> Iterator[T]:
    """The results of a page; a manifest that cannot be read or written keeps no other from being repaired."""
    parts = in_parts(page, look)
    report_unwritable("Manifest %d cannot be checked or repaired: %s", parts.refused + parts.busy)
    yield from parts.results


def _find_without_alarm(manifest_ids: Sequence[int], *, now: datetime, repair: bool) -> dict[str, datetime]:
    """The alarms that are missing, by external id; manifests that another transaction holds are left to it."""
    with transact(Patience.SHORT):
        facts = load_facts(ManifestState.objects.lock_without_alarm(manifest_ids))
        wrong = {known.manifest_id: at for known in facts if (at := _alarm(known, now=now)) is not None}
        for manifest_id in _with_unknown_items(wrong):
            del wrong[manifest_id]
        if repair:
            arm(wrong, now=now)
    return {known.external_id: wrong[known.manifest_id] for known in facts if known.manifest_id in wrong}


def _with_unknown_items(manifest_ids: Collection[int]) -> set[int]:
    """Those of these with something open in a state that only a newer version knows; mostly none are given."""
    ids = list(manifest_ids)
    return set(load_unknown_items(ids, with_rows=True)) if ids else set()


def no_alarm_is_forbidden(check: str, *, now: datetime, repair: bool) -> Iterator[Finding]:
    """A manifest that has an open item, or may not run, has no alarm."""
    for page in _pages(ManifestState.objects.with_alarm):
        with transact():
            facts = load_facts(ManifestState.objects.lock(page))
            wrong = [known for known in facts if known.next_run_at is not None and _alarm(known, now=now) is None]
            if repair:
                arm([known.manifest_id for known in wrong], now=now)
        for known in wrong:
            why = known.open_item or find_obstacle(known) or "nothing is due"
            evidence = f"it has an alarm for {known.next_run_at:%Y-%m-%d %H:%M:%S %Z} although: {why}"
            yield Finding(check, known.external_id, evidence, is_repaired=repair)


def _alarm(facts: Facts, *, now: datetime) -> datetime | None:
    """The alarm that the manifest should have; its present one if its schedule cannot be computed."""
    try:
        return due.alarm(facts, now=now).next_run_at
    except InvalidSchedule:
        return facts.next_run_at


def parts_are_right(check: str, *, now: datetime, repair: bool) -> Iterator[Finding]:
    """Joins wait exactly for the items that may run: none that an obstacle or a dead letter stops, all others."""
    evidence = "joins wait for an item that may not run, or do not wait for one that may"
    for page in _pages(_with_items):
        for found in _each_part(page, functools.partial(_find_wrong_parts, now=now, repair=repair)):
            for external_id in found:
                yield Finding(check, external_id, evidence, is_repaired=repair)


def _find_wrong_parts(manifest_ids: Sequence[int], *, now: datetime, repair: bool) -> list[str]:
    """The external ids of manifests with a wrong part; those that another transaction holds are left to it."""
    with transact(Patience.SHORT):
        facts = load_facts(ManifestState.objects.lock_free(manifest_ids))
        rows = {row.manifest_id: row for row in WorkQueue.objects.lock_items([it.manifest_id for it in facts])}
        wrong = [known for known in facts if _has_wrong_part(known, rows.get(known.manifest_id))]
        if repair:
            arm([known.manifest_id for known in wrong], now=now)
    return [known.external_id for known in wrong]


def _with_items(*, after: int, limit: int) -> list[int]:
    """Manifests with an item that is due or queued in a run, in pages by id."""
    queued = WorkQueue.objects.queued().known().filter(run__isnull=False, manifest__gt=after)
    due = ManifestState.objects.filter(due_run__isnull=False, manifest__gt=after)
    ids = {
        *queued.order_by("manifest_id").values_list("manifest_id", flat=True)[:limit],
        *due.order_by("manifest_id").values_list("manifest_id", flat=True)[:limit],
    }
    return sorted(id_ for id_ in ids if id_ is not None)[:limit]


def _has_wrong_part(known: Facts, row: WorkQueue | None) -> bool:
    if known.unknown:
        return False
    is_due_wrong = bool(known.due_item.tokens) and known.due_item.has_tokens is known.is_stopped
    is_row_wrong = row is not None and row.has_tokens is not (find_obstacle_to_row(known, Source(row.source)) is None)
    return is_due_wrong or is_row_wrong


def numbers_are_in_order(check: str, *, now: datetime, repair: bool) -> Iterator[Finding]:
    """A dependent's due execution is not before its covered one, nor after its parent's newest outcome."""
    wrong = _out_of_order()
    for part in chunks(sorted(wrong)):
        if repair:
            with transact():
                ManifestState.objects.lock(part)
                rows = [_reordered(id_, *numbers) for id_, numbers in _out_of_order(part).items()]
                bulk.update(ManifestState, rows, key="manifest")
                arm(part, now=now)
        names = _names(part)
        for manifest_id in part:
            due_for, covered, newest = wrong[manifest_id]
            evidence = f"due {due_for}, covered {covered}, its parent's newest outcome {newest}"
            yield Finding(check, names[manifest_id], evidence, is_repaired=repair)


def _out_of_order(manifest_ids: Sequence[int] | None = None) -> dict[int, tuple[int, int, int]]:
    newest = F("manifest__depends_on__state__finished_execution")
    rows = ManifestState.objects.filter(
        knows(KINDS, path="manifest__"),
        Q(due_execution__lt=F("covered_execution")) | Q(due_execution__gt=newest),
        manifest__schedule_type=ScheduleType.DEPENDENT,
        manifest__depends_on__isnull=False,
        manifest__is_join=False,
    )
    if manifest_ids is not None:
        rows = rows.filter(manifest__in=manifest_ids)
    columns = ("manifest_id", "due_execution", "covered_execution")
    found = rows.order_by("manifest_id").values_list(*columns, "manifest__depends_on__state__finished_execution")
    return {manifest_id: (due_for, covered, done) for manifest_id, due_for, covered, done in found}


def _reordered(manifest_id: int, due_for: int, covered: int, newest: int) -> dict[str, int]:
    """Numbers in order. No run repeats: covered executions stay covered, up to the parent's newest outcome."""
    due_for = min(max(due_for, covered), newest)
    return {"manifest": manifest_id, "due_execution": due_for, "covered_execution": min(covered, due_for)}


def at_most_one_open_item(check: str, *, now: datetime, repair: bool) -> Iterator[Finding]:
    """A manifest has at most one of: a queued row, a pending or running execution, an awaiting letter."""
    for part in chunks(sorted(_with_several_items())):
        if repair:
            with transact():
                ManifestState.objects.lock(part)
                _close_second_items(part, now=now)
                arm(part, now=now)
        names = _names(part)
        for manifest_id in part:
            evidence = "it has more than one of: a queued row, an active execution, an awaiting dead letter"
            yield Finding(check, names[manifest_id], evidence, is_repaired=repair)


def _with_several_items() -> set[int]:
    found = _queued_with_other_items().union(_awaiting_with_active_runs(), all=True)
    return {id_ for id_ in found if id_ is not None}


def _queued_with_other_items() -> Any:
    """The manifests of rows that wait although their manifest has another open item."""
    active = Metadata.objects.active().known().filter(manifest=OuterRef("manifest_id"))
    letters = DeadLetter.objects.awaiting().filter(manifest=OuterRef("manifest_id"))
    queued = WorkQueue.objects.queued().known()
    rows = queued.filter(Q(Exists(active)) | Q(Exists(letters)), manifest__isnull=False)
    return rows.order_by().values_list("manifest_id", flat=True)


def _awaiting_with_active_runs() -> Any:
    """The manifests of letters that wait for a decision although their manifest has an active run."""
    active = Metadata.objects.active().known().filter(manifest=OuterRef("manifest_id"))
    letters = DeadLetter.objects.awaiting().filter(Exists(active), manifest__isnull=False)
    return letters.order_by().values_list("manifest_id", flat=True)


def _close_second_items(manifest_ids: Sequence[int], *, now: datetime) -> None:
    """Keep active runs; cancel queued rows with another open item, and close letters with an active run."""
    queued = [id_ for id_ in _queued_with_other_items().filter(manifest__in=manifest_ids) if id_ is not None]
    ledger = TokenLedger()
    cancel_queued(queued, reason=SECOND_ITEM, ledger=ledger)
    ledger.write()
    active = [id_ for id_ in _awaiting_with_active_runs().filter(manifest__in=manifest_ids) if id_ is not None]
    letters = DeadLetter.objects.awaiting().filter(manifest__in=active)
    announce_letters(dead_letter_resolved, list(letters.values_list("id", flat=True)))
    letters.update(status=DeadLetterStatus.ACKNOWLEDGED, resolved_at=now, note=f"Closed by fsck: {SECOND_ITEM}.")


def every_manifest_has_a_state(check: str, *, now: datetime, repair: bool) -> Iterator[Finding]:
    """No manifest lacks its state, the row that every stage locks."""
    stateless = list(Manifest.objects.filter(state__isnull=True).order_by("id").values_list("id", flat=True))
    for part in chunks(stateless):
        if repair:
            with transact():
                rows = [{"manifest": id_} for id_ in part]
                bulk.insert(ManifestState, rows, returning=("manifest",), skip_conflicts=True)
                ManifestState.objects.lock(part)
                set_parent_marks(part)
                arm(part, now=now)
        for name in _names(part).values():
            yield Finding(check, name, "it has no run-time state, so the manager cannot find it", is_repaired=repair)


def _pages(read: Page) -> Iterator[list[int]]:
    last_id = 0
    while page := read(after=last_id, limit=PAGE):
        last_id = page[-1]
        yield page


def _names(manifest_ids: Iterable[int]) -> dict[int, str]:
    return dict(Manifest.objects.filter(id__in=list(manifest_ids)).order_by("id").values_list("id", "external_id"))
