"""The identity of a running process and the heartbeat that keeps it alive."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from django.db import DatabaseError, InterfaceError, connections

from chainsched.conf import get_config
from chainsched.models import Process
from chainsched.models.clock import database_now

logger = logging.getLogger(__name__)


class Lease:
    """A row in Process, renewed by a thread with a connection of its own.

    ``on_loss`` is called, from that thread, when others took the lease or when, by this host's own monotonic clock,
    they may take it any moment: from then on nothing that this process does counts.
    """

    def __init__(self, kind: str, *, workflows: Sequence[str], on_loss: Callable[[], None]) -> None:
        self._on_loss = on_loss
        self._stopping = threading.Event()
        self._renewed_at = time.monotonic()
        now = database_now()
        self.process = Process.objects.create(
            kind=kind,
            host=socket.gethostname(),
            pid=os.getpid(),
            workflows=list(workflows),
            started_at=now,
            heartbeat_at=now,
        )
        self._thread = threading.Thread(target=self._run, name="chainsched-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def beat(self) -> bool:
        """Renew the lease; False if it is gone."""
        asked_at = time.monotonic()
        now = database_now()
        expired_before = now - timedelta(seconds=get_config().process_expiry)
        if not Process.objects.beat(self.process, now=now, expired_before=expired_before):
            return False
        self._renewed_at = asked_at
        return True

    def stop(self) -> None:
        """Give the lease back, so that nobody has to wait for it to run out."""
        self._stopping.set()
        self._thread.join()
        Process.objects.trusted().filter(pk=self.process.pk).update(stopped_at=database_now())

    def _run(self) -> None:
        try:
            while not self._stopping.wait(get_config().heartbeat_interval):
                if not self._is_kept():
                    self._on_loss()
                    return
        finally:
            connections.close_all()

    def _is_kept(self) -> bool:
        try:
            return self.beat()
        except (DatabaseError, InterfaceError) as error:
            connections.close_all()
            silent_for = time.monotonic() - self._renewed_at
            logger.warning("No heartbeat for %.0f s: %s", silent_for, str(error).strip())
            return silent_for + get_config().heartbeat_interval < get_config().process_expiry
