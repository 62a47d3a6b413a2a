"""PgBouncer in front of the tests' PostgreSQL, pooling transactions: no session belongs to anybody for longer."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.db import connection

from tests.waiting import wait_until

# Debian keeps it where only root looks.
PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")

# Few sessions for many clients, taken in turns, so that whoever relies on having one of its own is found out.
CONFIGURATION = """
[databases]
* = host={host} port={port} user={user}{password}

[pgbouncer]
listen_addr =
listen_port = {port}
unix_socket_dir = {directory}
unix_socket_mode = 0777
auth_type = any
pool_mode = transaction
default_pool_size = {sessions}
server_round_robin = 1
max_client_conn = 200
logfile = {directory}/log
"""


@contextmanager
def pooler(*, sessions: int = 6) -> Iterator[Path]:
    """Give the directory of the pooler's socket."""
    assert PROGRAM is not None
    directory = Path(tempfile.mkdtemp(prefix="chainsched-pooler-", dir="/tmp"))
    try:
        configuration = directory / "pgbouncer.ini"
        configuration.write_text(_configuration(directory, sessions=sessions))
        process = subprocess.Popen([PROGRAM, "--quiet", str(configuration)], **_identity(directory))
        try:
            wait_until(lambda: _listens(directory / f".s.PGSQL.{_port()}") or process.poll() is not None)
            assert process.poll() is None, (directory / "log").read_text()
            yield directory
        finally:
            process.kill()
            process.wait()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def _configuration(directory: Path, *, sessions: int) -> str:
    database = connection.settings_dict
    return CONFIGURATION.format(
        host=database["HOST"] or "127.0.0.1",
        port=_port(),
        user=database["USER"],
        password=f" password='{database['PASSWORD']}'" if database["PASSWORD"] else "",
        directory=directory,
        sessions=sessions,
    )


def _port() -> str:
    return str(connection.settings_dict["PORT"] or 5432)


def _identity(directory: Path) -> dict[str, Any]:
    """PgBouncer refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    os.chown(directory, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
