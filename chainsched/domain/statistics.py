"""The roll-up of history: how many executions ended how in each hour, by group and workflow, and how long they took."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from chainsched.domain.states import ExecutionState

# Statistics are small; they are kept longer than the executions that they count.
KEPT_FOR = timedelta(days=90)
NO_GROUP = 0


class Share(NamedTuple):
    """The contribution of some executions, all of one kind, to an hour.

    ``seconds`` is how long they ran, all together; ``slowest_execution`` is the id of the slowest.
    """

    hour: datetime
    group: int
    workflow: str
    state: str
    executions: int
    seconds: float
    slowest_seconds: float
    slowest_execution: int

    @property
    def kind(self) -> tuple[datetime, int, str, str]:
        """The values that two shares must have in common to be added."""
        return self.hour, self.group, self.workflow, self.state

    def plus(self, other: Share) -> Share:
        """Both together; they are of one kind."""
        slower = max(self, other, key=lambda share: share.slowest_seconds)
        return self._replace(
            executions=self.executions + other.executions,
            seconds=self.seconds + other.seconds,
            slowest_seconds=slower.slowest_seconds,
            slowest_execution=slower.slowest_execution,
        )


def hour_of(moment: datetime) -> datetime:
    """The beginning of the hour that a moment is in."""
    return moment.replace(minute=0, second=0, microsecond=0)


def merge(shares: Iterable[Share]) -> list[Share]:
    """One share of each kind, in a fixed order, so that transactions that write them cannot deadlock."""
    merged: dict[tuple[datetime, int, str, str], Share] = {}
    for share in shares:
        known = merged.get(share.kind)
        merged[share.kind] = share if known is None else known.plus(share)
    return [merged[kind] for kind in sorted(merged)]


class Sum(NamedTuple):
    """The executions of a workflow in an hour, over all groups."""

    hour: datetime
    workflow: str
    state: str
    executions: int
    seconds: float
    slowest_seconds: float


class Slow(NamedTuple):
    """The run times of a workflow's successful executions: the longest and the average, in seconds."""

    workflow: str
    longest: float
    mean: float


@dataclass(frozen=True, slots=True)
class Statistics:
    """Figures over the sums of some hours."""

    sums: Sequence[Sum]

    def count(self, state: ExecutionState, *, since: datetime) -> int:
        """How many executions ended this way in the hours that began at this moment or later."""
        return sum(row.executions for row in self.sums if row.state == state and row.hour >= since)

    def by_hour(self, hour: datetime) -> dict[str, int]:
        """How many executions ended in this hour, by state."""
        counted: Counter[str] = Counter()
        for row in self.sums:
            if row.hour == hour:
                counted[row.state] += row.executions
        return dict(counted)

    def success_rate(self, *, since: datetime) -> float | None:
        """Which share of the attempts succeeded; cancelled executions do not count."""
        done = self.count(ExecutionState.COMPLETED, since=since)
        attempts = done + self.count(ExecutionState.FAILED, since=since)
        return done / attempts if attempts else None

    def most_failing(self, *, limit: int) -> list[tuple[str, int]]:
        """The workflows with most failed attempts, and how many."""
        failed: Counter[str] = Counter()
        for row in self.sums:
            if row.state == ExecutionState.FAILED:
                failed[row.workflow] += row.executions
        return sorted(failed.items(), key=lambda item: (-item[1], item[0]))[:limit]

    def slowest(self, *, limit: int) -> list[Slow]:
        """The workflows with the slowest executions that succeeded."""
        sums: dict[str, list[Sum]] = defaultdict(list)
        for row in self.sums:
            if row.state == ExecutionState.COMPLETED:
                sums[row.workflow].append(row)
        found = [
            Slow(
                workflow,
                longest=max(row.slowest_seconds for row in rows),
                mean=sum(row.seconds for row in rows) / max(1, sum(row.executions for row in rows)),
            )
            for workflow, rows in sums.items()
        ]
        return sorted(found, key=lambda slow: (-slow.longest, slow.workflow))[:limit]
