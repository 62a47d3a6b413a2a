"""The PostgreSQL of the bench: a database for each contestant, and the process id of the server."""

import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

VARIABLE = "CHAINSCHED_TEST_DATABASE_URL"
PREFIX = "chainsched_bench_"


class Server:
    """The server that the environment names; ``python -m tests.postgres --durable`` starts one and names it."""

    def __init__(self) -> None:
        given = os.environ.get(VARIABLE, "")
        if not given.startswith("postgres"):
            raise SystemExit(f"{VARIABLE} names no PostgreSQL: run python -m tests.postgres --durable -- python -m …")
        self._given = urlsplit(given)
        self._admin = psycopg.connect(self._url("postgres"), autocommit=True)
        self.version = self._admin.info.parameter_status("server_version") or ""
        self._databases: dict[str, Database] = {}

    def database(self, name: str) -> "tuple[Database, bool]":
        """The database of this name, and whether it was created now and is empty."""
        if name in self._databases:
            return self._databases[name], False
        database = PREFIX + name.replace("-", "_")
        self._drop(database)
        self._admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
        self._databases[name] = Database(self._url(database))
        return self._databases[name], True

    def remove(self) -> None:
        """Drop the databases."""
        for name in self._databases:
            self._drop(PREFIX + name.replace("-", "_"))

    @property
    def pid(self) -> int:
        """The process id of the postmaster, as the parent of our backend."""
        stat = Path(f"/proc/{self._admin.info.backend_pid}/stat").read_text()
        return int(stat.rpartition(")")[2].split()[1])

    def _drop(self, database: str) -> None:
        self._admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(database)))

    def _url(self, database: str) -> str:
        return urlunsplit(self._given._replace(path=f"/{database}"))


class Database:
    """One database and a connection to it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection = psycopg.connect(url, autocommit=True)

    def ask(self, statement: str) -> Any:
        """The one value that a statement gives."""
        return self.row(statement)[0]

    def row(self, statement: str) -> tuple[Any, ...]:
        """The one row that a statement gives."""
        return self._connection.execute(statement).fetchone() or ()

    def run(self, *statements: str) -> None:
        """Execute statements."""
        for statement in statements:
            self._connection.execute(statement)

    def tidy(self) -> None:
        """Vacuum and analyze, as autovacuum does by and by, and write dirty pages, so that no run pays for another."""
        self.run("VACUUM ANALYZE", "CHECKPOINT")
