"""chainsched, whose manifests run because they are due, all at one moment, some seconds after the scheduler started.

Evaluated, queued, taken, run and recorded; the clock runs from the moment at which they are due.
"""

import time

from bench.ours import MANY, arm, enqueue_one, install, prepare
from chainsched.models import ManifestState

__all__ = ["enqueue_many", "enqueue_one", "install", "prepare"]

# Long enough for the tables to be vacuumed and the scheduler to start.
LEAD, LARGE_LEAD, LARGE = 6, 12, 10_000


def enqueue_many(count: int) -> dict[str, float]:
    """Let all be due soon; tells the moment by the clock of the machine."""
    lead = LARGE_LEAD if count > LARGE else LEAD
    arm(ManifestState.objects.filter(manifest__group__name=MANY), in_seconds=lead)
    return {"begins_at": time.monotonic() + lead}
