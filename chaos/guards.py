"""The guards that keep the promises, and how to take each away: the proof that the checker would notice.

Where several layers keep one promise, a guard is all of them: taking away one alone must change nothing. Races that
are rare are given time: a pause at the place that the guard protects makes the outcome certain, and harmless
while the guard is there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.db.models import F, Value

from chainsched.domain import outcomes
from chainsched.flow import activate, arm, dispatch, enqueue, evaluate, reap, record
from chainsched.models import Loop, Manifest, Metadata, WorkQueue, bulk, facts, guard
from chainsched.models.clock import database_now
from chainsched.models.loop import LoopQuerySet
from chainsched.models.manifest_state import ManifestStateQuerySet
from chainsched.models.metadata import Attempt, MetadataQuerySet, Taken
from chainsched.runtime import children, nursery, poller
from chainsched.runtime.child import Child
from chainsched.runtime.children import Children
from chainsched.runtime.lease import Lease
from chainsched.runtime.nursery import _Nurse
from chainsched.runtime.poller import Poller
from chainsched.runtime.wire import CHUNK, Decoder

MOMENT = 0.3
HOUR = 3600
SHORT = ("--jobs", "60", "--minutes", "0.08", "--patience", "20")
CALM = ("--kills", "0", "--freezes", "0", "--restarts", "0")
FROZEN = ("--kills", "0", "--freezes", "3", "--restarts", "0", "--frozen", "family", "--patience", "5")
RESTARTED = ("--kills", "0", "--freezes", "0", "--restarts", "2", "--pauses", "0")
MARATHONS = ("--jobs", "15", "--minutes", "0.2", "--patience", "20", "--kinds", "marathon")
LONGER = ("--jobs", "150", "--minutes", "0.25")


@dataclass(frozen=True, slots=True)
class Guard:
    """A guard: what it protects, how a process and the database are rid of it, and a run that then turns red."""

    protects: str
    switch_off: Callable[[], None]
    run: Sequence[str]
    turns_red: str
    prepare: Callable[[], None] = lambda: None


def _patch(owner: Any, name: str, replacement: Any) -> None:
    if not hasattr(owner, name):
        raise AttributeError(f"{owner!r} has no {name!r}: what a guard takes away is called something else now")
    setattr(owner, name, replacement)


def _slowed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, a moment later."""

    def slowed(*arguments: Any, **options: Any) -> Any:
        time.sleep(MOMENT)
        return function(*arguments, **options)

    return slowed


def _lingering(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, with a moment after it."""

    def lingering(*arguments: Any, **options: Any) -> Any:
        answer = function(*arguments, **options)
        time.sleep(MOMENT)
        return answer

    return lingering


def _nothing(*_arguments: Any, **_options: Any) -> list[Any]:
    return []


def _dispatch_without_lock() -> None:
    def look(self: LoopQuerySet, name: str, **_: Any) -> Loop:
        return self.get_or_create(name=name)[0]

    _patch(LoopQuerySet, "hold", look)
    _patch(dispatch, "_create", _slowed(dispatch._create))


def _claim_without_lock() -> None:
    def claim(self: MetadataQuerySet, *, process: Any, workflows: Any, limit: int, **_: Any) -> list[Taken]:
        ids = list(self.pending().filter(workflow__in=workflows).in_claim_order().values_list("id", flat=True)[:limit])
        time.sleep(MOMENT)
        now = database_now()
        rows = self.active().filter(id__in=ids)
        rows.update(state="in_progress", process=process, claimed_at=now, started_at=now, claims=F("claims") + 1)
        return [Taken(*row) for row in rows.values_list(*Taken._fields)]

    _patch(MetadataQuerySet, "claim", claim)


def _believe_in_the_lease() -> None:
    """A process that does not notice its own end comes to the fence each time."""

    def beat_and_believe(self: Lease) -> bool:
        self.beat()
        return True

    _patch(Lease, "_is_kept", beat_and_believe)
    _patch(Lease, "trusted_until", lambda _: time.monotonic() + HOUR)


def _activate_without_fence() -> None:
    _believe_in_the_lease()
    _patch(activate, "_check_fence", _nothing)


def _write_over_what_ended() -> None:
    def close_any(verdicts: Any, *, now: Any) -> None:
        bulk.update(Metadata, [record._closed_row(verdict, now=now) for verdict in verdicts])

    def closable_by_anyone(finished: Any, **_: Any) -> list[Attempt]:
        return Metadata.objects.lock_attempts(list(finished))

    _believe_in_the_lease()
    _patch(record, "_closable", closable_by_anyone)
    _patch(record, "_close", close_any)


def _drop_trigger() -> None:
    with connection.schema_editor() as editor:
        guard.remove(editor)


def _reap_the_living() -> None:
    def everything() -> list[Metadata]:
        return list(Metadata.objects.in_progress().filter(started_at__isnull=False).order_by("id"))

    _patch(reap, "_find_orphans", everything)


def _forget_dependents() -> None:
    _patch(record, "mark_due", _nothing)


def _cover_nothing() -> None:
    spend = arm.spend

    def spend_alarm_only(manifest_ids: Any, *, now: Any, is_covering: bool) -> None:
        spend(manifest_ids, now=now, is_covering=False)

    _patch(arm, "spend", spend_alarm_only)


def _wait_for_nobody() -> None:
    def never(**_: Any) -> Value:
        return Value(False)

    _patch(facts, "is_waiting_for_siblings", never)
    _patch(enqueue, "is_waiting_for_siblings", never)


def _record_without_lock() -> None:
    def look(self: ManifestStateQuerySet, manifest_ids: Any) -> list[int]:
        own = self.filter(manifest__in=manifest_ids).order_by().values("manifest_id")
        family = Manifest.objects.using(self.db).family_of(manifest_ids)
        return list(self.filter(manifest__in=own.union(*family)).values_list("manifest_id", flat=True))

    _patch(ManifestStateQuerySet, "lock_family", look)
    _patch(record, "arm", _lingering(arm.arm))
    # One at a time, so that siblings run in different workers.
    claim = MetadataQuerySet.claim
    _patch(MetadataQuerySet, "claim", lambda self, **options: claim(self, **{**options, "limit": 1}))


def _retry_nothing() -> None:
    _patch(record, "_retry", _nothing)


def _bury_nothing() -> None:
    _patch(record, "_bury", _nothing)


def _queue_without_lock() -> None:
    def look(self: ManifestStateQuerySet, now: Any, *, limit: int) -> list[int]:
        return list(self.due(now).order_by("next_run_at").values_list("manifest_id", flat=True)[:limit])

    _patch(ManifestStateQuerySet, "lock_due_page", look)
    _patch(evaluate, "enqueue", _slowed(enqueue.enqueue))


def _drop_uniqueness() -> None:
    unique = {
        WorkQueue: "chainsched_queue_one_per_manifest",
        Metadata: "chainsched_execution_one_active",
    }
    with connection.schema_editor() as editor:
        for model, name in unique.items():
            (constraint,) = (known for known in model._meta.constraints if known.name == name)
            editor.remove_constraint(model, constraint)


def _leave_children_behind() -> None:
    def listen(self: Child) -> None:
        decoder = Decoder()
        while data := self._end.recv(CHUNK):
            for message in decoder.feed(data):
                self._hear(message)

    _patch(_Nurse, "_end_all", _nothing)
    _patch(nursery, "_prctl", _nothing)
    _patch(Child, "_listen", listen)


def _wait_for_ever() -> None:
    _patch(Children, "_watch_job", _nothing)


def _take_death_for_success() -> None:
    _patch(children, "death_of", lambda *_: outcomes.completed(None))


def _end_on_trouble() -> None:
    def end(*_: Any) -> float:
        os._exit(1)

    _patch(Poller, "_recover", end)


def _keep_broken_connections() -> None:
    class Kept:
        close_all = staticmethod(_nothing)

    _patch(poller, "connections", Kept)


GUARDS = {
    "dispatch lock": Guard(
        "one turn of the dispatcher at a time, so limits are exact",
        _dispatch_without_lock,
        (*SHORT, *CALM, "--kinds", "nap"),
        "limits hold, by rows",
    ),
    "claim lock": Guard(
        "one worker claims a row: SKIP LOCKED, and the state that the update names",
        _claim_without_lock,
        (*SHORT, *CALM, "--kinds", "nap"),
        "no overlap of a manifest with itself, by witness",
    ),
    "one open item": Guard(
        "a manifest is queued and run once at a time: the manager's row lock, and both unique indexes",
        _queue_without_lock,
        (*SHORT, *CALM, "--kinds", "nap"),
        "completed exactly once",
        _drop_uniqueness,
    ),
    "fence of activations": Guard(
        "a run that was taken from its process activates nothing: the process's own watch, and the check in activate",
        _activate_without_fence,
        (*LONGER, *FROZEN, "--kinds", "dormant"),
        "fenced runs recorded nothing",
    ),
    "fence of results": Guard(
        "what has ended stays as it is: the process's own watch, what record asks for, and the trigger",
        _write_over_what_ended,
        (*LONGER, *FROZEN, "--kinds", "nap"),
        "terminal rows are final",
        _drop_trigger,
    ),
    "reap only the lost": Guard(
        "live processes keep their runs",
        _reap_the_living,
        (*MARATHONS, *CALM, "--patience", "5"),
        "no overlap of a manifest with itself, by witness",
    ),
    "retries": Guard(
        "a failed attempt is made again",
        _retry_nothing,
        (*SHORT, *CALM, "--kinds", "stumble"),
        "nothing is lost",
    ),
    "dead letters": Guard(
        "what is given up leaves a letter",
        _bury_nothing,
        (*SHORT, *CALM, "--kinds", "poison", "nap"),
        "dead letters are for poison",
    ),
    "due dependents": Guard(
        "a success makes dependents due",
        _forget_dependents,
        (*SHORT, *CALM, "--kinds", "chain"),
        "dependents are not lost",
    ),
    "covered dependents": Guard(
        "a dependent runs once for a success",
        _cover_nothing,
        (*SHORT, *CALM, "--patience", "5", "--kinds", "chain"),
        "dependents are not doubled",
    ),
    "waiting for siblings": Guard(
        "a continuation waits for all parts",
        _wait_for_nobody,
        (*SHORT, *CALM, "--kinds", "fan"),
        "continuations wait for all parts",
    ),
    "family lock": Guard(
        "siblings that end together see each other: the states are locked before anything is looked at",
        _record_without_lock,
        (*SHORT, *CALM, "--kinds", "fan"),
        "nothing was mended",
    ),
    "death with the supervisor": Guard(
        "children end with their supervisor: the nursery's last act, the kernel's signal, and the closed socket",
        _leave_children_behind,
        (*MARATHONS, "--kills", "3", "--killed", "supervisor", "--freezes", "0", "--restarts", "0"),
        "no overlap of a manifest with itself, by witness",
    ),
    "timeouts": Guard(
        "a job that stays too long is ended",
        _wait_for_ever,
        (*SHORT, *CALM, "--patience", "5", "--kinds", "overstay"),
        "nothing is left open",
    ),
    "explicit success": Guard(
        "a process that ends without a result has not succeeded",
        _take_death_for_success,
        (*SHORT, *CALM, "--kinds", "poison"),
        "completed exactly once",
    ),
    "surviving loops": Guard(
        "a loop outlives what one turn meets",
        _end_on_trouble,
        (*LONGER, *RESTARTED, "--kinds", "nap"),
        "processes survive",
    ),
    "new connections": Guard(
        "a loop drops a connection that failed",
        _keep_broken_connections,
        (*LONGER, *RESTARTED, "--patience", "8", "--kinds", "nap"),
        "nothing is left open",
    ),
}
