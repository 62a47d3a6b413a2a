"""Where claimed work runs: the seam between a worker and the threads or processes behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from chainsched.domain.outcomes import Finished
from chainsched.flow.run.claim import Claim


@dataclass(slots=True)
class Collected:
    """What has happened since the last look.

    ``begun`` are jobs that run for a while already, with the seconds from their claim to their beginning;
    ``withdrawn`` were given back without having begun.
    """

    finished: list[Finished] = field(default_factory=list)
    begun: dict[int, float] = field(default_factory=dict)
    progress: dict[int, Any] = field(default_factory=dict)
    withdrawn: list[int] = field(default_factory=list)

    @property
    def over(self) -> int:
        """How many claims it speaks of that are out no more."""
        return len(self.finished) + len(self.withdrawn)


class Runner(Protocol):
    """Runs claims and hands back what became of them."""

    # Whether what runs can be ended by force. Threads cannot: their process has to end.
    is_killable: bool

    @property
    def free(self) -> int:
        """How many claims it can take."""
        ...

    @property
    def running(self) -> int:
        """How many claims are waiting, under way, or finished and not collected."""
        ...

    def open(self) -> None:
        """Be ready for claims."""
        ...

    def trust(self, process_id: int, *, until: Callable[[], float], on_distrust: Callable[[], None]) -> None:
        """Run the claims of this process, and let nothing run past this monotonic time, asked for again and again."""
        ...

    def start(self, item: Claim) -> None:
        """Take a claim; only called while ``free`` is above zero."""
        ...

    def cancel(self, execution_ids: Iterable[int]) -> None:
        """Ask jobs to stop."""
        ...

    def withdraw(self) -> None:
        """Begin nothing more, and give back what has not begun."""
        ...

    def collect(self) -> Collected:
        """What has happened since the last call."""
        ...

    def end_running(self) -> None:
        """End what still runs, and hand it back as lost; only while draining."""
        ...

    def kill(self) -> None:
        """End everything at once and forget it."""
        ...

    def close(self) -> None:
        """End in good order."""
        ...
