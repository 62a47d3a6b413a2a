"""The start of a transaction on each database: timeouts, planner settings, and SQLite's write lock."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import Enum, auto

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from chainsched.db.clock import present_time
from chainsched.db.compiled import binding_cursor

LOCK_TIMEOUT = "3s"
# For writers that can retry a row that another transaction holds, and have other rows to write in between.
SHORT_LOCK_TIMEOUT = "500ms"
STATEMENT_TIMEOUT = "60s"
# A process that freezes inside a transaction loses it, so that no other transaction waits for it longer than this.
IDLE_TIMEOUT = "10s"
LONG_TIMEOUT = "10min"
# Every statement of a stage has its index. Without statistics, on tables that are new or were purged, PostgreSQL
# assumes that they are small and reads them whole, for each batch, until it analyzes them. Before 18 the first of these
# raises the estimated cost of statements so far that they are compiled, which takes longer than they run; hence the
# last.
BY_INDEX = {"enable_seqscan": "off", "jit": "off"}
# PostgreSQL would plan a prepared statement anew in each call with few ids: for a few it expects less than its plan for
# any number. Planning takes longer than to run it, and the plan is the same: by the indexes.
KEEPING_PLANS = {"plan_cache_mode": "force_generic_plan"}
# For pages, which look at each of thousands of rows whether something of it is open. Where the sample of ANALYZE held
# none of the few open rows, PostgreSQL would compare each row with all of them, kept in memory.
FOR_PAGES = BY_INDEX | {"enable_material": "off"}
LOCK_NOT_AVAILABLE = "55P03"
QUERY_CANCELED = "57014"
# Classes of error codes that a row brings about: broken and unfit values, limits of a value, and errors that functions
# and triggers of the project raise. XX is damage that PostgreSQL finds.
OF_ROWS = ("20", "21", "22", "23", "2F", "38", "39", "44", "54", "P0", "XX")
# Classes that say nothing about any row: a table, a column or a right is missing, or the session is another one.
OF_TABLES = ("0A", "26", "28", "3D", "3F", "42")


class Patience(Enum):
    """How long a transaction may wait. It has no effect on SQLite, where writers take turns."""

    # Gives up soon on a row that another transaction holds.
    SHORT = auto()
    USUAL = auto()
    # For seeding, which many processes may do in turns.
    LONG = auto()


def begin(connection: BaseDatabaseWrapper, patience: Patience = Patience.USUAL) -> datetime:
    """Run the first statement of a transaction; returns the time by the database's clock.

    PostgreSQL: limit every wait, and let the planner use the indexes, for this transaction only, so that a pooler
    passes on a clean session.
    SQLite: write at once. A transaction that reads first and writes later fails with "database is locked" if another
    connection wrote in between, and no timeout helps; one that begins with a write waits for its turn.
    """
    with binding_cursor(connection) as cursor:
        if connection.vendor != "postgresql":
            cursor.execute(_BEGIN_ON_SQLITE)
            return present_time()
        cursor.execute(_begin(patience))
        return present_time(cursor.fetchone()[-1])


def wait_briefly(connection: BaseDatabaseWrapper) -> None:
    """Let the present transaction give up soon from now on when it waits for a lock; see ``persist_patiently``."""
    if connection.vendor == "postgresql":
        set_locally(connection, {"lock_timeout": SHORT_LOCK_TIMEOUT})


def read_in_index_order(connection: BaseDatabaseWrapper) -> None:
    """Let the present transaction read rows in the order of an index, and sort none, if there is such an index.

    PostgreSQL guesses how many rows are queued, from statistics that may be hours old. Where it expects few, it would
    sort all of a long queue for each look at its head.
    """
    if connection.vendor == "postgresql":
        with binding_cursor(connection) as cursor:
            cursor.execute("SELECT set_config('enable_sort', 'off', true)")


def set_locally(connection: BaseDatabaseWrapper, settings: Mapping[str, str]) -> dict[str, str]:
    """Set these for the present transaction on PostgreSQL; returns the previous values, for setting them back."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(['current_setting(%s)'] * len(settings))}", list(settings))
        before = dict(zip(settings, cursor.fetchone(), strict=True))
        _set(cursor, settings)
    return before


def _settings(patience: Patience) -> dict[str, str]:
    names = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
    if patience is Patience.LONG:
        return dict.fromkeys(names, LONG_TIMEOUT)
    lock_timeout = SHORT_LOCK_TIMEOUT if patience is Patience.SHORT else LOCK_TIMEOUT
    return dict(zip(names, (lock_timeout, STATEMENT_TIMEOUT, IDLE_TIMEOUT), strict=True)) | BY_INDEX | KEEPING_PLANS


def _begin(patience: Patience) -> str:
    calls = [f"set_config('{name}', '{value}', true)" for name, value in _settings(patience).items()]
    return f"SELECT {', '.join(calls)}, clock_timestamp()"


_BEGIN_ON_SQLITE = "UPDATE chainsched_namedlock SET turned_at = turned_at WHERE name = ''"


def _set(cursor: CursorWrapper, settings: Mapping[str, str]) -> None:
    calls = ", ".join(["set_config(%s, %s, true)"] * len(settings))
    cursor.execute(f"SELECT {calls}", [part for setting in settings.items() for part in setting])


def turn_wal_on(connection: BaseDatabaseWrapper) -> None:
    """Let readers and a writer work at the same time on SQLite; the mode is stored in the file."""
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA journal_mode=WAL")


def is_lock_timeout(error: Exception) -> bool:
    """Whether PostgreSQL gave up waiting for a row that another transaction holds."""
    return _sqlstate(error) == LOCK_NOT_AVAILABLE


def is_about_rows(error: Exception) -> bool:
    """Whether other rows, or fewer, could be written: one is held, unfit or damaged, or they took too long together."""
    state = _sqlstate(error)
    return state in (LOCK_NOT_AVAILABLE, QUERY_CANCELED) or state.startswith(OF_ROWS)


def is_about_tables(error: Exception) -> bool:
    """Whether no row at all could be written, as before a migration that the code needs."""
    return _sqlstate(error).startswith(OF_TABLES)


def _sqlstate(error: Exception) -> str:
    return getattr(error.__cause__, "sqlstate", None) or ""
