"""Crash a stage after each thing that it asks of the database, let the system recover, and compare the outcomes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any
from unittest import mock

from django.db import connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from chainsched.flow.schedule.declare import Schedules
from chainsched.testing import Workbench
from tests.concurrency.rules import check_rules
from tests.factories import NOW
from tests.worlds import Dump, drive_to_quiet, dump, outcome, restore

UNTIL = NOW + timedelta(minutes=45)
WRITES = ("INSERT", "UPDATE", "DELETE")


class Crash(BaseException):
    """The process is gone: nothing that follows in its code happens."""


class Stage:
    """A stage in a world of its own: what comes before it, the stage, and who goes on after a crash in it."""

    transactions = 1

    def prepare(self, bench: Workbench) -> None:
        """Bring about the world in which the stage runs."""
        raise NotImplementedError

    def run(self, bench: Workbench) -> None:
        """The stage; it crashes after one of its statements or commits."""
        raise NotImplementedError

    def recover(self, bench: Workbench) -> None:
        """What a new process does next: unless a stage knows better, the caller or the next turn tries again."""
        self.run(bench)


@dataclass(slots=True)
class Sweep:
    """What was tried: the crash points, and at how many of them writes were undone."""

    points: int = 0
    undone: int = 0
    recovered: int = 0


def sweep(stage: Stage, *, recovers_always: bool) -> Sweep:
    """Crash the stage after its first statement or commit, after its second, and so on, until it comes to its end.

    After each crash others must see what the last commit left and nothing of what came later; so crashes with the
    same commits behind them leave the same rows, and the way back from there is tried once, unless ``recovers_always``.
    """
    declared = Schedules()
    with Workbench(NOW, declared=declared) as bench:
        stage.prepare(bench)
        world, now = dump(), bench.now
    expected = _undisturbed(stage, Workbench(now, declared=declared))
    restore(world)
    swept, recovered = Sweep(), set()
    with _observer() as observer:
        for point in count(1):
            with Workbench(now, declared=declared) as bench:
                crasher = _Crasher(point, seen_by=observer, committed=world)
                if not crasher.crashes(lambda bench=bench: stage.run(bench)):  # type: ignore[misc]
                    assert crasher.commits == stage.transactions, f"it made {crasher.commits} transactions"
                    return swept
                assert dump(observer) == crasher.committed, f"{crasher.last!r} left something half done"
                swept.points += 1
                swept.undone += crasher.has_unsaved
                if recovers_always or crasher.commits not in recovered:
                    stage.recover(bench)
                    drive_to_quiet(bench, until=UNTIL)
                    check_rules(bench)
                    assert outcome() == expected, f"after a crash behind {crasher.last!r}"
                    swept.recovered += 1
                    recovered.add(crasher.commits)
                    restore(world)
                elif crasher.commits:
                    restore(world)
    raise AssertionError("unreachable")


def _undisturbed(stage: Stage, bench: Workbench) -> dict[str, Any]:
    with bench:
        stage.run(bench)
        drive_to_quiet(bench, until=UNTIL)
        check_rules(bench)
    return outcome()


@contextmanager
def _observer() -> Iterator[BaseDatabaseWrapper]:
    """Somebody else's connection."""
    observer = connection.copy()
    try:
        yield observer
    finally:
        observer.close()


class _Crasher:
    """Counts statements and commits, and after the given number of them takes the connection away and crashes.

    The connection is cut, as happens to a process that dies: what it had begun, nobody rolls back but the database.
    """

    def __init__(self, point: int, *, seen_by: BaseDatabaseWrapper, committed: Dump) -> None:
        self.committed = committed
        self.commits = 0
        self.has_unsaved = False
        self.last = ""
        self._left = point
        self._observer = seen_by

    def crashes(self, call: Callable[[], None]) -> bool:
        """Run it; whether it crashed."""
        own: Any = connections["default"]
        commit = own._commit

        def commit_and_count() -> None:
            commit()
            self.commits += 1
            self.has_unsaved = False
            self.committed = dump(self._observer)
            self._step("COMMIT")

        try:
            with mock.patch.object(own, "_commit", commit_and_count), own.execute_wrapper(self):
                call()
        except Crash:
            # A new process has a new connection, and no memory of the old one's transaction.
            own.close()
            del connections["default"]
            return True
        return False

    def __call__(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        result = execute(sql, params, many, context)
        self.has_unsaved |= sql.startswith(WRITES)
        self._step(sql)
        return result

    def _step(self, what: str) -> None:
        self.last = what
        self._left -= 1
        if self._left == 0:
            _cut(connections["default"])
            raise Crash(what)


def _cut(own: BaseDatabaseWrapper) -> None:
    """End a connection behind Django's back, which could only send a ROLLBACK over a new one."""
    raw, own.connection = own.connection, None
    if own.vendor == "sqlite":
        # The file is unlocked when a process dies; here the connection would live on in the frames of the error.
        raw.rollback()
    raw.close()
