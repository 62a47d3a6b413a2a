"""Run the example project: ``python -m example_project.demo [--for SECONDS]``.

Starts the admin site and the scheduler as child processes and prints what happens. With ``--for`` it ends by itself,
with exit code 0 if every kind of job in the example had its runs, so that it also serves as a smoke test.
"""

import argparse
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import django
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db.models import Count, Max

PROJECT_ROOT = Path(__file__).resolve().parent.parent
USERNAME = PASSWORD = "admin"
FAVOURITE_PORT = 8000
SUMMARY_INTERVAL = 3.0
LOOK_INTERVAL = 0.2
START_TIMEOUT = 20.0
STOP_TIMEOUT = 30.0

# What the example has, by the workflow behind it. The export never completes: its end is a dead letter.
KINDS = {
    "etl.extract": "extract, per region",
    "etl.transform": "transform, after extract",
    "etl.load": "load, after transform",
    "etl.repair": "repair, dormant until activated",
    "etl.sync_table": "table slices, fanned out",
    "etl.open_books": "closing, begins",
    "etl.add_up": "accounts, after it begins",
    "etl.close_books": "books, a join after both accounts",
    "etl.report": "report, by cron",
    "etl.check_sources": "source check, async",
    "etl.export_to_partner": "export, fails into a dead letter",
}
DEAD_LETTERED = "etl.export_to_partner"


class ChildDied(RuntimeError):
    """A process that the demo needs ended by itself."""


@dataclass(frozen=True)
class Child:
    """A process of the demo and the file that takes what it says."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def check(self) -> None:
        """Raise ChildDied, with its last words, if it is gone."""
        code = self.process.poll()
        if code is not None:
            last_words = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
            raise ChildDied(f"The {self.name} ended unexpectedly with code {code}. Its last words:\n{last_words}")

    @property
    def ended_well(self) -> bool:
        return self.process.returncode in (0, -signal.SIGTERM)

    def stop(self) -> None:
        """Ask it to end in good order; end it if it does not."""
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            print(f"The {self.name} did not stop in {STOP_TIMEOUT:.0f} s and is killed.")
            self.process.kill()
            self.process.wait()


@dataclass
class StopSignal:
    """Remembers that somebody asked the demo to end."""

    received: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.received)

    def listen(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.received.append(number)


@dataclass(frozen=True)
class Summary:
    """How often the jobs of each workflow are in which state, and how many dead letters wait."""

    states: Counter[tuple[str, str]]
    dead_letters: Counter[str]

    def idle_kinds(self) -> list[str]:
        """The kinds of job that have no completed run, or, for the one that cannot have any, no dead letter."""
        return [
            kind
            for workflow, kind in KINDS.items()
            if not (self.dead_letters if workflow == DEAD_LETTERED else self._completed())[workflow]
        ]

    def _completed(self) -> Counter[str]:
        return Counter({workflow: count for (workflow, state), count in self.states.items() if state == "completed"})

    def lines(self) -> Iterator[str]:
        """The summary as a table."""
        columns = ("completed", "failed", "in_progress", "queued")
        yield f"  {'':34}{'completed':>10}{'failed':>8}{'running':>9}{'queued':>8}{'dead letters':>14}"
        for workflow, kind in KINDS.items():
            completed, failed, running, queued = (self.states[workflow, state] for state in columns)
            letters = self.dead_letters[workflow]
            yield f"  {kind:34}{completed:>10}{failed:>8}{running:>9}{queued:>8}{letters:>14}"


def main(arguments: Sequence[str]) -> int:
    """Run the demo and return its exit code."""
    seconds = _parse(arguments)
    asked_to_stop = StopSignal()
    asked_to_stop.listen()
    _prepare()
    first_id = _last_execution_id() + 1
    try:
        with _running() as children:
            _watch(children, asked_to_stop, first_id=first_id, seconds=seconds)
            print("\nStopping: running jobs are finished first.", flush=True)
    except ChildDied as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    for child in children:
        if not child.ended_well:
            print(f"The {child.name} did not stop in good order: code {child.process.returncode}.", file=sys.stderr)
            return 1
    return _conclude(_summarise(first_id), is_complete=seconds is not None and not asked_to_stop)


def _parse(arguments: Sequence[str]) -> float | None:
    parser = argparse.ArgumentParser(prog="python -m example_project.demo", description="Run the example project.")
    parser.add_argument(
        "--for", dest="seconds", type=_positive, metavar="SECONDS", help="end after this time and check the result"
    )
    seconds: float | None = parser.parse_args(arguments).seconds
    return seconds


def _positive(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise ValueError(text)
    return seconds


def _prepare() -> None:
    """Bring the database up to date and make sure that somebody can log in."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
    django.setup()
    call_command("migrate", verbosity=0, interactive=False)
    users = get_user_model().objects
    if not users.filter(username=USERNAME).exists():
        users.create_superuser(USERNAME, password=PASSWORD)


@contextmanager
def _running() -> Iterator[list[Child]]:
    """Run the admin site and the scheduler; both have ended afterwards, however this is left."""
    port = _free_port()
    address = f"127.0.0.1:{port}"
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chainsched-demo-")))
        site = _start("admin site", ["runserver", "--noreload", address], logs=logs, stack=stack)
        scheduler = _start("scheduler", ["run_scheduler", "--processes", "2", "--threads", "2"], logs=logs, stack=stack)
        _wait_for(site, port)
        print(f"The admin is at http://{address}/admin/")
        print(f"Log in as {USERNAME!r} with the password {PASSWORD!r}: for this demo only. Ctrl-C stops everything.")
        yield [site, scheduler]


def _start(name: str, command: Sequence[str], *, logs: Path, stack: ExitStack) -> Child:
    log = logs / f"{name}.log"
    with log.open("wb") as output:
        # In a session of its own, so that Ctrl-C reaches the demo alone: a second signal would abort the scheduler.
        process = subprocess.Popen(  # noqa: S603 - the command is ours
            [sys.executable, str(PROJECT_ROOT / "manage.py"), *command],
            cwd=PROJECT_ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    child = Child(name, process, log)
    stack.callback(child.stop)
    return child


def _free_port() -> int:
    """The favourite port or, if it is taken, any that is free."""
    for port in (FAVOURITE_PORT, 0):
        with closing(socket.socket()) as probe:
            # As the server does it: connections of an earlier run that linger do not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise RuntimeError("no port is free on 127.0.0.1")


def _wait_for(site: Child, port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        site.check()
        with closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(LOOK_INTERVAL)
    raise ChildDied(f"The {site.name} did not answer within {START_TIMEOUT:.0f} s.")


def _watch(children: Sequence[Child], asked_to_stop: StopSignal, *, first_id: int, seconds: float | None) -> None:
    """Print a summary every few seconds, until asked to stop or the time is over."""
    started = time.monotonic()
    next_summary = started + SUMMARY_INTERVAL
    while not asked_to_stop and (seconds is None or time.monotonic() < started + seconds):
        for child in children:
            child.check()
        if time.monotonic() >= next_summary:
            next_summary += SUMMARY_INTERVAL
            _print_summary(_summarise(first_id), title=f"after {time.monotonic() - started:.0f} s")
        time.sleep(LOOK_INTERVAL)


def _last_execution_id() -> int:
    from chainsched.models import Metadata  # noqa: PLC0415 - models need django.setup() first

    return Metadata.objects.aggregate(last=Max("id"))["last"] or 0


def _summarise(first_id: int) -> Summary:
    """Count the executions of this session, and what waits at present.

    A dead letter counts whenever it was made: while it awaits a decision its job does not run again.
    """
    from chainsched.models import DeadLetter, Metadata, WorkQueue  # noqa: PLC0415 - see above

    executions = Metadata.objects.filter(id__gte=first_id).order_by().values_list("workflow", "state")
    states = Counter({(workflow, state): count for workflow, state, count in executions.annotate(count=Count("id"))})
    queued = WorkQueue.objects.queued().order_by().values_list("workflow")
    states.update({(workflow, "queued"): count for workflow, count in queued.annotate(count=Count("id"))})
    letters = DeadLetter.objects.awaiting().order_by().values_list("manifest__workflow")
    return Summary(states, Counter(dict(letters.annotate(count=Count("id")))))


def _print_summary(summary: Summary, *, title: str) -> None:
    print(f"\n{title}", *summary.lines(), sep="\n", flush=True)


def _conclude(summary: Summary, *, is_complete: bool) -> int:
    """Print the last summary; after a whole session say also whether every kind of job had its runs."""
    _print_summary(summary, title="In this session")
    idle = summary.idle_kinds()
    if is_complete and idle:
        print("\nFailed: no completed run, or no dead letter where one is meant to be, of:", *idle, sep="\n  ")
        return 1
    if is_complete:
        print("\nEvery kind of job had its runs.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
