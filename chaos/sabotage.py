"""Ways to switch off guards, in the running process or in the database.

Rare races are given time: a pause at the place that loses its guard makes the outcome certain, and is harmless while
the guard is on.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.db import connection, connections

from chainsched.conf import get_config
from chainsched.db import audit_guard, bulk
from chainsched.domain import joins, outcomes
from chainsched.domain.due import Alarm, Facts
from chainsched.domain.joins import Standing
from chainsched.flow.maintain import reap
from chainsched.flow.run import activate, alarm, dispatch, enqueue, evaluate, fold_notes, hand_on, record
from chainsched.flow.run.consume import Due
from chainsched.flow.run.end_rows import closed_rows
from chainsched.models import JoinState, Metadata, NamedLock, WorkQueue
from chainsched.models.join_state import JoinStateQuerySet
from chainsched.models.manifest_state import ManifestStateQuerySet
from chainsched.models.metadata import Attempt, MetadataQuerySet
from chainsched.models.named_lock import NamedLockQuerySet
from chainsched.runtime.loops import manager, poller
from chainsched.runtime.loops.poller import Poller
from chainsched.runtime.process.lease import Lease
from chainsched.runtime.process.signal_thread import SignalThread
from chainsched.runtime.workers import fork_server, process_runner
from chainsched.runtime.workers.child_main import ChildProcess
from chainsched.runtime.workers.fork_server import _ForkServerProcess
from chainsched.runtime.workers.protocol import CHUNK, Decoder
from chainsched.runtime.workers.timeouts import Timeouts
from chainsched.runtime.workers.worker import Worker

MOMENT = 0.3
HOUR = 3600


def dispatch_without_lock() -> None:
    def look(self: NamedLockQuerySet, name: str, **_: Any) -> NamedLock:
        return self.get_or_create(name=name)[0]

    _patch(NamedLockQuerySet, "hold", look)
    _patch(dispatch, "_create", _slowed(dispatch._create))


def activate_without_fence() -> None:
    _ignore_lost_lease()
    _patch(activate, "_check_fence", _nothing)


def overwrite_ended_rows() -> None:
    def close_any(verdicts: Any, *, now: Any) -> None:
        for rows in closed_rows(verdicts, now=now):
            bulk.update_columns(Metadata, rows)

    def attempts_of_anyone(execution_ids: Any, **_: Any) -> list[Attempt]:
        return Metadata.objects.lock_attempts(execution_ids)

    _ignore_lost_lease()
    _patch(record, "_attempts", attempts_of_anyone)
    _patch(record, "_may_close", lambda *_, **__: True)
    _patch(record, "_close", close_any)


def _ignore_lost_lease() -> None:
    """A process that does not notice that its lease is lost reaches the fence each time."""

    def beat_and_ignore(self: Lease) -> bool:
        self.beat()
        return True

    _patch(Lease, "_is_kept", beat_and_ignore)
    _patch(Lease, "trusted_until", lambda _: time.monotonic() + HOUR)


def drop_trigger() -> None:
    with connection.schema_editor() as editor:
        audit_guard.remove(editor)


def reap_the_living() -> None:
    def everything() -> list[Metadata]:
        return list(Metadata.objects.in_progress().filter(started_at__isnull=False).order_by("id"))

    _patch(reap, "_find_orphans", everything)


def forget_dependents() -> None:
    hand = hand_on.hand_on

    def tell_joins_only(*args: Any, **options: Any) -> list[Due]:
        hand(*args, **options)
        return []

    _patch(record, "hand_on", tell_joins_only)


def forget_alarms_of_dependents() -> None:
    write = alarm._write_due

    def write_no_alarms(due: Mapping[int, tuple[Facts, Alarm]]) -> None:
        write({manifest_id: (known, Alarm()) for manifest_id, (known, _) in due.items()})

    _patch(alarm, "_write_due", write_no_alarms)


def cover_nothing() -> None:
    clear = alarm.clear

    def clear_alarm_only(manifest_ids: Any, **options: Any) -> None:
        clear(manifest_ids, **{**options, "is_covering": False})

    _patch(alarm, "clear", clear_alarm_only)


def ignore_open_items() -> None:
    _decide_as_if(open=0)


def ignore_gates() -> None:
    _decide_as_if(is_gated=True)


def _decide_as_if(**facts: Any) -> None:
    """Let joins be decided with these facts, whatever they are."""

    def believed(standing: Standing) -> Standing:
        return replace(standing, **facts)

    _patch(fold_notes, "may_decide", lambda standing, join: joins.may_decide(believed(standing), join))
    _patch(fold_notes, "decide", lambda standing, join, **edges: joins.decide(believed(standing), join, **edges))


def hold_no_tokens() -> None:
    _patch(JoinStateQuerySet, "tokens_for", lambda *_: {})


def settle_nothing() -> None:
    _patch(manager, "settle", _nothing)


def fold_without_lock() -> None:
    def look(self: JoinStateQuerySet, state_ids: Any) -> list[JoinState]:
        return list(self.filter(id__in=state_ids).order_by("id"))

    _patch(JoinStateQuerySet, "lock_free", look)
    _patch(fold_notes, "_add_notes", _slowed(fold_notes._add_notes))


def name_no_further_runs() -> None:
    _patch(dispatch, "_name_further_runs", _nothing)


def retry_nothing() -> None:
    _patch(record, "_retry", _nothing)


def write_no_letters() -> None:
    _patch(record, "_write_letters", _nothing)


def queue_without_lock() -> None:
    def look(self: ManifestStateQuerySet, now: Any, *, limit: int) -> list[int]:
        return list(self.due(now).order_by("next_run_at").values_list("manifest_id", flat=True)[:limit])

    _patch(ManifestStateQuerySet, "lock_due_page", look)
    _patch(evaluate, "enqueue", _slowed(enqueue.enqueue))


def drop_uniqueness() -> None:
    unique = {
        WorkQueue: "chainsched_queue_one_per_manifest",
        Metadata: "chainsched_execution_one_active",
    }
    with connection.schema_editor() as editor:
        for model, name in unique.items():
            (constraint,) = (known for known in model._meta.constraints if known.name == name)
            editor.remove_constraint(model, constraint)


def keep_children_alive() -> None:
    def listen(self: ChildProcess) -> None:
        decoder = Decoder()
        while data := self._end.recv(CHUNK):
            for message in decoder.feed(data):
                self._receive(message)

    send = ChildProcess._send

    def send_if_connected(self: ChildProcess, message: Any) -> None:
        with contextlib.suppress(OSError):
            send(self, message)

    _patch(_ForkServerProcess, "_end_all", _nothing)
    _patch(fork_server, "_prctl", _nothing)
    _patch(ChildProcess, "_listen", listen)
    _patch(ChildProcess, "_send", send_if_connected)


def wait_for_ever() -> None:
    _patch(Timeouts, "_watch_job", _nothing)


def count_exit_as_success() -> None:
    _patch(process_runner, "outcome_of_exit", lambda *_: outcomes.completed(None))


def end_on_trouble() -> None:
    def end(*_: Any) -> float:
        os._exit(1)

    _patch(Poller, "_recover", end)


def hang_on_trouble() -> None:
    def hang(*_: Any) -> float:
        time.sleep(HOUR)
        return 0

    _patch(Poller, "_recover", hang)


def return_running_jobs() -> None:
    real = MetadataQuerySet.unknown_to

    def know_nothing(self: MetadataQuerySet, process: Any, **_: Any) -> list[int]:
        return real(self, process, known=())

    _patch(MetadataQuerySet, "unknown_to", know_nothing)
    look = Worker._return_unknown_claims

    def doubt_all(self: Worker, now: datetime) -> None:
        """Take all that it has for taken in a transaction without an answer, once in the length of a lease."""
        since = self._claims_checked_at or now
        if (now - since).total_seconds() >= get_config().process_expiry:
            self._claims_checked_at, self._is_claim_uncertain = now, True
        look(self, now)

    _patch(Worker, "_return_unknown_claims", doubt_all)


def forget_activations() -> None:
    def forget(requests: Any, **_: Any) -> dict[int, int]:
        return {request.manifest_id: 0 for request in requests}

    _patch(activate, "enqueue", forget)


def call_receivers_at_once() -> None:
    _patch(SignalThread, "start", _nothing)


def wait_for_held_manifests() -> None:
    def lock_due_page(self: ManifestStateQuerySet, now: Any, *, limit: int) -> list[int]:
        rows = self.due(now).order_by("next_run_at").select_for_update(no_key=True)
        return list(rows.values_list("manifest_id", flat=True)[:limit])

    _patch(ManifestStateQuerySet, "lock_due_page", lock_due_page)


def give_up_at_refused_rows() -> None:
    for stage in (evaluate, dispatch):
        _patch(stage, "is_about_rows", lambda _: False)


def keep_broken_connections() -> None:
    class Kept:
        close_all = staticmethod(_nothing)

        def __getitem__(self, alias: str) -> Any:
            return connections[alias]

    _patch(poller, "connections", Kept())


def _patch(owner: Any, name: str, replacement: Any) -> None:
    if not hasattr(owner, name):
        raise AttributeError(f"{owner!r} has no {name!r}: the code that a guard switches off has another name now")
    setattr(owner, name, replacement)


def _slowed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, a moment later."""

    def slowed(*arguments: Any, **options: Any) -> Any:
        time.sleep(MOMENT)
        return function(*arguments, **options)

    return slowed


def _nothing(*_arguments: Any, **_options: Any) -> list[Any]:
    return []
