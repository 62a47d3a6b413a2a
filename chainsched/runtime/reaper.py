"""The loop that closes what dead processes left behind, and holds back when the clock cannot be trusted."""

from __future__ import annotations

import logging
import time
from datetime import datetime

from chainsched.conf import get_config
from chainsched.flow.reap import reap
from chainsched.runtime.poller import Turn

logger = logging.getLogger(__name__)


class Reaper:
    """Reaps, unless the database stood still or its clock jumped: then everyone's heartbeat looks old.

    Nobody is declared lost for one expiry after that, so that whoever lives can show it.
    """

    def __init__(self) -> None:
        self._last: tuple[float, datetime] | None = None
        self._holds_until = 0.0

    def turn(self, now: datetime) -> Turn:
        if self._is_held_back(now):
            return Turn()
        reaped = reap(now=now)
        return Turn(did=reaped.lost + reaped.released, has_more=reaped.has_more)

    def _is_held_back(self, now: datetime) -> bool:
        here = time.monotonic()
        if self._last is not None and self._has_stood_still(here, now):
            logger.warning("The database stood still or its clock jumped; nobody is declared lost for a while.")
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
