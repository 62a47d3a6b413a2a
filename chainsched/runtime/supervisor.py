"""A running process: its lease, its loops as threads, its workers, and how it stops."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import FrameType

from chainsched.conf import get_config
from chainsched.flow.reap import reap
from chainsched.flow.verify import reconcile
from chainsched.models.clock import database_now
from chainsched.registry import registry
from chainsched.runtime import job_dispatcher, manifest_manager
from chainsched.runtime.cleaner import Cleaner
from chainsched.runtime.lease import Lease
from chainsched.runtime.poller import Poller, Turn
from chainsched.runtime.runner import ThreadRunner
from chainsched.runtime.worker import Worker

logger = logging.getLogger(__name__)

# The order is that of the flow, so that one round of turns carries a due job to its worker.
LOOPS = ("reaper", "reconciler", "cleaner", "manager", "dispatcher")
WORKER = "worker"
# Whose turn may find something new after whose turn did something.
WAKES = {
    "reaper": ("dispatcher", "manager"),
    "reconciler": ("manager",),
    "cleaner": (),
    "manager": ("dispatcher",),
    "dispatcher": (WORKER,),
    WORKER: ("manager", "dispatcher"),
}


@dataclass(frozen=True, slots=True)
class Roles:
    """What a process does: which loops it turns, and how many jobs it runs at once."""

    kind: str
    loops: Sequence[str]
    workers: int


class Supervisor:
    """Runs the loops and workers of one process until it is told to stop."""

    def __init__(self, roles: Roles) -> None:
        workflows = registry.names() if roles.workers else []
        self._stop_asked = threading.Event()
        self._result_ready = threading.Event()
        self._worker_idle = threading.Event()
        self._is_lost = False
        self._exit_code = 0
        self._signals = 0
        self._lease = Lease(roles.kind, workflows=workflows, on_loss=self._lose)
        self._runner = ThreadRunner(roles.workers, on_result=self._note_result)
        self._worker = Worker(self._lease.process, self._runner, workflows=workflows)
        self._cleaner = Cleaner()
        self._names = [*(name for name in LOOPS if name in roles.loops), *([WORKER] if roles.workers else [])]
        self._pollers = {name: self._poller(name) for name in self._names}

    def run(self, *, seconds: float | None = None) -> int:
        """Turn until stopped by a signal, by ``stop`` or after ``seconds``; returns the exit code."""
        self._lease.start()
        for poller in self._pollers.values():
            poller.start()
        self._stop_asked.wait(seconds)
        return self._abandon() if self._is_lost else self._drain()

    def run_once(self) -> None:
        """Take one turn of everything in this thread, and wait for the jobs that it started."""
        self._lease.start()
        for name in self._names:
            self._turn_of(name)(database_now())
        self._worker.drain()
        while not self._worker.is_idle:
            self._result_ready.wait()
            self._result_ready.clear()
            self._worker.turn(database_now())
        self._runner.close()
        self._lease.stop()

    def stop(self) -> None:
        """Ask for an orderly end; returns at once."""
        self._stop_asked.set()

    def listen_to_signals(self) -> None:
        """Drain on the first SIGTERM or SIGINT, abort on the second."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals > 1:
            os._exit(128 + number)
        # Not here: the main thread may hold the event's lock at this very moment, and would wait for itself.
        threading.Thread(target=self.stop).start()

    def _poller(self, name: str) -> Poller:
        return Poller(
            name,
            self._turn_of(name),
            interval=_interval_of(name),
            after=lambda turn: self._pass_on(name, turn),
            on_death=self._lose_loop,
        )

    def _turn_of(self, name: str) -> Callable[[datetime], Turn]:
        return {
            "manager": manifest_manager.turn,
            "dispatcher": job_dispatcher.turn,
            "reaper": _reap,
            "reconciler": _reconcile,
            "cleaner": self._cleaner.turn,
            WORKER: self._worker.turn,
        }[name]

    def _pass_on(self, name: str, turn: Turn) -> None:
        """Wake the loops that may have something to do after this turn."""
        if name == WORKER and self._worker.is_idle:
            self._worker_idle.set()
        for other in WAKES[name] if turn.did else ():
            if other in self._pollers:
                self._pollers[other].wake()

    def _note_result(self) -> None:
        self._result_ready.set()
        if WORKER in self._pollers:
            self._pollers[WORKER].wake()

    def _drain(self) -> int:
        """Start nothing more, let running jobs finish, record them, and give the lease back."""
        for name, poller in self._pollers.items():
            if name != WORKER:
                poller.stop()
        is_drained = self._drain_worker()
        for poller in self._pollers.values():
            poller.stop()
        for poller in self._pollers.values():
            poller.join(get_config().shutdown_timeout)
        self._runner.close()
        self._lease.stop()
        return self._exit_code if is_drained else 1

    def _drain_worker(self) -> bool:
        if WORKER not in self._pollers:
            return True
        self._worker.drain()
        self._worker_idle.clear()
        self._pollers[WORKER].wake()
        is_drained = self._worker_idle.wait(get_config().shutdown_timeout)
        if not is_drained:
            logger.error("%d jobs did not finish in time; they count as lost and are retried.", self._runner.running)
        return is_drained

    def _lose(self) -> None:
        self._is_lost = True
        self.stop()

    def _lose_loop(self) -> None:
        """A process without one of its loops looks alive and is not; it ends, so that somebody starts it again."""
        logger.critical("A loop ended unexpectedly; this process ends.")
        self._exit_code = 1
        self.stop()

    def _abandon(self) -> int:
        """End at once: others may be running our jobs already, and nothing of ours counts any more."""
        logger.critical("This process lost its lease; it ends now and should be started again.")
        for poller in self._pollers.values():
            poller.stop()
        self._runner.close()
        return 1


def _interval_of(name: str) -> float:
    config = get_config()
    return {
        "manager": config.manager_interval,
        "dispatcher": config.dispatcher_interval,
        "reaper": config.reap_interval,
        "reconciler": config.reconcile_interval,
        "cleaner": config.cleanup_interval,
        WORKER: config.worker_interval,
    }[name]


def _reap(now: datetime) -> Turn:
    reaped = reap(now=now)
    return Turn(did=reaped.lost + reaped.released, has_more=reaped.has_more)


def _reconcile(now: datetime) -> Turn:
    return Turn(did=reconcile(now=now))
