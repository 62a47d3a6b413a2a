"""Wake-ups from other processes: PostgreSQL tells us when they made something to do.

Only latency depends on it. Whatever a notification would have said, a loop finds by itself at its next turn; so a
listener that is lost, cut off or pooled away costs time and never work.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable

from django.db import connections

from chainsched.conf import get_config
from chainsched.db.notify import CHANNEL

logger = logging.getLogger(__name__)

# How long it waits before it looks whether the connection is still there, and whether it should stop.
PATIENCE = 5.0
# A server that has not answered for so long does not answer this connection any more.
ANSWER_SECONDS = 15.0
MAX_PAUSE = 10.0


class Listener:
    """Calls ``hear`` with each topic that arrives, from a thread and over a connection of its own."""

    def __init__(self, hear: Callable[[str], None]) -> None:
        self._hear = hear
        self._stopping = threading.Event()
        self._failures = 0
        self._asked_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="chainsched-listener", daemon=True)

    @staticmethod
    def is_possible() -> bool:
        """Whether there is anything to listen to."""
        return get_config().listen and connections[get_config().database].vendor == "postgresql"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Hear nothing more; returns at once."""
        self._stopping.set()

    def renewed(self) -> Listener:
        """This one or, if the server does not answer it, another one in its place: its connection may be dead."""
        asked_at = self._asked_at
        if asked_at is None or time.monotonic() - asked_at < ANSWER_SECONDS:
            return self
        self.stop()
        self._note_failure(TimeoutError("there is no answer"))
        other = Listener(self._hear)
        other._failures = self._failures
        other.start()
        return other

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._listen()
            except Exception as error:  # noqa: BLE001 - whatever happens to a listener, polling goes on
                if not self._stopping.is_set():
                    self._stopping.wait(self._note_failure(error))
            finally:
                self._asked_at = None

    def _note_failure(self, error: Exception) -> float:
        """Say it once, and return for how long to wait; longer each time."""
        if self._failures == 0:
            logger.info("Wake-ups from other processes are not heard just now: %s", " ".join(str(error).split()))
        self._failures += 1
        return min(MAX_PAUSE, 2.0 ** min(self._failures, 10) / 4) * random.uniform(0.5, 1)  # noqa: S311 - spreads load

    def _note_success(self) -> None:
        if self._failures:
            logger.info("Wake-ups from other processes are heard again.")
        self._failures = 0

    def _listen(self) -> None:
        import psycopg  # noqa: PLC0415 - not installed where SQLite is all there is

        parameters = connections[get_config().database].get_connection_params()
        for own in ("context", "cursor_factory"):
            parameters.pop(own, None)
        parameters["application_name"] = "chainsched listener"
        self._asked_at = time.monotonic()
        with psycopg.connect(**parameters, autocommit=True) as connection:
            connection.execute(f"LISTEN {CHANNEL}")
            self._asked_at = None
            self._note_success()
            # What was said before we listened was said to nobody.
            self._hear("")
            while not self._stopping.is_set():
                for notice in connection.notifies(timeout=PATIENCE, stop_after=1):
                    self._hear(notice.payload)
                self._asked_at = time.monotonic()
                connection.execute("SELECT 1")
                self._asked_at = None
