"""The lease of a running process: its row, and the heartbeat that renews it."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from django.db import DatabaseError, InterfaceError, connections

from chainsched.conf import get_config
from chainsched.db.clock import database_now
from chainsched.domain.routing import Pool
from chainsched.models import Process
from chainsched.runtime.support.clock_skew import skew
from chainsched.runtime.support.hearing import hearing

logger = logging.getLogger(__name__)

FIRST_BEAT = 1.0


class Lease:
    """A row in Process, renewed by a thread with a connection of its own.

    ``on_loss`` is called, from that thread, when a reaper has taken the lease or when, by this host's own monotonic
    clock, a reaper may take it any moment: from then on no result of this process counts.
    """

    def __init__(
        self,
        kind: str,
        *,
        pool: Pool,
        slots: int | None = None,
        on_loss: Callable[[], None],
        turns: Callable[[], Mapping[str, datetime]] = dict,
        signals: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._on_loss = on_loss
        self._turns = turns
        self._signals = signals
        self._stopping = threading.Event()
        self._renewed_at = time.monotonic()
        now = database_now()
        self.process = Process.objects.create(
            kind=kind,
            host=socket.gethostname(),
            pid=os.getpid(),
            workflows=list(pool.workflows),
            queues=None if pool.queues is None else list(pool.queues),
            slots=slots,
            started_at=now,
            heartbeat_at=now,
        )
        self._thread = threading.Thread(target=self._run, name="chainsched-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def trusted_until(self) -> float:
        """The monotonic time at which a reaper may take the lease, less the time that it takes to stop all jobs."""
        config = get_config()
        return self._renewed_at + config.process_expiry - min(config.heartbeat_interval, config.process_expiry / 4)

    def beat(self) -> bool:
        """Renew the lease, and write when each loop last turned and which signals wait; False if the lease is lost.

        Whether it has expired is decided by this host's clock: the database's may jump, for all processes at once.
        """
        asked_at = time.monotonic()
        is_late = asked_at >= self.trusted_until()
        if is_late:
            return False
        now = skew.database_now()
        is_kept = Process.objects.beat(
            self.process,
            now=now,
            turns=self._turns(),
            deaf_since=hearing.deaf_since(now),
            signals=self._signals(),
        )
        if not is_kept:
            return False
        self._renewed_at = asked_at
        return True

    def stop(self) -> None:
        """Release the lease, so that no reaper has to wait until it expires."""
        self._stopping.set()
        self._thread.join(get_config().heartbeat_interval)
        mine = Process.objects.trusted().filter(pk=self.process.pk)
        mine.update(stopped_at=database_now(), signals=dict(self._signals()))

    def abandon(self) -> None:
        """Stop renewing it; a reaper closes its executions."""
        self._stopping.set()

    def _run(self) -> None:
        try:
            # The first beat comes early: it writes that the loops turn.
            pause = min(FIRST_BEAT, get_config().heartbeat_interval)
            while not self._stopping.wait(pause):
                if not self._is_kept():
                    self._on_loss()
                    return
                pause = get_config().heartbeat_interval
        finally:
            connections.close_all()

    def _is_kept(self) -> bool:
        try:
            return self.beat() or self._stopping.is_set()
        except (DatabaseError, InterfaceError):
            connections.close_all()
            return time.monotonic() < self.trusted_until()
