"""Work that the database may never answer: it is done in a thread of its own, and nobody has to wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from django.db import connections

R = TypeVar("R")


def run_in_background(work: Callable[[], R]) -> Future[R]:
    """Begin this over fresh connections; the process may end before it does."""
    future: Future[R] = Future()
    threading.Thread(target=_do, args=[work, future], name="chainsched-aside", daemon=True).start()
    return future


def _do(work: Callable[[], R], future: Future[R]) -> None:
    try:
        result = _and_close(work)
    except Exception as error:  # noqa: BLE001 - raised again for whoever asks for the result
        future.set_exception(error)
    else:
        future.set_result(result)


def _and_close(work: Callable[[], R]) -> R:
    try:
        return work()
    finally:
        connections.close_all()
