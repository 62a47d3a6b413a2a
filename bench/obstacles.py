"""Why a peer cannot take part on this machine, and the versions of those that can."""

import functools
import json
import os
import socket
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

from bench.contestants import CONTESTANTS, PEERS, Contestant
from bench.processes import ROOT

REDIS_VARIABLE = "CHAINSCHED_BENCH_REDIS_URL"
REDIS = "redis://127.0.0.1:6379/0"
SECONDS = 2
PACKAGES = dict.fromkeys(["celery", *(one.package for one in CONTESTANTS.values())])
VERSIONS = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def find_obstacle(contestant: Contestant) -> str | None:
    """What is missing for the contestant; None if it can be tried."""
    if not _python(contestant.venv).exists():
        return f"{contestant.venv} is missing; make bench creates it."
    if not contestant.is_ours and contestant.package not in versions():
        return f"{contestant.package} is not installed in {contestant.venv}."
    if contestant.needs_redis and not _redis_answers():
        return f"it needs a Redis, and none answers at {_redis_url()}. {REDIS_VARIABLE} names another."
    return None


@functools.cache
def versions() -> dict[str, str]:
    """The installed versions of the peers."""
    if not _python(PEERS).exists():
        return {}
    told = subprocess.run(  # noqa: S603 - our own command
        [str(_python(PEERS)), "-c", VERSIONS, *PACKAGES], stdout=subprocess.PIPE, check=True
    )
    found: dict[str, str] = json.loads(told.stdout)
    return found


def _python(venv: str) -> Path:
    return ROOT / venv / "bin" / "python"


def _redis_url() -> str:
    return os.environ.get(REDIS_VARIABLE) or REDIS


def _redis_answers() -> bool:
    parts = urlsplit(_redis_url())
    try:
        with socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 6379), timeout=SECONDS) as redis:
            redis.sendall(b"PING\r\n")
            # One that asks for a password answers too; the client has it from the URL.
            return redis.recv(16).startswith((b"+PONG", b"-NOAUTH"))
    except OSError:
        return False
