"""What connects a job in a child with its supervisor: it hears that it should stop, and says how far it is."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from chainsched.flow.run.execute import JobLink

# A job may report progress as often as it likes; it is passed on this often.
PROGRESS_INTERVAL = 0.5


class ChildJobLink(JobLink):
    """What connects a job with its supervisor."""

    def __init__(self, *, is_stopped: Callable[[], bool], tell: Callable[[Any], None]) -> None:
        self._is_stopped = is_stopped
        self._tell = tell
        self._lock = threading.Lock()
        # Never: the clock may have begun with the host, a moment ago.
        self._sent_at = -math.inf
        self._unsent: Any = None
        self._timer: threading.Timer | None = None

    def is_cancelled(self) -> bool:
        return self._is_stopped()

    def report(self, progress: Any) -> None:
        """Pass it on now or, if something was passed on just before, a little later."""
        with self._lock:
            self._unsent = progress
            wait = self._sent_at + PROGRESS_INTERVAL - time.monotonic()
            if wait > 0:
                self._send_after(wait)
                return
        self._send()

    def close(self) -> Any:
        """What has not been passed on; nothing is any more."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            unsent, self._unsent = self._unsent, None
            return unsent

    def _send_after(self, seconds: float) -> None:
        if self._timer is None:
            timer = threading.Timer(seconds, self._send)
            timer.daemon = True
            # Where there is no room for a thread, it goes with what is reported next.
            with contextlib.suppress(RuntimeError):
                timer.start()
                self._timer = timer

    def _send(self) -> None:
        with self._lock:
            progress, self._unsent = self._unsent, None
            self._sent_at, self._timer = time.monotonic(), None
        if progress is not None:
            self._tell(progress)
