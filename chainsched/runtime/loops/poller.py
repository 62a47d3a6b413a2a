"""A loop: take a turn, sleep until the next alarm, a wake-up or the interval, whichever comes first."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connections

from chainsched.conf import get_config
from chainsched.db import notify
from chainsched.db.clock import database_now
from chainsched.flow.transactions import TRANSIENT
from chainsched.runtime.support.db_outage import outage
from chainsched.runtime.support.hearing import hearing

logger = logging.getLogger(__name__)

FIRST_BACKOFF = 0.5
MAX_BACKOFF = 10.0
# After a turn that did something, while notices are not heard; each idle turn after that makes it longer by a quarter.
# With twice as long, processes that wait for each other in turn would soon wait for their intervals.
BUSY_PAUSE = 0.1
PAUSE_GROWTH = 1.25


@dataclass(frozen=True, slots=True)
class Turn:
    """How many rows a turn changed, and when the next one has rows to process.

    A loop with ``patience`` takes its next turn so many seconds after it is woken, and one turn for all that wake it in
    the meantime: another loop, which is woken too, does what is urgent.
    """

    did: int = 0
    next_at: datetime | None = None
    has_more: bool = False
    patience: float = 0.0


class Poller:
    """Takes turns in a separate thread until it is stopped. An exception of a turn is logged and does not end it."""

    def __init__(
        self,
        name: str,
        turn: Callable[[datetime], Turn],
        *,
        interval: float,
        after: Callable[[Turn], None] = lambda turn: None,
        on_death: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self._turn = turn
        self._interval = interval
        # The longest pause until the next turn while notices of other processes are not heard.
        self._unheard_pause = interval
        self._is_notified = name in notify.TOPICS
        self._after = after
        self._on_death = on_death
        self._wake = threading.Event()
        self._stopping = threading.Event()
        # Held during a turn, but not while it reads the time from the database: a turn changes nothing before that.
        self._turning = threading.Lock()
        self._failures = 0
        self._patience = 0.0
        # When the current turn last sent a statement to the database, or received a reply.
        self._last_exchange_at: float | None = None
        self.turned_at: datetime | None = None
        self._thread = threading.Thread(target=self._run, name=f"chainsched-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Take the next turn now."""
        self._wake.set()

    def stop(self) -> None:
        """Take no further turn; returns at once, ``join`` waits."""
        self._stopping.set()
        self._wake.set()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the current turn; False if it did not end in time."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def is_hung(self, seconds: float) -> bool:
        """Whether the current turn has been waiting for the database for so long: its connection may be dead."""
        last_exchange_at = self._last_exchange_at
        return last_exchange_at is not None and time.monotonic() - last_exchange_at >= seconds

    def holds_between_turns(self, condition: Callable[[], bool]) -> bool:
        """Whether this holds while no turn is running; False if one is."""
        if not self._turning.acquire(blocking=False):
            return False
        try:
            return condition()
        finally:
            self._turning.release()

    def _run(self) -> None:
        connections[get_config().database].execute_wrappers.append(self._note_exchange)
        try:
            while not self._stopping.is_set():
                pause = self._take_turn()
                if self._wake.wait(pause) and self._patience:
                    # Not beyond the time at which it would have turned without being woken.
                    self._stopping.wait(min(self._patience, pause))
                self._wake.clear()
        finally:
            connections.close_all()
            if not self._stopping.is_set():
                self._on_death()

    def _take_turn(self) -> float:
        """Take one turn and return for how long to sleep."""
        self._last_exchange_at = time.monotonic()
        try:
            now = _database_time()
            with self._turning, notify.in_turn():
                turn = self._turn(now)
            self._after(turn)
        except Exception as error:  # noqa: BLE001 - no error of a turn ends the loop
            return self._recover(error)
        finally:
            self._last_exchange_at = None
        outage.end(at=self.name)
        self.turned_at = now
        self._failures = 0
        self._patience = turn.patience
        longest = self._longest_pause(turn)
        if turn.has_more:
            return 0
        if turn.next_at is None:
            return longest
        return max(0.0, min(longest, (turn.next_at - now).total_seconds()))

    def _longest_pause(self, turn: Turn) -> float:
        """The interval. While notices that would wake this loop are not heard, less if it had work lately."""
        busy = min(BUSY_PAUSE, self._interval)
        self._unheard_pause = busy if turn.did else min(PAUSE_GROWTH * self._unheard_pause, self._interval)
        return self._unheard_pause if self._is_notified and hearing.is_lost else self._interval

    def _recover(self, error: Exception) -> float:
        """Report the first failure of a series, drop the connection, and wait longer each time."""
        if isinstance(error, TRANSIENT):
            outage.begin(error, at=self.name)
        elif self._failures == 0:
            logger.error("A turn of the %s failed; it keeps trying.", self.name, exc_info=error)
        self._failures += 1
        connections.close_all()
        backoff: float = min(MAX_BACKOFF, FIRST_BACKOFF * 2 ** min(self._failures - 1, 10))
        return backoff * random.uniform(0.5, 1)  # noqa: S311 - spreads load, guards nothing

    def _note_exchange(self, execute: Callable[..., Any], *arguments: Any) -> Any:
        """Note when a statement is sent, and when its reply comes."""
        self._last_exchange_at = time.monotonic()
        try:
            return execute(*arguments)
        finally:
            self._last_exchange_at = time.monotonic()


def _database_time() -> datetime:
    """The database's time. A connection that broke while idle is replaced: the database itself may be well."""
    is_new = connections[get_config().database].connection is None
    try:
        return database_now()
    except TRANSIENT:
        if is_new:
            raise
        connections.close_all()
        return database_now()
