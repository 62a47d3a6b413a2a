"""Run the same thing in several threads at once, each with a connection of its own."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from django.db import connections

R = TypeVar("R")


def at_once(*calls: Callable[[], R]) -> list[R]:
    """Let all calls begin at one barrier; returns their results, raises the first error."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], R]) -> R:
        try:
            barrier.wait(timeout=20)
            return call()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(run, call) for call in calls]]
