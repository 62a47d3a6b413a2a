"""Waiting for what other threads and processes bring about."""

import time
from collections.abc import Callable
from typing import TypeVar

R = TypeVar("R")


def wait_until(condition: Callable[[], R], *, timeout: float = 100, interval: float = 0.05) -> R:
    """Ask again and again until the answer is true; fails the test when the patience is over."""
    deadline = time.monotonic() + timeout
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"still not so after {timeout} s: {condition}"
        time.sleep(interval)
    return answer
