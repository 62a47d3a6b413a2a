"""A cursor of psycopg that sends parameters beside the statement, and prepares it; imported on PostgreSQL only."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import UTC
from typing import Any

import psycopg
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.adapt import AdaptersMap
from psycopg.types.datetime import TimestamptzLoader

# The driver keeps so many statements of a session prepared; there are fewer hot ones.
PREPARED_MAX = 200

# The attribute of a session that holds its cursor while that is not in use.
IDLE = "_chainsched_cursor"


class BindingCursor:
    """A cursor of the driver, with that of Django's cursors which our statements need.

    Its statements go through the wrappers of Django's connection, which count and time them, and its errors are
    Django's. A session keeps its cursor of the driver from one use to the next: making one, and Django's around it,
    takes longer than to send a statement.
    """

    __slots__ = ("_connection", "_cursor")

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        if connection.connection is None:
            connection.ensure_connection()
        connection.validate_thread_sharing()
        session: Any = connection.connection
        self._connection = connection
        self._cursor = session.__dict__.pop(IDLE, None) or _new_cursor(connection)

    def __enter__(self) -> BindingCursor:
        return self

    def __exit__(self, *_: object) -> None:
        self._cursor.forget()
        self._cursor.connection.__dict__[IDLE] = self._cursor

    @property
    def rowcount(self) -> int:
        return self._cursor.rowcount

    def execute(self, sql: str, parameters: Sequence[Any] | None = None) -> None:
        """Run a statement."""
        execute, connection = self._execute, self._connection
        for wrapper in reversed(connection.execute_wrappers):
            execute = functools.partial(wrapper, execute)
        execute(sql, parameters, False, {"connection": connection, "cursor": self})

    def _execute(self, sql: str, parameters: Sequence[Any] | None, *_: object) -> None:
        self._connection.validate_no_broken_transaction()
        with self._connection.wrap_database_errors:
            self._cursor.execute(sql, parameters)

    def fetchall(self) -> list[Any]:
        """All rows of the last statement."""
        with self._connection.wrap_database_errors:
            return self._cursor.fetchall()

    def fetchone(self) -> Any:
        """The next row of the last statement."""
        with self._connection.wrap_database_errors:
            return self._cursor.fetchone()


def _new_cursor(connection: BaseDatabaseWrapper) -> PreparingCursor:
    with connection.wrap_database_errors:
        return PreparingCursor(connection)


class PreparingCursor(psycopg.Cursor[Any]):
    """Prepares each statement at its first use in a session, where that is safe."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        super().__init__(connection.connection)
        self._adapters = _adapters_of(connection)
        self._is_preparing = _may_prepare(connection)

    def forget(self) -> None:
        """Let the result of the last statement go, which may be large."""
        self._reset()

    def execute(self, query: Any, params: Sequence[Any] | None = None, **options: Any) -> PreparingCursor:  # type: ignore[override]
        """Run a statement. Django turns preparing off for the session, and it stays off for other cursors."""
        if not self._is_preparing:
            return super().execute(query, params, prepare=False, **options)
        session = self.connection
        threshold, session.prepare_threshold = session.prepare_threshold, 0
        session.prepared_max = PREPARED_MAX
        try:
            return self._execute_prepared(query, params, **options)
        finally:
            session.prepare_threshold = threshold

    def _execute_prepared(self, query: Any, params: Sequence[Any] | None, **options: Any) -> PreparingCursor:
        """Run it, if need be in a session that has lost its prepared statements, or has them for tables as they were.

        Code of the project may discard them; the driver would go on naming them. Inside a transaction the error has
        ended that, so that only the next call succeeds.
        """
        session: Any = self.connection
        is_outside = session.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
        try:
            return super().execute(query, params, prepare=True, **options)
        except (psycopg.errors.InvalidSqlStatementName, psycopg.errors.FeatureNotSupported):
            # The driver forgets its prepared statements when it sees one of these pass.
            session._prepared.clear()  # noqa: SLF001 - it has no other way
            if not is_outside:
                raise
            return super().execute(query, params, prepare=True, **options)


def _adapters_of(connection: BaseDatabaseWrapper) -> AdaptersMap:
    """The adapters of a connection, with the driver's own reader of times where that answers as Django's does: in UTC.

    Django's is written in Python, and takes forty times as long.
    """
    session: Any = connection.connection
    adapters = AdaptersMap(session.adapters)
    if connection.timezone is UTC:
        adapters.register_loader("timestamptz", TimestamptzLoader)
    return adapters


def _may_prepare(connection: BaseDatabaseWrapper) -> bool:
    options = connection.settings_dict["OPTIONS"]
    if "prepare_threshold" in options:
        return options["prepare_threshold"] is not None
    return _leads_to_the_server(connection.connection)


def _leads_to_the_server(session: Any) -> bool:
    """Whether the server knows the session by the process id that the client was given; a pooler makes one up."""
    with session.cursor() as cursor:
        return bool(cursor.execute("SELECT pg_backend_pid()").fetchone()[0] == session.info.backend_pid)
