"""How long jobs have been taking, and so how many of them may wait where they will run."""

from __future__ import annotations

# Work that may wait for a child beside what it runs, in seconds of it, so that short jobs keep it busy.
AHEAD_SECONDS = 0.5
MAX_AHEAD = 500
# Below this a job takes no time that could be told from that of handing it over.
SHORTEST = 1e-4


class Lookahead:
    """Remembers how long jobs take, the last ones most; a long one counts at once."""

    def __init__(self) -> None:
        self._seconds_per_job: float | None = None

    def learn(self, seconds: float) -> None:
        """Note that a job took so long."""
        known, seconds = self._seconds_per_job, max(seconds, SHORTEST)
        self._seconds_per_job = seconds if known is None or seconds > 10 * known else 0.9 * known + 0.1 * seconds

    def forget(self) -> None:
        """Jobs take longer than was thought; nothing is known until the next one ends."""
        self._seconds_per_job = None

    @property
    def ahead(self) -> int:
        """How many jobs may wait for each child; none while it is not known how long they take."""
        if self._seconds_per_job is None:
            return 0
        return min(MAX_AHEAD, int(AHEAD_SECONDS / self._seconds_per_job))
