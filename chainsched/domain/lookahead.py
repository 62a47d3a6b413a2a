"""How long jobs have been taking, and so how many of them may wait where they will run."""

from __future__ import annotations

# Seconds of work that may wait for a child in addition to the job it runs, so that short jobs keep the child busy. All
# of it counts as lost if the process is killed.
AHEAD_SECONDS = 0.05
MAX_AHEAD = 500
# Below this, the run time of a job cannot be distinguished from the time to send it to its child.
SHORTEST = 1e-4
# A shorter job that took many times as long as those before it may only have waited for a processor.
LONG = 0.1
MAX_GROWTH = 4


class Lookahead:
    """An average of how long jobs take that weighs the last ones most; a long one counts at once."""

    def __init__(self) -> None:
        self._seconds_per_job: float | None = None

    def learn(self, seconds: float) -> None:
        """Add the run time of a job."""
        known, seconds = self._seconds_per_job, max(seconds, SHORTEST)
        if known is None or (seconds >= LONG and seconds > 10 * known):
            self._seconds_per_job = seconds
        else:
            self._seconds_per_job = 0.9 * known + 0.1 * min(seconds, MAX_GROWTH * known)

    def reset(self) -> None:
        """Drop the average, because jobs take longer than it; it is unknown until the next job ends."""
        self._seconds_per_job = None

    @property
    def ahead(self) -> int:
        """How many jobs may wait for each child; 0 while the average is unknown."""
        if self._seconds_per_job is None:
            return 0
        return min(MAX_AHEAD, int(AHEAD_SECONDS / self._seconds_per_job))
