"""Two calls on two connections, in every order that one stop of the first can bring about.

The first call is stopped after its first statement, then after its second, and so on to its last before COMMIT; each
time the second call runs meanwhile, until it is done or waits for a lock that the first one holds. Whatever the
stop, the outcome must be that of one call after the other.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from django.db import connection, connections

from chainsched.exceptions import ChainschedError
from chainsched.testing import Workbench
from tests.concurrency.rules import check_rules
from tests.waiting import wait_until
from tests.worlds import Dump, drive_to_quiet, dump, in_detail, outcome, restore

Call = Callable[[], Any]
PATIENCE = 20


class Actor:
    """A thread with a connection of its own that can be stopped after a statement."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._pid = self._pool.submit(_backend_pid).result()
        self._stopped_or_done = threading.Event()
        self._may_go_on = threading.Event()
        self._call: Future[Any] = Future()

    def start(self, call: Call, *, stop_after: int | None = None) -> None:
        """Begin a call; it stops after this many statements, if it makes so many."""
        self._stopped_or_done.clear()
        self._may_go_on.clear()
        self._call = self._pool.submit(self._run, call, stop_after)
        self._call.add_done_callback(lambda _: self._stopped_or_done.set())

    def stops(self) -> bool:
        """Wait until the call has stopped or is done; whether it has stopped."""
        assert self._stopped_or_done.wait(PATIENCE)
        return not self.is_done

    def is_held(self) -> bool:
        """Whether it waits for a lock of somebody's; not of an autovacuum, which gives it back by itself."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT EXISTS (SELECT FROM pg_stat_activity"
                " WHERE pid = ANY (pg_blocking_pids(%s)) AND backend_type = 'client backend')",
                [self._pid],
            )
            return bool(cursor.fetchone()[0])

    @property
    def is_done(self) -> bool:
        return self._call.done()

    def go_on(self) -> None:
        self._may_go_on.set()

    def result(self) -> Any:
        return self._call.result(PATIENCE)

    def close(self) -> None:
        self.go_on()
        self._pool.submit(connections.close_all).result(PATIENCE)
        self._pool.shutdown()

    def _run(self, call: Call, stop_after: int | None) -> Any:
        left = stop_after

        def stop(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
            nonlocal left
            result = execute(sql, params, many, context)
            if left is not None:
                left -= 1
                if left == 0:
                    self._stopped_or_done.set()
                    assert self._may_go_on.wait(PATIENCE)
            return result

        with connection.execute_wrapper(stop):
            return answer(call)


@contextmanager
def actors(number: int = 2) -> Iterator[list[Actor]]:
    """Some actors, whose connections are closed afterwards."""
    cast = [Actor() for _ in range(number)]
    try:
        yield cast
    finally:
        for actor in cast:
            actor.close()


def answer(call: Call) -> Any:
    """What the call returns; a refusal is an answer too."""
    try:
        return call()
    except ChainschedError as refusal:
        return type(refusal).__name__


@dataclass(slots=True)
class Interleaved:
    """How often the first call was stopped, how often the second one had to wait for it, and what they answered."""

    stops: int = 0
    waits: int = 0
    answers: list[tuple[Any, Any]] = field(default_factory=list)


def interleave(bench: Workbench, first: Call, second: Call) -> Interleaved:
    """Try all stops of the first call in the present world, and compare what follows with one after the other."""
    world, now = dump(), bench.now
    expected = [_in_turn(bench, world, calls) for calls in ((first, second), (second, first))]
    seen: list[Any] = []
    tried = Interleaved()
    with actors() as (one, other):
        for step in count(1):
            _go_back(bench, world, now)
            one.start(first, stop_after=step)
            if not one.stops():
                return tried
            other.start(second)
            wait_until(lambda: other.is_done or other.is_held(), interval=0.001)
            tried.stops += 1
            tried.waits += not other.is_done
            one.go_on()
            tried.answers.append((one.result(), other.result()))
            if (reached := in_detail()) not in seen:
                seen.append(reached)
                assert _come_to_rest(bench) in expected, f"stopped after statement {step}"
    raise AssertionError("unreachable")


def _in_turn(bench: Workbench, world: Dump, calls: Sequence[Call]) -> dict[str, Any]:
    """The outcome of one call after the other."""
    now = bench.now
    _go_back(bench, world, now)
    for call in calls:
        answer(call)
    reached = _come_to_rest(bench)
    _go_back(bench, world, now)
    return reached


def _come_to_rest(bench: Workbench) -> dict[str, Any]:
    """Let everything go its way; the outcome."""
    drive_to_quiet(bench, until=bench.now.replace(minute=45))
    check_rules(bench)
    return _whatever_arrived_last(outcome())


def _whatever_arrived_last(reached: dict[str, Any]) -> dict[str, Any]:
    """The outcome without the name of the member that a join ran after: the newest one.

    Which of them that is depends on the order of dispatch, and so on rows that a dispatcher passed over.
    """
    joins = {manifest["external_id"] for manifest in reached["manifests"] if manifest["is_join"]}
    for name in joins:
        state = reached["states"][name]
        state["is_behind"] = state.pop("due") != state.pop("covered")
    for name, run in reached["runs"].items():
        if name.rpartition("/")[0] in joins:
            run["has_parent"] = run.pop("parent") != "none"
    return reached


def _go_back(bench: Workbench, world: Dump, now: Any) -> None:
    restore(world)
    bench.travel_to(now)
    # The process that its work was done by went with the rows.
    vars(bench).pop("process", None)


def _backend_pid() -> int:
    connection.ensure_connection()
    return int(connection.connection.info.backend_pid)
