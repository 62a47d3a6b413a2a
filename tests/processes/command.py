"""Start the commands as real processes on the database that the test uses."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from django.db import connection

ROOT = Path(__file__).parents[2]
# How long a process may take to end; one that hangs takes for ever.
PATIENCE = 100


def start(
    *arguments: str,
    settings: dict[str, Any] | None = None,
    through: Path | None = None,
    environment: dict[str, str] | None = None,
    by: Sequence[str] = (),
) -> subprocess.Popen[str]:
    """``manage.py`` with these arguments, on the test's database, with these options in ``CHAINSCHED``.

    It leads a group of its own. ``through`` is the directory of a socket that leads there by a detour, ``by`` a command
    that takes its own place by the one that follows it.
    """
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "CHAINSCHED_TEST_DATABASE_URL": database_url(through=through),
        "CHAINSCHED_TEST_SETTINGS": json.dumps(settings or {}),
        **(environment or {}),
    }
    return subprocess.Popen(
        [*by, sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    )


def stop(process: subprocess.Popen[str], *, timeout: float = PATIENCE) -> tuple[int, str]:
    """SIGTERM, then the exit code and all that it said."""
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=timeout)
    return process.returncode, output


def database_url(*, through: Path | None = None) -> str:
    """Where the test's database is, for another process."""
    database = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite://{database['NAME']}"
    directory = str(through) if through else database["HOST"]
    host = urlencode({"host": directory}) if directory else ""
    port = f":{database['PORT']}" if database["PORT"] else ""
    password = f":{quote(database['PASSWORD'])}" if database["PASSWORD"] else ""
    return f"postgresql://{database['USER']}{password}@{port}/{database['NAME']}?{host}"
