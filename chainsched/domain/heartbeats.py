"""Which processes count as silent: those with a heartbeat that stood still for one expiry while a watcher looked on.

Only the watcher's monotonic clock counts. A watcher that has just started, or that was late with a look because it
was paused or its database was, has not seen how long a heartbeat stood still, and begins to watch anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Sighting:
    """A heartbeat, and the monotonic time since which it is known not to have changed."""

    heartbeat: datetime
    since: float


@dataclass(frozen=True, slots=True)
class Watch:
    """The sightings of a watcher by process, and the monotonic time at which it began its last look."""

    sightings: Mapping[int, Sighting] = field(default_factory=dict)
    looked_at: float | None = None

    def is_late(self, now: float, *, longest_gap: float) -> bool:
        """Whether a look that begins now comes too long after the one before to continue it."""
        return self.looked_at is not None and now - self.looked_at > longest_gap

    def silent(self, *, expiry: float) -> dict[int, datetime]:
        """The processes with the same heartbeat for so many seconds until the last look, each with that heartbeat."""
        looked_at = self.looked_at
        if looked_at is None:
            return {}
        return {
            process: sighting.heartbeat
            for process, sighting in self.sightings.items()
            if looked_at - sighting.since >= expiry
        }


def look_again(
    before: Watch, heartbeats: Mapping[int, datetime], *, asked_at: float, read_at: float, longest_gap: float
) -> Watch:
    """The watch after a look: the heartbeats of all live processes, which were asked for and read at these times.

    A heartbeat has stood still since it was first read, and until it was last asked for: the database may take its
    time in between.
    """
    known = {} if before.is_late(asked_at, longest_gap=longest_gap) else before.sightings
    seen = {process: Sighting(heartbeat, read_at) for process, heartbeat in heartbeats.items()}
    kept = {process: known[process] for process in known if _is_unchanged(known[process], seen.get(process))}
    return Watch(seen | kept, looked_at=asked_at)


def _is_unchanged(before: Sighting, now: Sighting | None) -> bool:
    return now is not None and now.heartbeat == before.heartbeat
