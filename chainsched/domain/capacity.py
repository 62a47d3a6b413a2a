"""Which queue rows may start now: the global limit, the groups' limits, and the order of the queue."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

UNLIMITED = None


@dataclass(slots=True)
class Room:
    """The free places under the limits while rows are admitted one after the other.

    ``idle`` are the slots of a process that takes rows for itself in which nothing runs.
    """

    total: int | None
    groups: dict[int, int] = field(default_factory=dict)
    idle: int | None = None

    def admits(self, group_id: int | None) -> bool:
        if self.total is not UNLIMITED and self.total <= 0:
            return False
        return group_id is None or self.groups.get(group_id, 1) > 0

    def take(self, group_id: int | None) -> None:
        if self.total is not UNLIMITED:
            self.total -= 1
        if group_id is not None and group_id in self.groups:
            self.groups[group_id] -= 1

    def lift(self) -> None:
        """Let a process that takes rows for itself take any number, if there is a place for each of its idle slots.

        Rows that it takes ahead wait for these slots, and count for no limit but those of groups.
        """
        if self.total is not UNLIMITED and self.idle is not None and self.total >= self.idle:
            self.total = UNLIMITED

    @property
    def has_shared_limits(self) -> bool:
        """Whether other processes may wait for places that this one takes."""
        return self.total is not UNLIMITED or any(left > 0 for left in self.groups.values())

    @property
    def full_groups(self) -> set[int]:
        return {group_id for group_id, room in self.groups.items() if room <= 0}

    @property
    def is_full(self) -> bool:
        return self.total is not UNLIMITED and self.total <= 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """The parts of a queue row that decide its place in the order."""

    row_id: int
    group_id: int | None
    turn: int
    priority: int = 0

    @property
    def place(self) -> tuple[int, int, int]:
        return (-self.priority, self.turn, self.row_id)


@dataclass(frozen=True, slots=True)
class Rival:
    """Another live process that takes rows for itself: the names it knows, and how many jobs it runs at once."""

    process_id: int
    slots: int
    workflows: Collection[str]


@dataclass(frozen=True, slots=True)
class Idle:
    """The names that other processes with an idle slot know and one that takes rows does not, and these slots."""

    workflows: Collection[str] = frozenset()
    slots: int = 0


@dataclass(frozen=True, slots=True)
class Active:
    """How many executions are pending or in progress: by group, and by the process that has them, if one has."""

    by_group: Mapping[int | None, int] = field(default_factory=dict)
    by_process: Mapping[int | None, int] = field(default_factory=dict)

    def running(self, slots: Mapping[int, int]) -> int:
        """How many of them may run at this moment.

        A process runs no more at once than it has ``slots``; the others wait in its children for these. One that
        states no slots counts with all it has.
        """
        return sum(
            number if process_id is None else min(number, slots.get(process_id, number))
            for process_id, number in self.by_process.items()
        )


def room(
    *,
    max_active: int | None,
    limits: Mapping[int, int | None],
    disabled: Iterable[int],
    active: Active,
    slots: Mapping[int, int],
    taker_id: int | None = None,
) -> Room:
    """The free places, from the limits and the active executions; a lowered limit never makes them negative."""
    groups = {
        group_id: max(limit - active.by_group.get(group_id, 0), 0)
        for group_id, limit in limits.items()
        if limit is not None
    }
    total = UNLIMITED if max_active is None else max(max_active - active.running(slots), 0)
    idle = None
    if taker_id is not None and taker_id in slots:
        idle = max(slots[taker_id] - active.by_process.get(taker_id, 0), 0)
    return Room(total=total, groups=groups | dict.fromkeys(disabled, 0), idle=idle)


def find_idle(rivals: Iterable[Rival], *, knows: Collection[str], active: Active) -> Idle:
    """Which names only other processes know that have nothing to do in some of their slots."""
    names: set[str] = set()
    slots = 0
    for rival in rivals:
        idle = rival.slots - active.by_process.get(rival.process_id, 0)
        others = set(rival.workflows).difference(knows)
        if idle > 0 and others:
            names |= others
            slots += idle
    return Idle(names, slots)


def advance_turns(present: Mapping[int, int], *, started: Iterable[tuple[int, int]]) -> dict[int, int]:
    """The turns that are reached when rows of these (priority, turn) have started; they only grow."""
    reached = dict(present)
    for priority, turn in started:
        reached[priority] = max(reached.get(priority, 0), turn)
    return reached


def admit(candidates: Iterable[Candidate], *, room: Room) -> list[Candidate]:
    """The candidates that may start, in the given order; a full group blocks no other. Takes places in ``room``."""
    admitted = []
    for candidate in candidates:
        if room.is_full:
            break
        if room.admits(candidate.group_id):
            room.take(candidate.group_id)
            admitted.append(candidate)
    return admitted


def effective_priority(*, own: int | None, group: int, boost: int) -> int:
    """The one number that a queue row is ranked by: the manifest's priority, else its group's, plus the boost."""
    return max(0, min(31, (group if own is None else own) + boost))


def assign_turns(
    places: Sequence[tuple[int | None, int]], *, present: Mapping[int, int], last: Mapping[tuple[int, int], int]
) -> list[int]:
    """The turn of each new row, so that within one priority groups take turns and none starves.

    ``places`` are the (group, priority) of the rows in their order; ``present`` is the turn that dispatch has
    reached at a priority; ``last`` is the last turn that waits in a place. A row without a group counts by itself.
    """
    reached: dict[tuple[int | None, int], int] = {}
    turns = []
    for place in places:
        group_id, priority = place
        now = present.get(priority, 0)
        waiting = now if group_id is None else last.get((group_id, priority), now)
        turn = max(now, reached.get(place, waiting)) + 1
        if group_id is not None:
            reached[place] = turn
        turns.append(turn)
    return turns
