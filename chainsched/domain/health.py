"""When a loop or a worker that turns again and again is late."""

from __future__ import annotations

from datetime import datetime, timedelta

# A loop may miss two turns, and a heartbeat brings its time, before anybody should worry.
TURNS = 3


def patience(*, interval: float, heartbeat_interval: float) -> timedelta:
    """For how long nothing may be heard of a loop; both intervals in seconds."""
    return timedelta(seconds=TURNS * (interval + heartbeat_interval))


def complain(loop: str, *, turned_at: datetime | None, now: datetime, patience: timedelta) -> str | None:
    """What is wrong with a loop that last turned then; None if it is in time."""
    if turned_at is None:
        return f"The {loop} turns nowhere; start run_scheduler."
    if now - turned_at > patience:
        return f"The {loop} has not turned for {(now - turned_at).total_seconds():.0f} s."
    return None


def complain_of_worker(where: str, *, turned_at: datetime, now: datetime, patience: timedelta) -> str | None:
    """What is wrong with the worker of a process that last got through a turn then; None if it is in time.

    Its process lives, so starting another would not help: what it cannot claim or record, nobody can.
    """
    if now - turned_at <= patience:
        return None
    seconds = (now - turned_at).total_seconds()
    return f"The worker of {where} has not got through a turn for {seconds:.0f} s; its log says why."
