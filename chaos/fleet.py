"""The schedulers and workers of a run; those that end are started again, as a service manager does it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from chaos import processes, receivers, witness

ROOT = Path(__file__).resolve().parent.parent
SCHEDULER = "scheduler"
WORKER = "worker"
# The command line of each kind.
COMMANDS = {
    SCHEDULER: ("run_scheduler", "--processes", "0"),
    WORKER: ("run_worker", "--processes", "3", "--threads", "2"),
}
STOP_SECONDS = 40
# Children end at once after their supervisor on an idle machine; this is for a busy one.
ORPHAN_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of a process: its name, its exit code, and whether the harness caused it."""

    member: str
    code: int
    was_killed: bool = False
    was_frozen: bool = False
    was_stopped: bool = False


@dataclass(frozen=True, slots=True)
class Freeze:
    """A period, by the monotonic clock, in which the process that holds a member's lease was frozen."""

    member: str
    since: float
    until: float


@dataclass(slots=True)
class Member:
    """One process that the harness started; its name is new with each start and is inherited by its children."""

    kind: str
    name: str
    process: subprocess.Popen[bytes]
    is_killed: bool = False
    is_frozen: bool = False

    @property
    def pid(self) -> int:
        return self.process.pid


@dataclass(slots=True)
class Fleet:
    """All members, the exits of former ones, and when each process below them was last seen alive."""

    folder: Path
    environment: Mapping[str, str]
    members: list[Member] = field(default_factory=list)
    exits: list[Exit] = field(default_factory=list)
    freezes: list[Freeze] = field(default_factory=list)
    seen: dict[int, float] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)

    @property
    def witness(self) -> Path:
        """The file with the jobs' lines."""
        return self.folder / "witness.jsonl"

    @property
    def signals(self) -> Path:
        """The file with the lines of the receivers of signals."""
        return self.folder / "signals.jsonl"

    def start(self, kind: str) -> None:
        """Start a process of this kind; its output goes to a file with its name."""
        name = f"{kind}-{len(self.pids) + 1}"
        files = {witness.FILE: str(self.witness), receivers.FILE: str(self.signals)}
        environment = {**self.environment, **files, witness.MEMBER: name}
        with self._log(name) as log:
            process = subprocess.Popen(
                [sys.executable, "manage.py", *COMMANDS[kind]],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.pids[name] = process.pid
        self.members.append(Member(kind, name, process))

    def of(self, *kinds: str) -> list[Member]:
        """The members of these kinds that are alive and not frozen."""
        return [member for member in self.members if member.kind in kinds and not member.is_frozen]

    def restart_ended(self) -> None:
        """Store which processes are alive, and start members again that have ended."""
        now, children = time.monotonic(), processes.read_children()
        for member in list(self.members):
            below = processes.family(member.pid, children=children)
            self.seen |= dict.fromkeys([member.pid, *below], now)
            if member.process.poll() is not None:
                self._record_exit(member)
                self.start(member.kind)

    def kill(self, member: Member) -> None:
        """Send SIGKILL to the process itself, not to its children."""
        member.is_killed = True
        processes.send(signal.SIGKILL, [member.pid])

    def stop(self) -> None:
        """Ask all to drain, wait for them, and kill those that do not end."""
        for member in self.members:
            processes.send(signal.SIGTERM, [member.pid])
        deadline = time.monotonic() + STOP_SECONDS
        for member in list(self.members):
            try:
                member.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                processes.send(signal.SIGKILL, [*processes.family(member.pid), member.pid])
                member.process.wait()
            self._record_exit(member, was_stopped=True)

    def end_left_over(self) -> list[str]:
        """The processes that still run a while after all were stopped; they are killed now."""
        deadline = time.monotonic() + ORPHAN_SECONDS
        while (pids := self._started()) and time.monotonic() < deadline:
            time.sleep(0.05)
        named = [f"process {pid}: {processes.command_of(pid)}" for pid in pids]
        processes.send(signal.SIGKILL, pids)
        return named

    def _started(self) -> list[int]:
        """The living descendants of the processes that the harness started."""
        return processes.carrying(witness.FILE, str(self.witness))

    def _record_exit(self, member: Member, *, was_stopped: bool = False) -> None:
        self.members.remove(member)
        was_frozen = any(freeze.member == member.name for freeze in self.freezes)
        self.exits.append(
            Exit(
                member.name,
                member.process.returncode,
                was_killed=member.is_killed,
                was_frozen=was_frozen,
                was_stopped=was_stopped,
            )
        )

    def _log(self, name: str) -> BinaryIO:
        return (self.folder / f"{name}.log").open("ab")

    def log_lines(self) -> Iterator[tuple[str, str]]:
        """Every line that a member wrote, with the member's name."""
        for path in sorted(self.folder.glob("*-*.log")):
            for line in path.read_text(errors="replace").splitlines():
                yield path.stem, line


@contextmanager
def running_fleet(kinds: Sequence[str], *, folder: Path, environment: Mapping[str, str]) -> Iterator[Fleet]:
    """Start these processes; at the end all of them are killed, also after an error."""
    fleet = Fleet(folder, {**os.environ, **environment})
    try:
        for kind in kinds:
            fleet.start(kind)
        yield fleet
    finally:
        processes.send(signal.SIGKILL, processes.carrying(witness.FILE, str(fleet.witness)))
        for member in fleet.members:
            member.process.wait()
