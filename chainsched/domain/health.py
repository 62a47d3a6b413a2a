"""When a loop or a worker is late with its next turn, or receivers of signals are."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

# A loop may miss two turns, and its time arrives only with a heartbeat, before it counts as late.
TURNS = 3
# Receivers may be behind for a moment, as after a large batch; they are late from then on.
LATE_SIGNALS = timedelta(minutes=1)


def max_silence(*, interval: float, heartbeat_interval: float) -> timedelta:
    """The longest time between two turns of a loop as heartbeats report them; both intervals in seconds."""
    return timedelta(seconds=TURNS * (interval + heartbeat_interval))


def loop_problem(loop: str, *, turned_at: datetime | None, now: datetime, max_silence: timedelta) -> str | None:
    """The problem of a loop that last turned at ``turned_at``; None if it is in time."""
    if turned_at is None:
        return f"No process runs the {loop}; start run_scheduler."
    if now - turned_at > max_silence:
        return f"The {loop} has not turned for {(now - turned_at).total_seconds():.0f} s."
    return None


def worker_problem(where: str, *, turned_at: datetime, now: datetime, max_silence: timedelta) -> str | None:
    """The problem of a worker that last completed a turn at ``turned_at``; None if it is in time.

    Its process is alive, so starting another would not help: no other worker records the executions that it holds.
    """
    if now - turned_at <= max_silence:
        return None
    seconds = (now - turned_at).total_seconds()
    return f"The worker of {where} has not completed a turn for {seconds:.0f} s; see its log for the reason."


def signals_note(where: str, signals: Mapping[str, Any], *, since_heartbeat: timedelta) -> str | None:
    """That receivers are late, or so late that signals are dropped, by the facts of the last heartbeat; None if not."""
    oldest = timedelta(seconds=signals.get("oldest_seconds", 0)) + since_heartbeat
    waiting, dropped = signals.get("waiting", 0), signals.get("dropped", 0)
    if not signals.get("is_dropping") and (not waiting or oldest < LATE_SIGNALS):
        return None
    lost = f" {dropped} were dropped." if dropped else ""
    return (
        f"{waiting} signals of {where} wait for receivers of the project, the first for {oldest.total_seconds():.0f} s."
        f"{lost} Make the receivers quick."
    )
