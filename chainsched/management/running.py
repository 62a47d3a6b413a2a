"""What the commands that keep running have in common."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

from django.core.management.base import CommandError, OutputWrapper

from chainsched.exceptions import ChainschedError
from chainsched.runtime.supervisor import Supervisor

R = TypeVar("R")


def prepare(step: Callable[[], R]) -> R:
    """Do what must be done before anything runs; what stands in the way ends the command in words."""
    try:
        return step()
    except ChainschedError as error:
        raise CommandError(str(error)) from error


def run_until_stopped(
    supervisor: Supervisor, *, name: str, does: str, seconds: float | None, out: OutputWrapper
) -> None:
    """Run until a signal or the time ends it; the exit code is 0 after an orderly end.

    What is said is flushed at once, so that it stands in a service's log while the service runs.
    """
    supervisor.listen_to_signals()
    out.write(f"{name} started: {does}. Ctrl-C stops it.")
    out.flush()
    code = supervisor.run(seconds=seconds)
    out.write(f"{name} stopped.")
    if code:
        sys.exit(code)
