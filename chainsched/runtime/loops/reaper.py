"""The loop that watches the heartbeats of processes, closes executions of lost ones, and recalls pending ones."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime

from chainsched.conf import get_config
from chainsched.domain.heartbeats import Watch, look_again
from chainsched.flow.maintain.reap import reap
from chainsched.flow.maintain.recall import Recalled, recall
from chainsched.models import Process
from chainsched.runtime.loops.poller import Turn
from chainsched.servers import get_server

logger = logging.getLogger(__name__)


class Reaper:
    """Declares a process lost when it has seen its heartbeat stand still for one expiry, by its own monotonic clock.

    A reaper that has just started, or comes late to a turn because it or the database stood still, has seen nothing
    of the kind, and begins to watch anew. Executions are recalled by the answer of the task server, which may judge by
    the clock of the database: not within one expiry of the start, in which processes that start together, as after a
    full outage, first have to write which workflows they can run; nor after the database stood still or its clock
    jumped, when the heartbeat of each process looks old.
    """

    def __init__(self, *, began_at: float | None = None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._watch = Watch()
        self._last_now: datetime | None = None
        self._recalls_from = (monotonic() if began_at is None else began_at) + get_config().process_expiry

    def turn(self, now: datetime) -> Turn:
        self._look(now)
        reaped = reap(silent=self._watch.silent(expiry=get_config().process_expiry), now=now)
        recalled = self._recall(now)
        did = reaped.lost + recalled.queued + recalled.cancelled
        return Turn(did=did, has_more=reaped.has_more or recalled.has_more)

    def _look(self, now: datetime) -> None:
        """Read the heartbeats, and note whether the database or this process stood still since the last look."""
        asked_at = self._monotonic()
        if self._has_stood_still(asked_at, now):
            expiry = get_config().process_expiry
            logger.warning("This process or the database stood still, or its clock jumped; waiting for %.0f s.", expiry)
            self._recalls_from = asked_at + expiry
        heartbeats = Process.objects.heartbeats()
        self._watch = look_again(
            self._watch, heartbeats, asked_at=asked_at, read_at=self._monotonic(), longest_gap=_longest_gap()
        )
        self._last_now = now

    def _has_stood_still(self, asked_at: float, now: datetime) -> bool:
        if self._watch.looked_at is None or self._last_now is None:
            return False
        by_its_clock = (now - self._last_now).total_seconds()
        has_jumped = abs(by_its_clock - (asked_at - self._watch.looked_at)) > _tolerance()
        return has_jumped or self._watch.is_late(asked_at, longest_gap=_longest_gap())

    def _recall(self, now: datetime) -> Recalled:
        if self._monotonic() < self._recalls_from:
            return Recalled()
        server = get_server()
        recalled = recall(workflows=server.recent_workflows(now=now), now=now)
        if recalled.execution_ids:
            server.forget(recalled.execution_ids)
        return recalled


def _tolerance() -> float:
    config = get_config()
    return max(config.reap_interval, config.process_expiry / 4)


def _longest_gap() -> float:
    """The longest time between two looks that belong together, in seconds."""
    return get_config().reap_interval + _tolerance()


def make_turn() -> Callable[[datetime], Turn]:
    """The turns of one process."""
    return Reaper().turn
