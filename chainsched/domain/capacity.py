"""Which queue rows may start now: the global limit, the groups' limits, and the order of the queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from chainsched.domain.routing import Pool

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
        return self.has_place_in(group_id)

    def has_place_in(self, group_id: int | None) -> bool:
        """Whether its group alone would let a row start."""
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

    def learn(self, group_id: int | None, limit: int | None) -> None:
        """Know the limit of a group in which nothing is active: all its places are free."""
        if group_id is not None and limit is not None:
            self.groups.setdefault(group_id, limit)

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
    group_limit: int | None = None

    @property
    def place(self) -> tuple[int, int, int]:
        return (-self.priority, self.turn, self.row_id)


@dataclass(frozen=True, slots=True)
class Rival:
    """Another live process that takes rows for itself: from where, and how many jobs it runs at once."""

    process_id: int
    slots: int
    workflows: Collection[str]
    queues: Collection[str] | None = None


@dataclass(frozen=True, slots=True)
class Idle:
    """A pool of other processes that take rows which one process cannot, and how many idle slots it has."""

    pool: Pool
    slots: int


@dataclass(frozen=True, slots=True)
class Active:
    """How many executions are pending or in progress: by group, and by the process that has them, if one has.

    ``limits`` are those of the groups in which any is.
    """

    by_group: Mapping[int | None, int] = field(default_factory=dict)
    by_process: Mapping[int | None, int] = field(default_factory=dict)
    limits: Mapping[int, int] = field(default_factory=dict)

    def running(self, slots: Mapping[int, int]) -> int:
        """How many of them may run at this moment.

        A process runs no more at once than it has ``slots``; the others wait in its children for these. One that
        states no slots counts with all it has.
        """
        return sum(
            number if process_id is None else min(number, slots.get(process_id, number))
            for process_id, number in self.by_process.items()
        )


def room(*, max_active: int | None, active: Active, slots: Mapping[int, int], taker_id: int | None = None) -> Room:
    """The free places, from the limits and the active executions; a lowered limit never makes them negative.

    A group in which nothing is active has all its places free. Its limit is learnt from its rows.
    """
    groups = {group_id: max(limit - active.by_group.get(group_id, 0), 0) for group_id, limit in active.limits.items()}
    total = UNLIMITED if max_active is None else max(max_active - active.running(slots), 0)
    idle = None
    if taker_id is not None and taker_id in slots:
        idle = max(slots[taker_id] - active.by_process.get(taker_id, 0), 0)
    return Room(total=total, groups=groups, idle=idle)


def find_idle(rivals: Iterable[Rival], *, own: Pool, active: Active) -> list[Idle]:
    """The pools of other processes that have idle slots and take rows that the own pool does not."""
    slots: Counter[tuple[frozenset[str], frozenset[str] | None]] = Counter()
    for rival in rivals:
        idle = rival.slots - active.by_process.get(rival.process_id, 0)
        if idle > 0 and _takes_others(rival, own):
            queues = None if rival.queues is None else frozenset(rival.queues)
            slots[frozenset(rival.workflows), queues] += idle
    return [Idle(Pool(workflows, queues), idle) for (workflows, queues), idle in slots.items()]


def _takes_others(rival: Rival, own: Pool) -> bool:
    """Whether a process takes rows that the own pool does not."""
    if not set(rival.workflows).issubset(own.workflows):
        return True
    if own.queues is None:
        return False
    return rival.queues is None or not set(rival.queues).issubset(own.queues)


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
        room.learn(candidate.group_id, candidate.group_limit)
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
