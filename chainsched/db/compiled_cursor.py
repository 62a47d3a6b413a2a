"""A cursor of psycopg that sends parameters beside the statement, and prepares it; imported on PostgreSQL only."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.adapt import AdaptersMap
from psycopg.types.datetime import TimestamptzLoader

# The driver keeps so many statements of a session prepared; there are fewer hot ones.
PREPARED_MAX = 200


_adapters: WeakKeyDictionary[Any, AdaptersMap] = WeakKeyDictionary()


def adapters_of(connection: BaseDatabaseWrapper) -> AdaptersMap:
    """The adapters of a connection, with the driver's own reader of times where that answers as Django's does: in UTC.

    Django's is written in Python, and takes forty times as long.
    """
    session: Any = connection.connection
    found = _adapters.get(session)
    if found is None:
        found = _adapters[session] = AdaptersMap(session.adapters)
        if connection.timezone is UTC:
            found.register_loader("timestamptz", TimestamptzLoader)
    return found


class PreparingCursor(psycopg.Cursor[Any]):
    """Prepares each statement at its first use in a session, if ``is_preparing``."""

    def __init__(self, connection: BaseDatabaseWrapper, *, is_preparing: bool) -> None:
        super().__init__(connection.connection)
        self._adapters = adapters_of(connection)
        self._is_preparing = is_preparing

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
