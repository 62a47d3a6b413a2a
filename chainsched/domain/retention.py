"""How long history is kept: by workflow and state, by age and by count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from chainsched.domain.states import ExecutionState

EVERYTHING = "*"


@dataclass(frozen=True, slots=True)
class Kept:
    """The parts of an execution that retention decides on."""

    execution_id: int
    root_id: int
    manifest_id: int | None
    workflow: str
    state: ExecutionState
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class Policy:
    """Which executions may be removed.

    ``ages`` and ``counts`` map ``*``, a state, a workflow or ``workflow:state`` to seconds and numbers; the most
    specific entry decides, and an age of None keeps for ever.
    """

    ages: Mapping[str, float | None]
    counts: Mapping[str, int]
    workflows: frozenset[str] = field(default_factory=frozenset)
    states: frozenset[ExecutionState] = field(default_factory=frozenset)

    @classmethod
    def of(cls, retention: float | Mapping[str, float | None] | None, keep_last: int | Mapping[str, int]) -> Policy:
        """The policy that the settings state; executions that they do not mention are kept for ever."""
        ages = retention if isinstance(retention, Mapping) else {EVERYTHING: retention}
        counts = keep_last if isinstance(keep_last, Mapping) else {EVERYTHING: keep_last}
        return cls(ages=ages, counts=counts)

    def keep_for(self, workflow: str, state: ExecutionState) -> timedelta | None:
        """How long an execution is kept after its end; None for ever."""
        for key in (f"{workflow}:{state}", workflow, str(state), EVERYTHING):
            if key in self.ages:
                seconds = self.ages[key]
                return None if seconds is None else timedelta(seconds=seconds)
        return None

    def keep_last(self, workflow: str) -> int:
        """How many of a manifest's newest roots are kept regardless of their age."""
        return self.counts.get(workflow, self.counts.get(EVERYTHING, 0))

    def is_old(self, kept: Kept, *, now: datetime) -> bool:
        """Whether an execution has ended and been kept long enough."""
        age = self.keep_for(kept.workflow, kept.state)
        return age is not None and kept.ended_at is not None and kept.ended_at + age <= now

    def is_meant(self, root: Kept) -> bool:
        """Whether a tree with this root is among those that the policy selects."""
        return (not self.workflows or root.workflow in self.workflows) and (
            not self.states or root.state in self.states
        )

    @property
    def is_off(self) -> bool:
        """Whether the policy keeps everything for ever."""
        return all(age is None for age in self.ages.values())

    @property
    def is_selective(self) -> bool:
        """Whether the policy selects some executions only, and no other rows."""
        return bool(self.workflows or self.states)

    @property
    def default_age(self) -> timedelta | None:
        """How long all other rows are kept: queue rows, letters, processes, manifests that are done or retired."""
        seconds = self.ages.get(EVERYTHING)
        return None if seconds is None else timedelta(seconds=seconds)


def outdated_trees(roots: Iterable[Kept], members: Iterable[Kept], *, policy: Policy, now: datetime) -> set[int]:
    """The ids of the roots of trees that have ended entirely and been kept long enough."""
    old = {root.root_id for root in roots if policy.is_meant(root) and policy.is_old(root, now=now)}
    return old - {member.root_id for member in members if not policy.is_old(member, now=now)}
