"""What every test shares: where its database is, what is skipped on SQLite, and a line that says where it ran."""

import sqlite3
import threading
from collections.abc import Iterator

import psycopg
import pytest
from django.db import connection
from hypothesis import HealthCheck, settings

from chainsched.db import locks
from chainsched.runtime.process import listener
from chainsched.runtime.support.clock_skew import ClockSkew, skew
from chainsched.runtime.support.db_outage import DatabaseOutage, outage
from chainsched.runtime.support.health_probe import SharedProbe, shared_probe
from chainsched.runtime.support.hearing import Hearing, hearing

POSTGRES_ONLY = "needs PostgreSQL"
# For what only a stopped machine would keep waiting.
PATIENCE = 30

# No example fails because the machine was slow.
settings.register_profile("chainsched", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("chainsched")


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings_parallel_suffix: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Test in a file on SQLite: Django's choice, memory, is out of reach for other processes."""
    if not _is_postgres():
        connection.settings_dict["TEST"]["NAME"] = str(tmp_path_factory.mktemp("database") / "test.sqlite3")


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None) -> Iterator[None]:
    """End the sessions of threads that hang on purpose, or the tests' database could not be dropped."""
    yield
    if _is_postgres():
        with _server() as server:
            server.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
                "WHERE datname = %s AND backend_type = 'client backend'",
                [connection.settings_dict["NAME"]],
            )


@pytest.fixture(autouse=True)
def as_after_the_start_of_a_process() -> None:
    """Let no test know of the outage in which an earlier one ended, nor share its look at the health."""
    lasting_ones = (
        (outage, DatabaseOutage()),
        (shared_probe, SharedProbe()),
        (skew, ClockSkew()),
        (hearing, Hearing()),
    )
    for lasting, new in lasting_ones:
        vars(lasting).update(vars(new))


@pytest.fixture(autouse=True)
def no_loop_outlives_its_test() -> Iterator[None]:
    """Wait for the threads of ours that a test has started: they would write into the rows of the next one."""
    others = set(threading.enumerate())
    with pytest.MonkeyPatch.context() as patched:
        # How long a listener takes to notice that it should stop.
        patched.setattr(listener, "CHECK_SECONDS", 0.5)
        yield
    for thread in set(threading.enumerate()) - others:
        # The event loop of a child turns for ever, and knows no rows.
        if thread.name.startswith("chainsched-") and thread.name != "chainsched-async":
            thread.join(PATIENCE)


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody give up a lock, or lose one, because a thread of the test was not scheduled for a while."""
    for name in ("LOCK_TIMEOUT", "SHORT_LOCK_TIMEOUT", "IDLE_TIMEOUT"):
        monkeypatch.setattr(locks, name, f"{PATIENCE}s")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", metavar="DIR", help="where the browser tests put their pictures of the admin")
    parser.addoption(
        "--only-database", action="store_true", help="leave out tests that touch no database: one run of them is enough"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _is_postgres():
        for item in items:
            if item.get_closest_marker("slow_on_postgres"):
                item.add_marker(pytest.mark.slow)
    if config.getoption("--only-database"):
        untouched = [item for item in items if not _may_touch_database(item)]
        items[:] = [item for item in items if _may_touch_database(item)]
        config.hook.pytest_deselected(items=untouched)
    if _is_postgres():
        return
    for item in items:
        if item.get_closest_marker("postgres"):
            item.add_marker(pytest.mark.skip(reason=POSTGRES_ONLY))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if POSTGRES_ONLY in str(report.longrepr)]
    line = f"database: {_database()}"
    if skipped:
        line += f" - {len(skipped)} TESTS SKIPPED, they need PostgreSQL: python -m tests.postgres -- pytest"
    terminalreporter.write_sep("=", line, yellow=bool(skipped), bold=True)


def _may_touch_database(item: pytest.Item) -> bool:
    """By itself or by a process that it starts; pytest-django lets no other test near it."""
    asked = {mark.name for mark in item.iter_markers()} | set(getattr(item, "fixturenames", ()))
    return bool(asked & {"django_db", "postgres", "db", "transactional_db"})


def _is_postgres() -> bool:
    return connection.vendor == "postgresql"


def _database() -> str:
    if not _is_postgres():
        return f"SQLite {sqlite3.sqlite_version}"
    try:
        with _server() as server:
            return f"PostgreSQL {server.info.parameter_status('server_version')}"
    except psycopg.OperationalError as error:
        return f"PostgreSQL, which does not answer: {error}"


def _server() -> psycopg.Connection:
    """Beside the tests' own database, which may be gone; Django's connection may not be used outside a test."""
    database = connection.settings_dict
    return psycopg.connect(
        dbname="postgres",
        user=database["USER"],
        password=database["PASSWORD"],
        host=database["HOST"],
        port=database["PORT"],
    )
