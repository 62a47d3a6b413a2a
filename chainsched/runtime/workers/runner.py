"""The interface between a worker and the threads or child processes that run its claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from chainsched.domain.outcomes import Finished
from chainsched.domain.run_context import Claim


@dataclass(slots=True)
class Collected:
    """The events since the last ``collect``.

    ``withdrawn`` are jobs that the runner returned without having started them.
    """

    finished: list[Finished] = field(default_factory=list)
    progress: dict[int, Any] = field(default_factory=dict)
    withdrawn: list[int] = field(default_factory=list)

    @property
    def settled(self) -> int:
        """How many claims in it are no longer outstanding."""
        return len(self.finished) + len(self.withdrawn)


class Runner(Protocol):
    """Runs claims and returns their results."""

    # Whether running jobs can be killed. Threads cannot: their process has to end.
    is_killable: bool

    @property
    def free(self) -> int:
        """How many more claims it can take."""
        ...

    @property
    def running(self) -> int:
        """How many claims are waiting, running, or finished and not collected."""
        ...

    def open(self) -> None:
        """Start; from now on it takes claims."""
        ...

    def use_lease(self, process_id: int, *, until: Callable[[], float], on_expiry: Callable[[], None]) -> None:
        """Run only claims of this process row, and kill them at this monotonic time, which is read repeatedly."""
        ...

    def start(self, *items: Claim) -> None:
        """Take claims; never more than ``free``."""
        ...

    def cancel(self, execution_ids: Iterable[int]) -> None:
        """Ask jobs to stop."""
        ...

    def withdraw(self) -> None:
        """Start no more jobs, and return those that have not begun."""
        ...

    def collect(self) -> Collected:
        """The events since the last call."""
        ...

    def end_running(self) -> None:
        """End the jobs that still run, and report them as lost; only while draining."""
        ...

    def kill(self) -> None:
        """Kill all jobs at once and discard their results."""
        ...

    def close(self) -> None:
        """Let running jobs end, then stop."""
        ...
