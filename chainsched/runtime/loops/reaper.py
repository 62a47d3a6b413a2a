"""The loop that closes or requeues executions of lost processes, and pauses when the clock cannot be trusted."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime

from chainsched.conf import get_config
from chainsched.flow.maintain.reap import reap
from chainsched.flow.maintain.recall import Recalled, recall
from chainsched.runtime.loops.poller import Turn
from chainsched.servers import get_server

logger = logging.getLogger(__name__)


class Reaper:
    """Reaps, unless the database stood still or its clock jumped: then the heartbeat of every process looks old.

    For one expiry after that, no process is declared lost and no execution that a process may still run is recalled,
    so that live processes can send a heartbeat. Nor are executions recalled in the first expiry of this loop:
    processes that start together with it, as after a full outage, first have to write which workflows they can run.
    """

    def __init__(self, *, began_at: float | None = None) -> None:
        self._began_at = time.monotonic() if began_at is None else began_at
        self._last: tuple[float, datetime] | None = None
        self._holds_until = 0.0

    def turn(self, now: datetime) -> Turn:
        if self._is_held_back(now):
            return Turn()
        reaped = reap(now=now)
        # After reaping, which makes claims pending that perhaps no other process can run.
        recalled = recall(workflows=get_server().recent_workflows(now=now), now=now) if self._is_settled else Recalled()
        did = reaped.lost + reaped.released + recalled.queued + recalled.cancelled
        return Turn(did=did, has_more=reaped.has_more or recalled.has_more)

    @property
    def _is_settled(self) -> bool:
        return time.monotonic() - self._began_at >= get_config().process_expiry

    def _is_held_back(self, now: datetime) -> bool:
        here = time.monotonic()
        if self._last is not None and self._has_stood_still(here, now):
            logger.warning(
                "The database stood still or its clock jumped; no process is declared lost for %.0f s.",
                get_config().process_expiry,
            )
            self._holds_until = here + get_config().process_expiry
        self._last = here, now
        return here < self._holds_until

    def _has_stood_still(self, here: float, now: datetime) -> bool:
        if self._last is None:
            return False
        config = get_config()
        elapsed = here - self._last[0]
        by_its_clock = (now - self._last[1]).total_seconds()
        tolerance = max(config.reap_interval, config.process_expiry / 4)
        return abs(by_its_clock - elapsed) > tolerance or elapsed > config.reap_interval + tolerance


def make_turn() -> Callable[[datetime], Turn]:
    """The turns of one process."""
    return Reaper().turn
