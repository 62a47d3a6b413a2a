"""Sessions of PostgreSQL that are kept from one job to the next, each reset first, so that it is as good as a new one.

A session leaves Django's connection when a job has ended, and is told to discard everything that belongs to a session.
When a later job of the thread connects, the connection gets it back, if the server has confirmed that in the meantime.
So Django sets it up as one that it has just opened, and a job that asks the database for nothing costs nothing.
"""

from __future__ import annotations

import math
import select
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

# One that was unused for longer is closed: networks drop silent connections, and others may need the place.
KEEP_SECONDS = 30.0
# The age of a session, where CONN_MAX_AGE states none.
MAX_AGE = 600.0
# A reset is confirmed at once; a server, or a network, that takes longer is asked for a new session.
REPLY_SECONDS = 1.0
RESET, CHECK = b"DISCARD ALL", b"SELECT 1"

Parameters = Mapping[str, Any]


class _Gone:
    """Stands where a session was, for code that still refers to it: closed."""

    status = 1  # as libpq numbers the states of connections


@dataclass(frozen=True, slots=True)
class _Kept:
    """A session without an owner, the parameters that it was opened with, and when it was last used."""

    session: Any
    parameters: Parameters
    since: float

    def close(self) -> None:
        self.session.finish()


class _Keeper:
    """Keeps one session for one of Django's connections, and gives it back when that connects."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        # The connection refers to its keeper, and ends with its thread.
        self._connection = weakref.proxy(connection)
        self._opened_at = _opened_at(connection)
        self._kept: _Kept | None = None

    @property
    def is_keeping(self) -> bool:
        return self._kept is not None

    def put(self, session: Any, parameters: Parameters) -> None:
        self._kept = _Kept(session, parameters, time.monotonic())

    def take(self, *, unused_for: float = 0.0) -> _Kept | None:
        """The session that is kept, if it has been unused for so long; it is kept no longer."""
        with _lock:
            kept = self._kept
            if kept is None or time.monotonic() - kept.since < unused_for:
                return None
            self._kept = None
            return kept

    def open(self, parameters: dict[str, Any]) -> Any:
        """In place of Django's own: the session that is kept, or a new one."""
        kept = self.take()
        if kept is not None:
            if self._is_young() and _is_as_good_as_new(self._connection, kept, parameters):
                return _owned(self._connection, kept.session, parameters)
            kept.close()
        self._opened_at = time.monotonic()
        # By its class: the attribute of the connection is this function.
        return self._connection.__class__.get_new_connection(self._connection, parameters)

    def _is_young(self) -> bool:
        return time.monotonic() - self._opened_at < _max_age(self._connection)


_lock = threading.Lock()
_keepers: weakref.WeakSet[_Keeper] = weakref.WeakSet()


def keep(connection: BaseDatabaseWrapper) -> bool:
    """Take the session away from Django's connection and reset it; False if it has to be closed instead."""
    session = connection.connection
    if not _is_keepable(connection, session) or not _is_sent(session.pgconn, RESET):
        return False
    keeper = _keeper_of(connection) or _new_keeper(connection)
    keeper.put(session.pgconn, connection.get_connection_params())
    session.pgconn = _Gone()
    connection.connection = None
    connection.run_on_commit = []
    return True


def close_unused(*, unused_for: float | None = None) -> bool:
    """Close the sessions that no job of any thread has used for so long; whether some are still kept."""
    limit = KEEP_SECONDS if unused_for is None else unused_for
    with _lock:
        keepers = list(_keepers)
    for kept in [keeper.take(unused_for=limit) for keeper in keepers]:
        if kept is not None:
            kept.close()
    return any(keeper.is_keeping for keeper in keepers)


def close_kept(connection: BaseDatabaseWrapper) -> None:
    """Close the session that is kept for this connection."""
    keeper = _keeper_of(connection)
    if keeper is not None and (kept := keeper.take()) is not None:
        kept.close()


def _keeper_of(connection: BaseDatabaseWrapper) -> _Keeper | None:
    keeper = getattr(connection.get_new_connection, "__self__", None)
    return keeper if isinstance(keeper, _Keeper) else None


def _new_keeper(connection: BaseDatabaseWrapper) -> _Keeper:
    keeper = _Keeper(connection)
    connection.get_new_connection = keeper.open  # type: ignore[assignment, method-assign]
    with _lock:
        _keepers.add(keeper)
    return keeper


def _is_keepable(connection: BaseDatabaseWrapper, session: Any) -> bool:
    """Whether it is a session of psycopg that stands between two transactions, and is none of a pool."""
    if connection.vendor != "postgresql" or connection.in_atomic_block or getattr(connection, "pool", None):
        return False
    import psycopg  # noqa: PLC0415 - not installed where only SQLite is used

    if type(session) is not psycopg.Connection:
        return False
    is_idle = session.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE
    return is_idle and session.pgconn.pipeline_status == psycopg.pq.PipelineStatus.OFF


def _is_sent(session: Any, statement: bytes) -> bool:
    """Send a statement without waiting for its result; False if it cannot be sent at once."""
    import psycopg  # noqa: PLC0415 - as above

    try:
        session.send_query(statement)
        return not session.flush()
    except psycopg.Error:
        return False


def _is_as_good_as_new(connection: BaseDatabaseWrapper, kept: _Kept, parameters: Parameters) -> bool:
    if not _is_same(kept.parameters, parameters) or time.monotonic() - kept.since >= KEEP_SECONDS:
        return False
    if not _is_confirmed(kept.session):
        return False
    if not connection.settings_dict["CONN_HEALTH_CHECKS"]:
        return True
    return _is_sent(kept.session, CHECK) and _is_confirmed(kept.session)


def _is_same(before: Parameters, now: Parameters) -> bool:
    """Whether a new session would be opened in the same way; a password may be good for one time only."""
    return {**before, "password": ""} == {**now, "password": ""}


def _is_confirmed(session: Any) -> bool:
    """Whether the server has run the statements sent to it and sends nothing more, such as that it goes away."""
    import psycopg  # noqa: PLC0415 - as above

    done = (psycopg.pq.ExecStatus.COMMAND_OK, psycopg.pq.ExecStatus.TUPLES_OK)
    until = time.monotonic() + REPLY_SECONDS
    try:
        while session.is_busy():
            if not _is_readable(session, until=until):
                return False
            session.consume_input()
        while (result := session.get_result()) is not None:
            if result.status not in done:
                return False
        while session.notifies() is not None:
            pass  # they were meant for the job before
        return session.transaction_status == psycopg.pq.TransactionStatus.IDLE and not _is_readable(session, until=0)
    except psycopg.Error:
        return False


def _is_readable(session: Any, *, until: float) -> bool:
    poll = select.poll()
    poll.register(session.socket, select.POLLIN)
    return bool(poll.poll(max(until - time.monotonic(), 0) * 1000))


def _owned(connection: BaseDatabaseWrapper, session: Any, parameters: Parameters) -> Any:
    """The session in an object of its own, as psycopg and Django set up one that they have just opened."""
    import psycopg  # noqa: PLC0415 - as above
    from psycopg.adapt import AdaptersMap  # noqa: PLC0415 - as above

    owned = psycopg.Connection(session)
    owned._autocommit = bool(parameters.get("autocommit", False))  # noqa: SLF001 - as Connection.connect() does
    owned.prepare_threshold = parameters.get("prepare_threshold", 5)
    for name in ("row_factory", "cursor_factory"):
        if parameters.get(name):
            setattr(owned, name, parameters[name])
    if context := parameters.get("context"):
        owned._adapters = AdaptersMap(context.adapters)  # noqa: SLF001 - as Connection.connect() does
    if "isolation_level" in connection.settings_dict["OPTIONS"]:
        owned.isolation_level = connection.isolation_level  # type: ignore[attr-defined]
    return owned


def _max_age(connection: BaseDatabaseWrapper) -> float:
    """CONN_MAX_AGE in seconds; 0, which Django takes for one that is not stated, means an age of ours."""
    stated = connection.settings_dict["CONN_MAX_AGE"]
    return math.inf if stated is None else float(stated) or MAX_AGE


def _opened_at(connection: BaseDatabaseWrapper) -> float:
    """When Django opened the session, by the time at which it would close it."""
    if connection.close_at is None:
        return time.monotonic()
    return float(connection.close_at) - float(connection.settings_dict["CONN_MAX_AGE"])
