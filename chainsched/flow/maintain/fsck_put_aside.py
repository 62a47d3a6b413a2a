"""Part of fsck: manifests and queue rows that are put aside because they cannot be written; and try them again.

Reads:  states and queue rows that are put aside.
Writes: with ``repair``, and at the pace of the reconciler, their alarms and places in the queue.
Next:   the manager and dispatch, which put them aside again if they still cannot be written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta

from chainsched.conf import get_config
from chainsched.db.chunks import chunks
from chainsched.db.id_in import id_in
from chainsched.db.locks import Patience
from chainsched.db.notify import DISPATCHER
from chainsched.domain.results import Finding
from chainsched.flow.announce import wake
from chainsched.flow.run.alarm import arm
from chainsched.flow.transactions import in_parts, report_unwritable, transact
from chainsched.models import ManifestState, WorkQueue

# Of each kind in one turn of the reconciler: those that fail again cost a few transactions each.
PAGE = 1000


def nothing_is_put_aside(check: str, *, now: datetime, repair: bool) -> Iterator[Finding]:
    """No manifest waits to be queued, and no row to be dispatched, that the database or the code refused."""
    # No more columns than needed: one of the others may be what cannot be read.
    columns = ("manifest_id", "manifest__external_id", "put_aside_reason")
    states = list(ManifestState.objects.aside().known().order_by("manifest_id").values_list(*columns))
    shown = ("manifest_external_id", "workflow", "put_aside_reason")
    rows = list(WorkQueue.objects.aside().known().only(*shown).order_by("id"))
    armed = _try_each([id_ for id_, _, _ in states], _arm, now=now) if repair else set()
    released = _try_each([row.id for row in rows], _release, now=now) if repair else set()
    for id_, external_id, reason in states:
        yield Finding(check, external_id, f"it could not be queued: {reason}", is_repaired=id_ in armed)
    for row in rows:
        evidence = f"it could not be dispatched: {row.put_aside_reason}"
        yield Finding(check, f"queue row {row.id} of {row.name}", evidence, is_repaired=row.id in released)


def try_again(*, now: datetime, limit: int = PAGE) -> int:
    """Let those that have been put aside for one RECONCILE_INTERVAL be tried again, the oldest first; returns how many.

    So a cause that is gone heals by itself, and one that stays costs a try in each interval.
    """
    until = now - timedelta(seconds=get_config().reconcile_interval)
    states = ManifestState.objects.aside().known().filter(put_aside_at__lte=until).order_by("put_aside_at")
    rows = WorkQueue.objects.aside().known().filter(put_aside_at__lte=until).order_by("put_aside_at")
    armed = _try_each(list(states.values_list("manifest_id", flat=True)[:limit]), _arm, now=now)
    released = _try_each(list(rows.values_list("id", flat=True)[:limit]), _release, now=now)
    return len(armed) + len(released)


def _try_each(ids: Sequence[int], act: Callable[[Sequence[int], datetime], set[int]], *, now: datetime) -> set[int]:
    """Those of these that take part again; one that is held, or cannot be written at all, keeps no other waiting."""
    done: set[int] = set()
    for part in chunks(ids):
        parts = in_parts(part, lambda these: act(these, now))
        report_unwritable("%d is put aside and cannot be tried again: %s", parts.unwritable)
        done.update(*parts.results)
    return done


def _arm(manifest_ids: Sequence[int], now: datetime) -> set[int]:
    """Set the alarms of those that are still put aside; the occurrence that could not be queued is due again."""
    with transact(Patience.SHORT):
        free = ManifestState.objects.lock_free(manifest_ids)
        still = set(ManifestState.objects.aside().filter(id_in(manifest=free)).values_list("manifest_id", flat=True))
        arm(still, now=now)
    return still


def _release(row_ids: Sequence[int], _now: datetime) -> set[int]:
    """Let rows that are still put aside take part in dispatch again."""
    with transact(Patience.SHORT):
        still = set(WorkQueue.objects.lock_aside(row_ids))
        WorkQueue.objects.release(still)
        if still:
            wake(DISPATCHER)
    return still
