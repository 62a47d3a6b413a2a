"""The link of a job in a child to its supervisor: cancellation comes in, progress goes out."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from chainsched.flow.run.execute import JobLink

# A job may report progress at any rate; it is sent at most once in this many seconds.
PROGRESS_INTERVAL = 0.5


class ChildJobLink(JobLink):
    """The link of a job in a child to its supervisor."""

    def __init__(self, *, is_stopped: Callable[[], bool], send: Callable[[Any], None]) -> None:
        self._is_stopped = is_stopped
        self._send = send
        self._lock = threading.Lock()
        # Not 0: the monotonic clock may have started with the host, a moment ago.
        self._sent_at = -math.inf
        self._unsent: Any = None
        self._timer: threading.Timer | None = None
        self.has_reported = False

    def is_cancelled(self) -> bool:
        return self._is_stopped()

    def report(self, progress: Any) -> None:
        """Send it now or, if progress was sent within the interval, when the interval is over."""
        with self._lock:
            self.has_reported = True
            self._unsent = progress
            wait = self._sent_at + PROGRESS_INTERVAL - time.monotonic()
            if wait > 0:
                self._send_after(wait)
                return
        self._send_unsent()

    def close(self) -> Any:
        """Return the progress that was not sent; none is sent after this."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            unsent, self._unsent = self._unsent, None
            return unsent

    def _send_after(self, seconds: float) -> None:
        if self._timer is None:
            timer = threading.Timer(seconds, self._send_unsent)
            timer.daemon = True
            # Where no thread can be started, it is sent with the next report.
            with contextlib.suppress(RuntimeError):
                timer.start()
                self._timer = timer

    def _send_unsent(self) -> None:
        with self._lock:
            progress, self._unsent = self._unsent, None
            self._sent_at, self._timer = time.monotonic(), None
        if progress is not None:
            self._send(progress)
