"""Wake-ups from other processes: PostgreSQL notifies this one when they have written rows for a loop.

Only latency depends on it. A loop finds such rows by itself at its next turn; so a listener without a connection, or
behind a pooler that drops notifications, costs time and never work.
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

# How long it waits for a notification before it checks its connection, and whether it should stop.
CHECK_SECONDS = 5.0
# A server that has not replied for so long will not reply over this connection any more.
ANSWER_SECONDS = 15.0
MAX_PAUSE = 10.0


class Listener:
    """Calls ``on_topic`` with each topic that arrives, from a separate thread and over a separate connection."""

    def __init__(self, on_topic: Callable[[str], None]) -> None:
        self._on_topic = on_topic
        self._stopping = threading.Event()
        self._failures = 0
        self._asked_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="chainsched-listener", daemon=True)

    @staticmethod
    def is_possible() -> bool:
        """Whether the database sends notifications, and the settings want them."""
        return get_config().listen and connections[get_config().database].vendor == "postgresql"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Pass no more topics on; returns at once."""
        self._stopping.set()

    def renewed(self) -> Listener:
        """This listener or, if the server does not reply to it, a replacement: its connection may be dead."""
        asked_at = self._asked_at
        if asked_at is None or time.monotonic() - asked_at < ANSWER_SECONDS:
            return self
        self.stop()
        self._note_failure(TimeoutError("the server does not reply"))
        other = Listener(self._on_topic)
        other._failures = self._failures
        other.start()
        return other

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._listen()
            except Exception as error:  # noqa: BLE001 - without a listener, the loops still poll
                if not self._stopping.is_set():
                    self._stopping.wait(self._note_failure(error))
            finally:
                self._asked_at = None

    def _note_failure(self, error: Exception) -> float:
        """Log the first failure of a series, and return for how long to wait; longer each time."""
        if self._failures == 0:
            logger.info("Listener is not connected; loops wait for their intervals: %s", " ".join(str(error).split()))
        self._failures += 1
        return min(MAX_PAUSE, 2.0 ** min(self._failures, 10) / 4) * random.uniform(0.5, 1)  # noqa: S311 - spreads load

    def _note_success(self) -> None:
        if self._failures:
            logger.info("Listener is connected again.")
        self._failures = 0

    def _listen(self) -> None:
        import psycopg  # noqa: PLC0415 - not installed where only SQLite is used

        parameters = connections[get_config().database].get_connection_params()
        for own in ("context", "cursor_factory"):
            parameters.pop(own, None)
        parameters["application_name"] = "chainsched listener"
        self._asked_at = time.monotonic()
        with psycopg.connect(**parameters, autocommit=True) as connection:
            connection.execute(f"LISTEN {CHANNEL}")
            self._asked_at = None
            self._note_success()
            # Notifications from before this moment were missed: wake all loops.
            self._on_topic("")
            while not self._stopping.is_set():
                for notification in connection.notifies(timeout=CHECK_SECONDS, stop_after=1):
                    self._on_topic(notification.payload)
                self._asked_at = time.monotonic()
                connection.execute("SELECT 1")
                self._asked_at = None
