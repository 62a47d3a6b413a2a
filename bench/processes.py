"""Start commands as real processes, and measure how much CPU they and PostgreSQL have used."""

import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from urllib.parse import quote, urlencode

from django.db import connection

ROOT = Path(__file__).parents[1]
TICKS = os.sysconf("SC_CLK_TCK")
PATIENCE = 60


@contextmanager
def running(command: Sequence[str], *, log: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """``manage.py`` with these arguments on the bench's database, until the block ends."""
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "bench.settings", "CHAINSCHED_TEST_DATABASE_URL": _url()}
    arguments = [sys.executable, "manage.py", *command]
    process = subprocess.Popen(arguments, cwd=ROOT, env=environment, stdout=log, stderr=log)  # noqa: S603 - our own
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)


def cpu_of(pids: Sequence[int]) -> float:
    """The CPU seconds that these processes, all below them, and those of them that ended have used."""
    family = _with_descendants(pids)
    return sum(sum(map(int, _stat(pid)[11:15])) for pid in family) / TICKS


def postmaster() -> int:
    """The pid of the server, as the parent of our backend."""
    connection.ensure_connection()
    return int(_stat(connection.connection.info.backend_pid)[1])


def _with_descendants(pids: Sequence[int]) -> set[int]:
    children = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))):
            children[int(stat[1])].append(int(entry.name))
    found, waiting = set(), list(pids)
    while waiting:
        pid = waiting.pop()
        found.add(pid)
        waiting += children[pid]
    return found


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _url() -> str:
    database = connection.settings_dict
    host = urlencode({"host": database["HOST"]}) if database["HOST"] else ""
    port = f":{database['PORT']}" if database["PORT"] else ""
    password = f":{quote(database['PASSWORD'])}" if database["PASSWORD"] else ""
    return f"postgresql://{database['USER']}{password}@{port}/{database['NAME']}?{host}"
