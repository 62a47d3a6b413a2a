"""The loops of a scheduler, in one table: the engine turns them, wakes them and checks their health by it.

The turn of a loop is in the module of its name in ``runtime/loops/``. A new loop is one entry here, that module, and
a setting for its interval.
"""

from __future__ import annotations

from dataclasses import dataclass

# Not in the table, because it exists only while its process holds a lease; heartbeats report its turns all the same.
WORKER = "worker"


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop."""

    name: str
    # The setting with the longest time between two turns, in seconds.
    interval: str
    # The loops that may find new work after a turn of this one did something.
    wakes: tuple[str, ...] = ()
    # No job runs for long without it: health reports a problem if no process turns it.
    is_vital: bool = False


# In the order of the flow, so that one round of turns carries a due job to its worker.
LOOPS = {
    loop.name: loop
    for loop in (
        Loop("reaper", "reap_interval", wakes=("dispatcher", "manager", WORKER), is_vital=True),
        Loop("reconciler", "reconcile_interval", wakes=("manager",)),
        Loop("cleaner", "cleanup_interval"),
        Loop("bulk_decisions", "bulk_decisions_interval", wakes=("manager", "dispatcher", WORKER)),
        Loop("manager", "manager_interval", wakes=("dispatcher", WORKER), is_vital=True),
        Loop("dispatcher", "dispatcher_interval", wakes=(WORKER,), is_vital=True),
    )
}
# The loops and the worker: everything that takes turns.
TURNING = {**LOOPS, WORKER: Loop(WORKER, "worker_interval", wakes=("manager",))}
VITAL = tuple(loop.name for loop in LOOPS.values() if loop.is_vital)
