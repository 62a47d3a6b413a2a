"""A contestant with its database: what its client is asked, and its workers while they run."""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from bench import server as servers
from bench.contestants import Contestant
from bench.marks import VARIABLE, Marks
from bench.processes import ROOT, cpu_of, running
from bench.server import Server

LOOK_EVERY = 0.005
PATIENCE = 600
END_OF_LOG = 3000


class Failed(Exception):
    """A contestant did not do what the bench asked; the message ends with what it printed."""


class Installed:
    """One contestant that is ready to be measured."""

    def __init__(self, contestant: Contestant, *, server: Server, folder: Path) -> None:
        self.contestant = contestant
        self.server = server
        self.database, is_new = server.database(contestant.database or contestant.name)
        self.marks = Marks(folder / f"{contestant.name}.marks")
        self.environment = {
            "PYTHONPATH": str(ROOT),
            servers.VARIABLE: self.database.url,
            "CHAINSCHED_BENCH_URL": self.database.url,
            VARIABLE: str(self.marks.path),
            **contestant.environment,
        }
        if is_new:
            self.ask("install")

    def ask(self, action: str, number: int = 0) -> dict[str, Any]:
        """Let the client do something; returns what it tells."""
        command = [*self._command("python", "-m", "bench.client", self.contestant.module), action, str(number)]
        with tempfile.TemporaryFile() as log:
            done = subprocess.run(  # noqa: S603 - our own command
                command,
                cwd=ROOT,
                env={**os.environ, **self.environment},
                stdout=subprocess.PIPE,
                stderr=log,
                check=False,
            )
            if done.returncode:
                raise self.failure(f"{action} ended with {done.returncode}", log)
        told: dict[str, Any] = json.loads(done.stdout.decode().splitlines()[-1])
        return told

    @contextmanager
    def working(self) -> Iterator["Work"]:
        """Its workers, while the block runs."""
        commands = [self._command(*command) for command in self.contestant.workers]
        with tempfile.TemporaryFile() as log, running(commands, environment=self.environment, log=log) as processes:
            yield Work(self, processes, log)

    def failure(self, what: str, log: IO[bytes]) -> Failed:
        """The error to raise, with the end of the log."""
        log.seek(0)
        return Failed(f"{what}.\n{log.read().decode(errors='replace')[-END_OF_LOG:]}")

    def is_recorded(self, count: int) -> bool:
        """Whether so many jobs, which have all run, are recorded too."""
        if self.contestant.is_open is not None:
            return not self.database.ask(self.contestant.is_open)
        return self.contestant.recorded is None or self.recorded() >= count

    def recorded(self) -> int:
        """How many jobs are recorded."""
        return int(self.database.ask(self.contestant.recorded or "SELECT 0"))

    def _command(self, program: str, *arguments: str) -> list[str]:
        return [str(ROOT / self.contestant.venv / "bin" / program), *arguments]


class Work:
    """The workers of a contestant while they run."""

    def __init__(self, installed: Installed, processes: Sequence[subprocess.Popen[bytes]], log: IO[bytes]) -> None:
        self.installed = installed
        self._processes = processes
        self._log = log

    def wait(self, is_done: Callable[[], bool], *, until: str, every: float = LOOK_EVERY) -> None:
        """Look until it is done; raises Failed if a process ends or it takes too long."""
        deadline = time.monotonic() + PATIENCE
        while not is_done():
            if any(process.poll() is not None for process in self._processes):
                raise self.installed.failure(f"a worker ended before {until}", self._log)
            if time.monotonic() > deadline:
                raise self.installed.failure(f"waited {PATIENCE} s until {until}", self._log)
            time.sleep(every)

    def wait_for_jobs(self, count: int) -> None:
        """Wait until so many jobs ran."""
        self.wait(lambda: self.installed.marks.count >= count, until=f"{count} jobs ran")

    @property
    def pids(self) -> list[int]:
        """The process ids of what was started; there may be others below."""
        return [process.pid for process in self._processes]

    def cpu(self) -> "Cpu":
        """The CPU that was used so far."""
        return Cpu(own=cpu_of(self.pids), server=cpu_of([self.installed.server.pid]))


class Cpu:
    """Seconds of CPU: of a contestant's own processes, and of PostgreSQL."""

    def __init__(self, *, own: float, server: float) -> None:
        self.own = own
        self.server = server

    def __sub__(self, other: "Cpu") -> "Cpu":
        return Cpu(own=self.own - other.own, server=self.server - other.server)
