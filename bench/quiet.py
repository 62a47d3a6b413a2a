"""What a scheduler with two children and default settings costs while nothing is due, and with five runs a second."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.installed import Installed, Work

STATEMENT = re.compile(rb"LOG:  (?:statement|execute)\b")
# How long start-up goes on after the first job has run.
SETTLE = 3.0


@dataclass(frozen=True, slots=True)
class Idle:
    """Percent of a core, and statements a second; None where the log of the server cannot be read."""

    own_cpu: float
    server_cpu: float
    statements: float | None


@dataclass(frozen=True, slots=True)
class Lonely:
    """Milliseconds of CPU a run."""

    own_cpu: float
    server_cpu: float


def measure(installed: Installed, *, seconds: float) -> tuple[Idle, Lonely]:
    """Let the workers do nothing for so long, and then as long one job every fifth of a second."""
    installed.ask("fill", 1)
    installed.marks.clear()
    with _logged(installed), installed.working() as work:
        work.wait_for_jobs(1)
        time.sleep(min(SETTLE, seconds))
        return _idle(work, seconds=seconds), _lonely(work, runs=max(1, int(seconds * 5)))


def _idle(work: Work, *, seconds: float) -> Idle:
    log = _log_of(work.installed.server.pid)
    size = log.stat().st_size if log else 0
    used, started = work.cpu(), time.monotonic()
    time.sleep(seconds)
    used, took = work.cpu() - used, time.monotonic() - started
    statements = len(STATEMENT.findall(_read(log, size))) / took if log else None
    return Idle(used.own / took * 100, used.server / took * 100, statements)


def _lonely(work: Work, *, runs: int) -> Lonely:
    work.installed.marks.clear()
    used = work.cpu()
    work.installed.ask("lonely", runs)
    work.wait_for_jobs(runs)
    used = work.cpu() - used
    return Lonely(used.own / runs * 1000, used.server / runs * 1000)


@contextmanager
def _logged(installed: Installed) -> Iterator[None]:
    """Let the server log the statements of new sessions in this database."""
    name = installed.database.ask("SELECT quote_ident(current_database())")
    installed.database.run(f"ALTER DATABASE {name} SET log_statement = 'all'")
    try:
        yield
    finally:
        installed.database.run(f"ALTER DATABASE {name} RESET log_statement")


def _log_of(pid: int) -> Path | None:
    """The file into which the server writes its log, if it is one that we may read."""
    try:
        log = Path(f"/proc/{pid}/fd/2").resolve(strict=True)
    except OSError:
        return None
    return log if log.is_file() else None


def _read(log: Path, size: int) -> bytes:
    with log.open("rb") as file:
        file.seek(size)
        return file.read()
