"""Beside the stages: say whether everything that should be alive is.

Reads:  the processes, their heartbeats, and when their loops last turned.
Writes: nothing.
Next:   people, containers and their probes.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from chainsched.conf import Config, get_config
from chainsched.domain.answers import Health
from chainsched.domain.lateness import complain, patience
from chainsched.models import Process
from chainsched.models.sessions import oldest_transaction

LONG_TRANSACTION = timedelta(minutes=5)


def examine(*, now: datetime, is_thorough: bool = True) -> Health:
    """What is wrong with the processes, the loops or the database; nothing, if all is well.

    A thorough look also asks the database about sessions that hold everybody up.
    """
    config = get_config()
    alive = list(Process.objects.alive(beaten_since=now - timedelta(seconds=config.process_expiry)).order_by("id"))
    turns = _last_turns(alive)
    problems = [
        complain(loop, turned_at=turns.get(loop), now=now, patience=_patience(loop, config)) for loop in _needed()
    ]
    if not any(process.workflows for process in alive) and config.task_server == "database":
        problems.append("No live process can run jobs; start run_scheduler or run_worker.")
    return Health(
        problems=tuple(problem for problem in problems if problem),
        notes=tuple(_notes(now)) if is_thorough else (),
        loops=turns,
        processes=tuple(_described(process) for process in alive),
    )


def _needed() -> tuple[str, ...]:
    return ("manager", "dispatcher", "reaper")


def _patience(loop: str, config: Config) -> timedelta:
    interval = {"manager": config.manager_interval, "dispatcher": config.dispatcher_interval}.get(
        loop, config.reap_interval
    )
    return patience(interval=interval, heartbeat_interval=config.heartbeat_interval)


def _last_turns(alive: list[Process]) -> dict[str, datetime]:
    """When each loop last turned in any process."""
    turns: dict[str, datetime] = {}
    for process in alive:
        for loop, text in process.turns.items():
            at = datetime.fromisoformat(text)
            turns[loop] = max(at, turns.get(loop, at))
    return turns


def _described(process: Process) -> dict[str, Any]:
    columns = ("kind", "host", "pid", "started_at", "heartbeat_at", "turns", "workflows")
    return {column: getattr(process, column) for column in columns}


def _notes(now: datetime) -> list[str]:
    """What is no fault of ours and still worth knowing."""
    oldest = oldest_transaction()
    if oldest is None or now - oldest.began_at < LONG_TRANSACTION:
        return []
    minutes = (now - oldest.began_at).total_seconds() / 60
    return [f"Session {oldest.pid} ({oldest.name}) holds a transaction open for {minutes:.0f} minutes."]
