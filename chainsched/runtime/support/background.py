"""Work for which the database may never reply: it runs in a separate thread, so that no caller has to wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from django.db import connections

R = TypeVar("R")


def run_in_background(work: Callable[[], R]) -> Future[R]:
    """Start this over new connections; the process may exit before it is done."""
    future: Future[R] = Future()
    threading.Thread(target=_run_into, args=[work, future], name="chainsched-background", daemon=True).start()
    return future


def _run_into(work: Callable[[], R], future: Future[R]) -> None:
    try:
        result = _run_and_close(work)
    except Exception as error:  # noqa: BLE001 - raised again by Future.result
        future.set_exception(error)
    else:
        future.set_result(result)


def _run_and_close(work: Callable[[], R]) -> R:
    try:
        return work()
    finally:
        connections.close_all()
