"""Health within seconds, even if the database hangs: a background thread reads it, and the caller waits briefly."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future

from django.db import Error, connections

from chainsched import api
from chainsched.conf import get_config
from chainsched.domain.results import Health
from chainsched.flow.transactions import TRANSIENT
from chainsched.runtime.support.background import run_in_background

LIMIT = 5.0
# A probe may hang until the operating system gives its connection up, long after the database is back.
RENEWAL = 60.0
NO_ANSWER = (TimeoutError, Error)


def probe_health() -> Health:
    """The health; raises one of ``NO_ANSWER`` if there is none within ``LIMIT`` seconds.

    Inside a transaction it is read there and without a limit: no other connection sees the rows of a project's test.
    """
    if connections[get_config().database].in_atomic_block:
        return api.health()
    return shared_probe.join().result(LIMIT)


def in_words(error: Exception) -> str:
    """One of ``NO_ANSWER`` as a sentence."""
    # PostgreSQL quotes the statement in further lines.
    reason = next(iter(str(error).strip().splitlines()), "")
    if isinstance(error, TRANSIENT):
        return f"The database does not answer: {reason}"
    if isinstance(error, TimeoutError):
        return f"The database did not answer within {LIMIT:g} s."
    return f"The database cannot be asked: {reason}. Run `manage.py migrate` if tables are missing."


class SharedProbe:
    """One probe at a time, shared by all concurrent callers: probes come again and again, and each might hang."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: Future[Health] | None = None
        self._began_at = 0.0

    def join(self) -> Future[Health]:
        """The running probe, or a new one."""
        with self._lock:
            now = time.monotonic()
            if self._latest is None or self._latest.done() or now - self._began_at >= RENEWAL:
                self._latest, self._began_at = run_in_background(api.health), now
            return self._latest


shared_probe = SharedProbe()
