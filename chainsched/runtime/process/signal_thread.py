"""The thread of a scheduler or worker that calls the project's receivers, so that none holds up a loop or a lease."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

from django.db.models import Model

from chainsched.flow.announce import Announcement, send_by, send_now
from chainsched.flow.transactions import TRANSIENT
from chainsched.runtime.process.signal_queue import MAX_ROWS, Part, SignalQueue
from chainsched.runtime.support.db_outage import outage
from chainsched.runtime.support.deadlines import seconds_until
from chainsched.runtime.workers.connections import close_all, renew

logger = logging.getLogger(__name__)

# Between two attempts to load rows while the database is away.
PAUSE = 1.0
NAME = "signals"


class SignalThread:
    """Sends the signals of this process one after the other, over a database connection of its own."""

    def __init__(self, *, max_rows: int = MAX_ROWS) -> None:
        self._queue = SignalQueue(max_rows=max_rows)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chainsched-signals", daemon=True)

    def start(self) -> None:
        """Send all signals of this process from now on."""
        self._thread.start()
        send_by(self._queue.put)

    def as_facts(self) -> dict[str, Any]:
        """How many signals wait and for how long, and how many were dropped; empty if there is nothing to report."""
        return self._queue.as_facts()

    def drain(self, deadline: float) -> None:
        """Send the signals that wait, until this monotonic time, and end; those that are left are dropped."""
        if not self._thread.is_alive():
            return
        self._queue.end()
        self._thread.join(seconds_until(deadline))
        send_by(send_now)
        self._is_over.set()
        if unsent := self._queue.drop_all():
            logger.error("%d signals were not sent before this process had to stop; they are dropped.", unsent)

    def _run(self) -> None:
        try:
            while (part := self._queue.first()) is not None and not self._is_over.is_set():
                self._deliver(part)
        finally:
            close_all()

    def _deliver(self, part: Part) -> None:
        try:
            rows = self._load(part.announcement)
        except Exception:
            logger.exception("Rows could not be loaded for %d signals; they are dropped.", part.left)
            self._queue.remove(part, is_dropped=True)
            return
        for row in rows:
            if self._is_over.is_set():
                return
            self._send(part.announcement, row)
            self._queue.note_sent(part)
        if not self._is_over.is_set():
            self._queue.remove(part)
        # A receiver may leave a transaction open.
        renew()

    def _load(self, announcement: Announcement) -> Sequence[Model]:
        """The rows; none if this process has to stop before the database replies."""
        is_retry = False
        while not self._is_over.is_set():
            try:
                rows = announcement.load()
            except TRANSIENT as error:
                close_all()
                # The first may have failed because its connection broke while it was idle.
                if is_retry:
                    outage.begin(error, at=NAME)
                    self._is_over.wait(PAUSE)
                is_retry = True
            else:
                outage.end(at=NAME)
                return rows
        return []

    @staticmethod
    def _send(announcement: Announcement, row: Model) -> None:
        try:
            announcement.send(row)
        except BaseException:
            # Django has logged every Exception; this is another error, for instance from a receiver's sys.exit().
            logger.exception("A receiver of a signal tried to end its thread.")
