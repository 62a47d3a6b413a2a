"""Which queue a job waits in, and which processes take it from there."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

DEFAULT_QUEUE = "default"
MAX_QUEUE_LENGTH = 100
# Names of queues that a message lists.
MAX_LISTED = 10


@dataclass(frozen=True, slots=True)
class Pool:
    """Processes, or a task server, that run these workflows from these queues; None stands for all queues.

    Its workers take queued rows for themselves, unless it ``is_fed``: then executions are submitted to it, as many as
    it has ``room`` for now, or with None as many as the limits allow.
    """

    workflows: Collection[str]
    queues: Collection[str] | None = None
    is_fed: bool = False
    room: int | None = None

    def takes(self, workflow: str, queue: str) -> bool:
        """Whether it runs jobs of this workflow from this queue."""
        return workflow in self.workflows and (self.queues is None or queue in self.queues)


def effective_queue(*, own: str, workflow: str, group: str) -> str:
    """The queue of a manifest's jobs: its own, else its workflow's, else its group's, else the default one."""
    return own or workflow or group or DEFAULT_QUEUE


def check_queue(value: Any) -> str:
    """The name of a queue. It has no commas and no spaces, so that a command line can list names."""
    if not isinstance(value, str) or not value or not _is_plain(value):
        raise ValueError("must be a text of the letters a to z, digits, dots, colons, hyphens and underscores")
    if len(value) > MAX_QUEUE_LENGTH:
        raise ValueError(f"must be at most {MAX_QUEUE_LENGTH} characters long, not {len(value)}")
    return value


def _is_plain(name: str) -> bool:
    return name.isascii() and all(character.isalnum() or character in ".:-_" for character in name)


def are_taken(workflow: str, queue: str, *, pools: Iterable[Pool]) -> bool:
    """Whether any of these runs jobs of this workflow from this queue."""
    return any(pool.takes(workflow, queue) for pool in pools)


def queues_taken(pools: Iterable[Pool]) -> set[str] | None:
    """The queues that some of these take jobs from; None if one of them takes jobs from all."""
    names: set[str] = set()
    for pool in pools:
        if pool.queues is None:
            return None
        names.update(pool.queues)
    return names


def no_worker_takes(queue: str, *, pools: Iterable[Pool]) -> str:
    """Why jobs wait in a queue that no process takes jobs of theirs from, with the remedy."""
    taken = queues_taken(pools)
    others = "some that take all queues do not know its workflow" if taken is None else listed(taken)
    return f"no worker takes queue {queue!r}; start one with --queues {queue} (those that run take {others})"


def listed(names: Collection[str]) -> str:
    """The first of these names in words."""
    return ", ".join(sorted(names)[:MAX_LISTED]) + (", …" if len(names) > MAX_LISTED else "") if names else "none"
