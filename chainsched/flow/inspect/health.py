"""Inspection: check that all loops and workers run.

Reads:  the processes, their heartbeats, the last turns of their loops and workers; whether the database takes writes;
        manifests and queue rows that are put aside.
Writes: nothing.
Next:   operators, containers and their probes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from chainsched.conf import Config, get_config
from chainsched.db.counts import count_each
from chainsched.db.sessions import access, oldest_transaction
from chainsched.domain.health import loop_problem, max_silence, signals_note, worker_problem
from chainsched.domain.loops import TURNING, VITAL, WORKER
from chainsched.domain.results import Health
from chainsched.domain.routing import Pool, are_taken, no_worker_takes
from chainsched.models import ManifestState, Process, WorkQueue, parked_rows

LONG_TRANSACTION = timedelta(minutes=5)
MAX_COUNTED = 1001
MAX_NAMES = 3
# Workflows and queues that no process takes, which notes name.
MAX_PAIRS = 5


def check_health(*, pools: Collection[Pool], now: datetime, is_thorough: bool = True) -> Health:
    """The problems of the processes, the loops or the database; none, if all is well.

    ``pools`` are what the task server can run at present; there is a problem if that is nothing.
    A thorough check also asks the database for sessions that block others, and whether it takes writes, before a
    process has failed because of it.
    """
    config = get_config()
    alive = list(Process.objects.alive(beaten_since=now - timedelta(seconds=config.process_expiry)).order_by("id"))
    turns = _last_turns(alive)
    lapses = tuple(_lapses(alive, turns, pools=pools, now=now, config=config))
    # If the database takes no writes, no process can write a heartbeat, and starting more would be the wrong remedy.
    refusal = _refusal() if lapses or is_thorough else None
    return Health(
        problems=(refusal,) if refusal else lapses,
        notes=tuple(_notes(alive, pools=pools, now=now)) if is_thorough else (),
        loops=turns,
        processes=tuple(_described(process) for process in alive),
    )


def _refusal() -> str | None:
    """Why the database takes no writes, with the remedy."""
    found = access()
    if found.is_standby:
        return "The database takes no writes: it is a standby. Set DATABASES to the primary, or promote the standby."
    if found.is_read_only:
        return "The database takes no writes: default_transaction_read_only is on. Turn it off."
    return None


def _lapses(
    alive: list[Process], turns: Mapping[str, datetime], *, pools: Collection[Pool], now: datetime, config: Config
) -> Iterator[str]:
    """Problems of loops that do not turn, of workers that complete no turn, and of missing workers."""
    problems = [
        loop_problem(loop, turned_at=turns.get(loop), now=now, max_silence=_max_silence(loop, config)) for loop in VITAL
    ]
    problems += [_problem_of_worker(process, now=now, config=config) for process in alive]
    yield from (problem for problem in problems if problem)
    if not any(pool.workflows for pool in pools):
        yield "No live process can run jobs; start run_scheduler or run_worker."


def _problem_of_worker(process: Process, *, now: datetime, config: Config) -> str | None:
    """Each worker is checked by itself: no other worker records the executions that it holds."""
    if WORKER not in process.turns:
        return None
    return worker_problem(
        f"{process.host}:{process.pid}",
        turned_at=datetime.fromisoformat(process.turns[WORKER]),
        now=now,
        max_silence=_max_silence(WORKER, config),
    )


def _max_silence(loop: str, config: Config) -> timedelta:
    interval = getattr(config, TURNING[loop].interval)
    return max_silence(interval=interval, heartbeat_interval=config.heartbeat_interval)


def _last_turns(alive: list[Process]) -> dict[str, datetime]:
    """When each loop last turned in any process, and any worker."""
    turns: dict[str, datetime] = {}
    for process in alive:
        for loop, text in process.turns.items():
            at = datetime.fromisoformat(text)
            turns[loop] = max(at, turns.get(loop, at))
    return turns


def _described(process: Process) -> dict[str, Any]:
    columns = ("kind", "host", "pid", "started_at", "heartbeat_at", "turns", "signals", "workflows", "queues")
    return {column: getattr(process, column) for column in columns}


def _notes(alive: Sequence[Process], *, pools: Collection[Pool], now: datetime) -> Iterator[str]:
    """Facts that are no problem of chainsched but may explain one."""
    oldest = oldest_transaction()
    if oldest is not None and now - oldest.began_at >= LONG_TRANSACTION:
        minutes = (now - oldest.began_at).total_seconds() / 60
        yield f"Session {oldest.pid} ({oldest.name}) has held a transaction open for {minutes:.0f} minutes."
    yield from _put_aside()
    yield from _without_worker(pools)
    yield from _deaf(alive)
    yield from _late_signals(alive, now=now)


def _put_aside() -> Iterator[str]:
    counted = count_each(
        {"manifests": ManifestState.objects.aside(), "queue rows": WorkQueue.objects.aside()}, limit=MAX_COUNTED
    )
    listed = [f"{_up_to_bound(number)} {what}" for what, number in counted.items() if number]
    if listed:
        yield (
            f"Put aside because they could not be queued or dispatched: {' and '.join(listed)}. `chainsched explain` "
            "and `chainsched fsck` say why; `fsck --repair` has them tried again."
        )


def _without_worker(pools: Collection[Pool]) -> Iterator[str]:
    """Rows that the dispatcher has parked because no process takes them, and that none takes now, either."""
    waiting = parked_rows.pairs_without_worker(limit=MAX_PAIRS) if pools else []
    for workflow, queue in waiting:
        if are_taken(workflow, queue, pools=pools):
            continue
        if any(workflow in pool.workflows for pool in pools):
            yield f"Jobs of workflow {workflow!r} wait: {no_worker_takes(queue, pools=pools)}."
        else:
            yield f"Jobs of workflow {workflow!r} wait: no live process can run it; start a worker that knows it."


def _up_to_bound(number: int) -> str:
    return f"more than {MAX_COUNTED - 1:,}" if number == MAX_COUNTED else f"{number:,}"


def _deaf(alive: Sequence[Process]) -> Iterator[str]:
    deaf = [process for process in alive if process.deaf_since is not None]
    if deaf:
        names = ", ".join(f"{process.kind} {process.host}:{process.pid}" for process in deaf[:MAX_NAMES])
        more = f" and {len(deaf) - MAX_NAMES} more" if len(deaf) > MAX_NAMES else ""
        yield (
            f"These processes hear no notices of others and poll instead: {names}{more}. Behind a pooler of "
            "transactions, let LISTEN name an alias of DATABASES that connects directly."
        )


def _late_signals(alive: Sequence[Process], *, now: datetime) -> Iterator[str]:
    """Signals that wait for receivers of the project; jobs run all the same."""
    for process in alive:
        since_heartbeat = now - process.heartbeat_at
        if note := signals_note(f"{process.host}:{process.pid}", process.signals, since_heartbeat=since_heartbeat):
            yield note
