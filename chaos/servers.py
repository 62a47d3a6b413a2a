"""The PostgreSQL of a run: it can be restarted and frozen, and its sessions can be ended."""

from __future__ import annotations

import random
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psycopg
from django.db import connection

from chaos.processes import family, send
from tests.postgres import Server

# Committed rows must survive a crash of the server. A crash of the machine is not tried.
DURABLE = {"synchronous_commit": "on", "full_page_writes": "on"}


class Postgres:
    """A server with faults. ``returned_at`` are the moments, by the monotonic clock, when it was back after one."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._paused: list[int] = []
        self.returned_at: list[float] = []

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def is_paused(self) -> bool:
        return bool(self._paused)

    def create_database(self) -> None:
        """Create the database that the URL names."""
        with psycopg.connect(self.url, dbname="postgres", autocommit=True) as session:
            session.execute("CREATE DATABASE chainsched")

    def restart(self, mode: str) -> None:
        """End it, as an operator (``fast``) or a crash (``immediate``) would, and start it again."""
        self._server.restart(mode=mode)
        self.returned_at.append(time.monotonic())

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """End it for a while."""
        self._server.stop()
        try:
            yield
        finally:
            self._server.start_again()
            self.returned_at.append(time.monotonic())

    def pause(self) -> None:
        """Freeze the postmaster, so that it starts no further backend, and then all of its backends."""
        postmaster = self._server.pid
        send(signal.SIGSTOP, [postmaster])
        self._paused = [postmaster, *family(postmaster)]
        send(signal.SIGSTOP, self._paused)

    def resume(self) -> None:
        """Let it go on, if it is frozen."""
        if self._paused:
            send(signal.SIGCONT, reversed(self._paused))
            self._paused = []
            self.returned_at.append(time.monotonic())

    def terminate_some(self, rng: random.Random) -> int:
        """End about half of the sessions but our own; returns how many."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            victims = [pid for (pid,) in cursor.fetchall() if rng.random() < 0.5]
            cursor.execute("SELECT count(pg_terminate_backend(pid)) FROM unnest(%s::int[]) AS pid", [victims])
        return len(victims)


@contextmanager
def running_postgres(settings: Mapping[str, str] = DURABLE) -> Iterator[Postgres]:
    """A server for this run; it is removed at the end in every state that the faults may have left it in."""
    root = Path(tempfile.mkdtemp(prefix="chainsched-chaos-pg-", dir="/tmp"))
    try:
        server = Server(root, settings=settings)
        server.start()
        postgres = Postgres(server)
        try:
            yield postgres
        finally:
            postgres.resume()
            server.stop()
    finally:
        shutil.rmtree(root, ignore_errors=True)
