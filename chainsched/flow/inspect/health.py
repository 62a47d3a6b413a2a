"""Beside the stages: say whether everything that should be alive is.

Reads:  the processes, their heartbeats, when their loops and workers last turned; whether the database takes writes.
Writes: nothing.
Next:   people, containers and their probes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from chainsched.conf import Config, get_config
from chainsched.db.sessions import access, oldest_transaction
from chainsched.domain.health import complain, complain_of_worker, patience
from chainsched.domain.results import Health
from chainsched.models import Process

# The key under which a beat tells of its worker, beside those of the loops.
WORKER = "worker"
LONG_TRANSACTION = timedelta(minutes=5)


def check_health(*, workflows: Collection[str], now: datetime, is_thorough: bool = True) -> Health:
    """What is wrong with the processes, the loops or the database; nothing, if all is well.

    ``workflows`` are the names that the task server can run at present; there is a problem if there are none.
    A thorough look also asks the database about sessions that hold everybody up, and whether it takes writes before
    anybody has failed for it.
    """
    config = get_config()
    alive = list(Process.objects.alive(beaten_since=now - timedelta(seconds=config.process_expiry)).order_by("id"))
    turns = _last_turns(alive)
    lapses = tuple(_lapses(alive, turns, workflows=workflows, now=now, config=config))
    # Where nothing can be written nobody beats, and starting more of them would be the wrong remedy.
    refusal = _refusal() if lapses or is_thorough else None
    return Health(
        problems=(refusal,) if refusal else lapses,
        notes=tuple(_notes(now)) if is_thorough else (),
        loops=turns,
        processes=tuple(_described(process) for process in alive),
    )


def _refusal() -> str | None:
    """Why the database takes no writes, with the remedy."""
    found = access()
    if found.is_standby:
        return "The database takes no writes: it is a standby. Let DATABASES name the primary, or promote it."
    if found.is_read_only:
        return "The database takes no writes: default_transaction_read_only is on. Turn it off."
    return None


def _lapses(
    alive: list[Process], turns: Mapping[str, datetime], *, workflows: Collection[str], now: datetime, config: Config
) -> Iterator[str]:
    """Loops that stand still, workers that get nothing done, and that there are none."""
    complaints = [
        complain(loop, turned_at=turns.get(loop), now=now, patience=_patience(loop, config)) for loop in _needed()
    ]
    complaints += [_complaint_of_worker(process, now=now, config=config) for process in alive]
    yield from (complaint for complaint in complaints if complaint)
    if not workflows:
        yield "No live process can run jobs; start run_scheduler or run_worker."


def _complaint_of_worker(process: Process, *, now: datetime, config: Config) -> str | None:
    """Each worker is judged by itself: others that turn record nothing of what it holds."""
    if WORKER not in process.turns:
        return None
    return complain_of_worker(
        f"{process.host}:{process.pid}",
        turned_at=datetime.fromisoformat(process.turns[WORKER]),
        now=now,
        patience=_patience(WORKER, config),
    )


def _needed() -> tuple[str, ...]:
    return ("manager", "dispatcher", "reaper")


def _patience(loop: str, config: Config) -> timedelta:
    intervals = {
        "manager": config.manager_interval,
        "dispatcher": config.dispatcher_interval,
        "reaper": config.reap_interval,
        WORKER: config.worker_interval,
    }
    return patience(interval=intervals[loop], heartbeat_interval=config.heartbeat_interval)


def _last_turns(alive: list[Process]) -> dict[str, datetime]:
    """When each loop last turned in any process, and any worker."""
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
