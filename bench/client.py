"""What the bench asks of a contestant in a process of its own: ``python -m bench.client MODULE ACTION [NUMBER]``.

Runs with the interpreter of the contestant, which need not have chainsched or Django. Prints one JSON object.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from bench.marks import VARIABLE, Marks

LENGTH = 6
NAP = 0.0002
# Between two jobs, so that each meets an idle system.
PAUSE = 0.05
# A contestant that is slow to start jobs gets fewer of them.
MOST_SECONDS = 12
PATIENCE = 60


class Client(Protocol):
    """What the module of a contestant defines; ``enqueue_chain(length)`` besides, if it has chains."""

    def install(self) -> None:
        """Create its tables in an empty database."""

    def prepare(self, many: int, singles: int) -> None:
        """Delete all jobs, and make ready what so many need to be enqueued together, and so many one by one."""

    def enqueue_many(self, count: int) -> dict[str, float] | None:
        """Enqueue so many jobs in the fastest way that it offers; may tell figures of its own."""

    def enqueue_one(self) -> None:
        """Enqueue one job, as a view does."""


def install(client: Client, _number: int) -> dict[str, float]:
    """Create the tables."""
    client.install()
    return {}


def fill(client: Client, number: int) -> dict[str, float]:
    """Enqueue so many jobs together; tells how long that took."""
    client.prepare(number, 0)
    started = time.perf_counter()
    told = client.enqueue_many(number)
    return {"seconds": time.perf_counter() - started, **(told or {})}


def one_by_one(client: Client, number: int) -> dict[str, float]:
    """Enqueue so many jobs one after the other; tells how long that took, without the first, which connects."""
    client.prepare(0, number + 1)
    client.enqueue_one()
    started = time.perf_counter()
    for _ in range(number):
        client.enqueue_one()
    return {"seconds": time.perf_counter() - started}


def starts(client: Client, number: int) -> dict[str, list[float]]:
    """Enqueue one job after the other while workers are idle; tells the seconds from each call to the job's start."""
    runs = _run_in_turn(client.enqueue_one, number, length=1)
    return {"seconds": [start for (start,) in runs]}


def hops(client: Any, number: int) -> dict[str, list[float]]:
    """Run so many chains of six, one after the other; tells the seconds between the starts of neighbours."""
    runs = _run_in_turn(lambda: client.enqueue_chain(LENGTH), number, length=LENGTH)
    return {"seconds": [later - earlier for run in runs for earlier, later in pairwise(run)]}


def lonely(client: Client, number: int) -> dict[str, float]:
    """Enqueue so many jobs, five a second."""
    for _ in range(number):
        client.enqueue_one()
        time.sleep(0.2)
    return {}


def _run_in_turn(enqueue: Callable[[], None], number: int, *, length: int) -> list[list[float]]:
    """The starts of so many runs, one after the other, in seconds from the call; the first is not counted."""
    runs: list[list[float]] = []
    deadline = time.monotonic() + MOST_SECONDS
    while len(runs) <= number and (len(runs) < 2 or time.monotonic() < deadline):
        runs.append(_run(enqueue, length=length))
        time.sleep(PAUSE)
    return runs[1:]


def _run(enqueue: Callable[[], None], *, length: int) -> list[float]:
    marks = Marks(Path(os.environ[VARIABLE]))
    before = marks.count
    called = time.monotonic()
    enqueue()
    while marks.count < before + length:
        if time.monotonic() > called + PATIENCE:
            raise SystemExit(f"{marks.count - before} of {length} jobs ran in {PATIENCE} s.")
        time.sleep(NAP)
    return [moment - called for moment in marks.times[before:]]


def clear(client: Client, _number: int) -> dict[str, float]:
    """Leave no jobs behind."""
    client.prepare(0, 0)
    return {}


ACTIONS: dict[str, Callable[[Any, int], dict[str, Any]]] = {
    "install": install,
    "fill": fill,
    "one-by-one": one_by_one,
    "starts": starts,
    "hops": hops,
    "lonely": lonely,
    "clear": clear,
}


def main(arguments: Sequence[str]) -> None:
    """Do what the command line says."""
    module, action, number = arguments
    print(json.dumps(ACTIONS[action](import_module(module), int(number))))


if __name__ == "__main__":
    main(sys.argv[1:])
