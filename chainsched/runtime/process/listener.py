"""Wake-ups from other processes: PostgreSQL notifies this one when they have written rows for a loop.

Only latency depends on it. A loop finds such rows by itself at its next turn; so a listener without a connection, or
behind a pooler that drops notifications, costs time and never work. So that this is noticed, the listener sends notices
to itself; while it does not hear them, loops poll more often.
"""

from __future__ import annotations

import logging
import random
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from django.db import connections

from chainsched.conf import get_config
from chainsched.db import notify
from chainsched.db.notify import CHANNEL
from chainsched.runtime.support.hearing import hearing

logger = logging.getLogger(__name__)

# How long it waits for a notification before it checks its connection, and whether it should stop.
CHECK_SECONDS = 5.0
# A server that has not replied for so long will not reply over this connection any more.
ANSWER_SECONDS = 15.0
MAX_PAUSE = 10.0
# How often it sends itself a notice, beginning when it has connected, and how long that may take to arrive.
ECHO_SECONDS = 30.0
ECHO_PATIENCE_SECONDS = 10.0


@dataclass(slots=True)
class Echo:
    """The notice that a listener sends to itself, and whether it has arrived so far; times are monotonic."""

    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    sent_at: float | None = None
    next_at: float = 0.0
    # Told in the log, once.
    is_missed: bool = False

    def send(self, now: float) -> None:
        """Send it by a session of its own, as other processes do: one's own might be heard where theirs are not."""
        notify.echo(self.token)
        connections[get_config().database].close()
        self.sent_at, self.next_at = now, now + ECHO_SECONDS

    def note_heard(self) -> None:
        """It has arrived."""
        self.sent_at = None
        hearing.regain()
        if self.is_missed:
            self.is_missed = False
            logger.info("Listener hears notices again.")

    def judge(self, now: float) -> bool:
        """Note that notices do not arrive, if it has been under way for too long; True when that is new."""
        if self.sent_at is None or now - self.sent_at < ECHO_PATIENCE_SECONDS:
            return False
        self.sent_at = None
        hearing.lose()
        is_new = not self.is_missed
        if is_new:
            self.is_missed = True
            logger.warning(
                "Listener is connected but hears no notices, as behind a pooler of transactions; loops poll more "
                "often while they have work. Let LISTEN name an alias of DATABASES that connects directly, or be False."
            )
        return is_new

    def wait_until(self) -> float:
        """When there is something to do next."""
        return self.next_at if self.sent_at is None else self.sent_at + ECHO_PATIENCE_SECONDS


class Listener:
    """Calls ``on_topic`` with each topic that arrives, from a separate thread and over a separate connection."""

    def __init__(self, on_topic: Callable[[str], None], *, echo: Echo | None = None) -> None:
        self._on_topic = on_topic
        self._echo = echo or Echo()
        self._stopping = threading.Event()
        self._failures = 0
        self._asked_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="chainsched-listener", daemon=True)

    @staticmethod
    def is_possible() -> bool:
        """Whether the database sends notifications, and the settings want them."""
        return bool(get_config().listen) and connections[get_config().database].vendor == "postgresql"

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
        other = Listener(self._on_topic, echo=replace(self._echo))
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
                connections.close_all()

    def _note_failure(self, error: Exception) -> float:
        """Log the first failure of a series, and return for how long to wait; longer each time."""
        if self._failures == 0:
            logger.info("Listener is not connected; loops poll more often: %s", " ".join(str(error).split()))
        if not hearing.is_lost:
            hearing.lose()
            self._on_topic("")
        self._failures += 1
        return min(MAX_PAUSE, 2.0 ** min(self._failures, 10) / 4) * random.uniform(0.5, 1)  # noqa: S311 - spreads load

    def _note_success(self) -> None:
        if self._failures:
            logger.info("Listener is connected again.")
        self._failures = 0

    def _listen(self) -> None:
        import psycopg  # noqa: PLC0415 - not installed where only SQLite is used

        parameters = connections[get_config().listening_alias].get_connection_params()
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
            self._echo.sent_at, self._echo.next_at = None, 0.0
            while not self._stopping.is_set():
                self._send_echo()
                is_silent = True
                for notification in connection.notifies(timeout=self._pause(), stop_after=1):
                    is_silent = False
                    self._receive(notification.payload)
                if self._echo.judge(time.monotonic()):
                    # From here on the loops poll; until now they have waited for notices.
                    self._on_topic("")
                if is_silent:
                    # A notification says as well that the connection is alive.
                    self._asked_at = time.monotonic()
                    connection.execute("SELECT 1")
                    self._asked_at = None

    def _send_echo(self) -> None:
        if self._echo.sent_at is None and time.monotonic() >= self._echo.next_at:
            self._asked_at = time.monotonic()
            self._echo.send(time.monotonic())
            self._asked_at = None

    def _pause(self) -> float:
        return max(0.0, min(CHECK_SECONDS, self._echo.wait_until() - time.monotonic()))

    def _receive(self, payload: str) -> None:
        """Pass a topic on; keep the notices that listeners send to themselves."""
        if notify.is_echo(payload, self._echo.token):
            self._echo.note_heard()
        elif not notify.is_echo(payload):
            self._on_topic(payload)
