"""Jobs of one child use one session of the database after the other, and none sees what another did to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.db import DatabaseError, connection, transaction
from django.db.backends.signals import connection_created

from chainsched.db import kept_sessions
from chainsched.db.kept_sessions import close_unused
from chainsched.domain import outcomes
from chainsched.domain.outcomes import Outcome
from chainsched.domain.states import ExecutionState
from chainsched.runtime.workers import thread_runner
from chainsched.runtime.workers.child_main import ChildLimits, ChildProcess
from chainsched.runtime.workers.connections import close_all, renew, renew_after
from chainsched.runtime.workers.event_loop import EventLoop
from chainsched.runtime.workers.reports import Reports, ReportWriter
from chainsched.runtime.workers.start_tokens import StartTokenReader, StartTokens
from chainsched.runtime.workers.thread_runner import ThreadRunner
from tests.processes.pooler import PROGRAM, pooler
from tests.runtime.workers.claims import claim
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]

LOCK = 4711


class Child:
    """A thread that runs jobs as a child does, one after the other."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[Any, Outcome]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def run(self, job: Callable[[], Any]) -> Any:
        """What the job returns; it has to succeed."""
        returned, outcome = self.end(job)
        assert outcome.state is ExecutionState.COMPLETED, (returned, outcome)
        return returned

    def end(self, job: Callable[[], Any]) -> tuple[Any, Outcome]:
        self._jobs.put(job)
        return self._results.get()

    def stop(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            renew()
            try:
                returned, outcome = job(), outcomes.completed(None)
            except Exception as error:  # noqa: BLE001 - the test looks at it
                returned, outcome = error, outcomes.raised(error)
            self._results.put((returned, renew_after(outcome)))
        close_all()


@pytest.fixture
def child() -> Iterator[Child]:
    child = Child()
    yield child
    child.stop()


def ask(sql: str, *parameters: Any) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters or None)
        row = cursor.fetchone() if cursor.description else None
    return row[0] if row else None


def pid() -> int:
    return int(ask("SELECT pg_backend_pid()"))


def is_there(backend: int) -> bool:
    return bool(ask("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", backend))


def is_locked() -> bool:
    return bool(ask("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s", LOCK))


def test_two_clean_jobs_use_one_session(child: Child) -> None:
    assert len({child.run(pid) for _ in range(3)}) == 1


def test_an_async_job_uses_the_session_of_the_one_before() -> None:
    loop = EventLoop()

    async def job() -> int:
        return await sync_to_async(pid)()

    assert loop.run(job()) == loop.run(job())


def session() -> Any:
    connection.ensure_connection()
    return connection.connection


def set_by_a_function() -> None:
    ask("DO $$ BEGIN PERFORM set_config('search_path', 'pg_catalog', false); END $$")


def set_past_django() -> None:
    session().execute("SET search_path = pg_catalog")


def leave_a_held_cursor() -> None:
    with transaction.atomic():
        ask("DECLARE held CURSOR WITH HOLD FOR SELECT 1")


def take_a_role() -> None:
    ask("SET ROLE pg_read_all_stats")


def register_a_loader() -> None:
    class Loader(psycopg.adapt.Loader):
        def load(self, _data: Any) -> str:
            return "loaded"

    session().adapters.register_loader("int4", Loader)


def hear(_notice: Any) -> None:
    raise AssertionError("a handler of another job was called")


# What a job does to its session, and what the next would see of it.
DIRT: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "a setting": (lambda: ask("SET search_path = pg_catalog"), lambda: ask("SHOW search_path")),
    "a setting by a function": (set_by_a_function, lambda: ask("SHOW search_path")),
    "a setting past Django": (set_past_django, lambda: ask("SHOW search_path")),
    "a time zone": (lambda: ask("SET TIME ZONE 'Asia/Tokyo'"), lambda: ask("SHOW TimeZone")),
    "an encoding": (lambda: ask("SET client_encoding = 'LATIN1'"), lambda: ask("SHOW client_encoding")),
    "read only by default": (
        lambda: ask("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"),
        lambda: ask("SHOW transaction_read_only"),
    ),
    "a role": (take_a_role, lambda: ask("SELECT current_user")),
    "an advisory lock": (lambda: ask(f"SELECT pg_advisory_lock({LOCK})"), is_locked),
    "a temporary table": (
        lambda: ask("CREATE TEMPORARY TABLE chainsched_manifest (id int)"),
        lambda: ask("SELECT count(*) FROM pg_class WHERE relpersistence = 't'"),
    ),
    "a channel": (lambda: ask("LISTEN news"), lambda: ask("SELECT count(*) FROM pg_listening_channels()")),
    "a notice that was not read": (
        lambda: (ask("LISTEN news"), ask("NOTIFY news")),
        lambda: [notice.channel for notice in session().notifies(timeout=0)],
    ),
    "a statement": (
        lambda: ask("PREPARE plan AS SELECT 1"),
        lambda: ask("SELECT count(*) FROM pg_prepared_statements"),
    ),
    "a held cursor": (leave_a_held_cursor, lambda: ask("SELECT count(*) FROM pg_cursors WHERE name = 'held'")),
    "rows as dicts": (
        lambda: setattr(session(), "row_factory", psycopg.rows.dict_row),
        lambda: session().execute("SELECT 1").fetchone(),
    ),
    "a loader": (register_a_loader, lambda: ask("SELECT 1")),
    "prepared from the first time": (
        lambda: setattr(session(), "prepare_threshold", 0),
        lambda: session().prepare_threshold,
    ),
    "a handler of notices": (
        lambda: session().add_notice_handler(hear),
        lambda: ask("DO $$ BEGIN RAISE WARNING 'so'; END $$"),
    ),
    "isolation": (
        lambda: setattr(session(), "isolation_level", psycopg.IsolationLevel.SERIALIZABLE),
        lambda: session().isolation_level,
    ),
}


@pytest.mark.parametrize(("soil", "look"), DIRT.values(), ids=list(DIRT))
def test_what_a_job_did_to_its_session_is_gone(child: Child, soil: Callable[[], Any], look: Callable[[], Any]) -> None:
    clean = child.run(look)

    def job() -> tuple[int, Any]:
        backend = pid()
        soil()
        return backend, None

    before = child.run(job)[0]
    assert child.run(lambda: (look(), pid())) == (clean, before)


def test_the_soil_can_be_seen_in_its_own_job(child: Child) -> None:
    unseen = [name for name, (soil, look) in DIRT.items() if not _shows(child, soil, look)]
    assert unseen == ["a handler of notices"], "its warning raises nothing here, psycopg only logs it"


def _shows(child: Child, soil: Callable[[], Any], look: Callable[[], Any]) -> bool:
    clean = child.run(look)
    return bool(child.run(lambda: (soil(), look())[1]) != clean)


def test_a_lock_is_free_as_soon_as_the_job_is_over(child: Child) -> None:
    child.run(lambda: ask(f"SELECT pg_advisory_lock({LOCK})"))
    wait_until(lambda: not is_locked())


def leave_a_block_open() -> None:
    transaction.atomic().__enter__()


def read_without_autocommit() -> None:
    transaction.set_autocommit(False)
    ask("SELECT 1")


def break_the_session() -> None:
    session().close()


def leave_a_pipeline() -> None:
    session().pgconn.enter_pipeline_mode()


@pytest.mark.parametrize(
    ("soil", "is_failed"),
    [
        (leave_a_block_open, True),
        (lambda: ask("BEGIN"), True),
        (read_without_autocommit, False),
        (break_the_session, False),
        (leave_a_pipeline, False),
    ],
    ids=["a block", "a transaction", "a read without autocommit", "a broken session", "a pipeline"],
)
def test_a_session_that_cannot_be_reset_is_closed(child: Child, soil: Callable[[], Any], is_failed: bool) -> None:
    def job() -> int:
        backend = pid()
        soil()
        return backend

    before, outcome = child.end(job)
    assert (outcome.state is ExecutionState.FAILED) is is_failed
    assert child.run(pid) != before
    wait_until(lambda: not is_there(before))


def test_a_session_that_the_server_ended_fails_no_job(child: Child) -> None:
    before = child.run(pid)
    ask("SELECT pg_terminate_backend(%s, 10000)", before)
    assert child.run(pid) != before


def test_a_session_that_does_not_answer_is_replaced(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_sessions, "REPLY_SECONDS", 0.05)
    stopped: list[int] = []

    def job() -> None:
        stopped.append(pid())
        os.kill(stopped[0], signal.SIGSTOP)

    try:
        child.run(job)
        assert child.run(pid) != stopped[0]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(stopped[0], signal.SIGCONT)


def test_a_setting_of_a_receiver_holds_in_every_job(child: Child) -> None:
    def configure(connection: Any, **_: Any) -> None:
        connection.connection.execute("SET statement_timeout = '77s'")

    connection_created.connect(configure)
    try:
        assert child.run(lambda: (pid(), ask("RESET statement_timeout")))
        assert child.run(lambda: ask("SHOW statement_timeout")) == "77s"
    finally:
        connection_created.disconnect(configure)


def test_options_of_the_connection_hold_in_every_job(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**connection.settings_dict["OPTIONS"], "isolation_level": psycopg.IsolationLevel.SERIALIZABLE}
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)

    def job() -> Any:
        with transaction.atomic():
            return ask("SHOW transaction_isolation"), pid()

    first = child.run(job)
    assert first[0] == "serializable"
    assert child.run(job) == first


@pytest.mark.parametrize("job", [lambda: None, lambda: connection.settings_dict["NAME"]])
def test_a_job_that_asks_for_nothing_leaves_the_session_alone(child: Child, job: Callable[[], Any]) -> None:
    backend = child.run(pid)
    used_at = "SELECT state_change FROM pg_stat_activity WHERE pid = %s AND query = 'DISCARD ALL' AND state = 'idle'"
    before = wait_until(lambda: ask(used_at, backend))
    child.run(job)
    assert ask(used_at, backend) == before
    assert child.run(pid) == backend


class TestAge:
    """How long a session is kept."""

    def test_one_that_is_older_than_conn_max_age_is_replaced(
        self, child: Child, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", 1e-9)
        assert child.run(pid) != child.run(pid)

    @pytest.mark.parametrize("stated", [None, 3600])
    def test_a_stated_age_takes_the_place_of_ours(
        self, child: Child, monkeypatch: pytest.MonkeyPatch, stated: int | None
    ) -> None:
        monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", stated)
        monkeypatch.setattr(kept_sessions, "MAX_AGE", 0)
        assert len({child.run(pid) for _ in range(3)}) == 1

    def test_without_a_stated_age_ours_counts(self, child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kept_sessions, "MAX_AGE", 0)
        assert child.run(pid) != child.run(pid)

    def test_one_that_was_unused_for_long_is_replaced(self, child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
        before = child.run(pid)
        monkeypatch.setattr(kept_sessions, "KEEP_SECONDS", 0)
        assert child.run(pid) != before

    def test_an_idle_child_closes_it(self, child: Child) -> None:
        before = child.run(pid)
        assert close_unused(unused_for=3600) is True
        assert is_there(before)
        assert close_unused(unused_for=0) is False
        wait_until(lambda: not is_there(before))
        child.run(pid)

    def test_a_child_without_work_closes_it_while_it_waits(
        self, monkeypatch: pytest.MonkeyPatch, tokens: StartTokens, reports: Reports
    ) -> None:
        monkeypatch.setattr(kept_sessions, "KEEP_SECONDS", 0.05)
        ours, theirs = socket.socketpair()
        backends: queue.SimpleQueue[int] = queue.SimpleQueue()
        writer = ReportWriter(reports.write_end)
        waiting = ChildProcess(theirs, StartTokenReader(tokens.descriptor), writer, ChildLimits())

        def work() -> None:
            backends.put(pid())
            renew()
            waiting._next(None)

        thread = threading.Thread(target=work)
        with ours, theirs:
            thread.start()
            backend = backends.get()
            wait_until(lambda: not is_there(backend))
            waiting._receive({"end": True})
            thread.join()

    def test_a_thread_of_a_worker_without_work_closes_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kept_sessions, "KEEP_SECONDS", 0.05)
        ended = threading.Semaphore(0)
        runner = ThreadRunner(1, on_result=ended.release)
        monkeypatch.setattr(thread_runner, "execute", lambda *_, **__: outcomes.completed(pid()))
        runner.open()
        runner.start(claim(1))
        ended.acquire()
        (finished,) = runner.collect().finished
        wait_until(lambda: not is_there(finished.outcome.output))
        runner.close()

    def test_a_health_check_finds_it_well(self, child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(connection.settings_dict, "CONN_HEALTH_CHECKS", True)
        assert child.run(pid) == child.run(pid)

    def test_other_parameters_take_another_session(self, child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
        before = child.run(pid)
        options = {**connection.settings_dict["OPTIONS"], "application_name": "other"}
        monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)
        assert child.run(lambda: (ask("SHOW application_name"), pid() != before)) == ("other", True)

    def test_keep_sessions_off_gives_each_job_its_own(self, child: Child, settings: Any) -> None:
        settings.CHAINSCHED = {**settings.CHAINSCHED, "KEEP_SESSIONS": False}
        settings.DATABASES["default"]["CONN_MAX_AGE"] = 0
        before = child.run(pid)
        assert child.run(pid) != before


def test_a_job_that_connects_again_by_itself_is_as_any_other(child: Child) -> None:
    def job() -> tuple[int, int]:
        first = pid()
        connection.close()
        return first, pid()

    first, second = child.run(job)
    assert first != second
    assert child.run(pid) == second


def test_a_session_that_a_job_still_refers_to_is_closed_for_it(child: Child) -> None:
    held: list[Any] = []
    child.run(lambda: held.append(session()))
    child.run(pid)
    assert held[0].closed
    with pytest.raises((DatabaseError, psycopg.Error)):
        held[0].execute("SELECT 1")


def test_the_end_of_the_thread_closes_it() -> None:
    child = Child()
    backend = child.run(pid)
    child.stop()
    wait_until(lambda: not is_there(backend))


def test_an_async_job_without_the_database_asks_for_nothing() -> None:
    async def job() -> str:
        await asyncio.sleep(0)
        return "done"

    assert EventLoop().run(job()) == "done"


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="needs the program pgbouncer, which is not installed")
class TestPooler:
    """Through a pooler of transactions, with one session for all, so that what one leaves would be met by the next."""

    @pytest.fixture(autouse=True)
    def _pooled(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        with pooler(sessions=1) as directory:
            monkeypatch.setitem(connection.settings_dict, "HOST", str(directory))
            yield

    @pytest.mark.parametrize("soil", ["SET search_path = pg_catalog", f"SELECT pg_advisory_lock({LOCK})"])
    def test_nothing_of_a_job_reaches_the_next(self, child: Child, soil: str) -> None:
        backend = child.run(pid)
        clean = child.run(lambda: (ask("SHOW search_path"), ask("SHOW TimeZone"), is_locked()))
        child.run(lambda: ask(soil))
        assert child.run(lambda: (ask("SHOW search_path"), ask("SHOW TimeZone"), is_locked())) == clean
        assert child.run(pid) == backend

    def test_jobs_of_two_children_share_it(self, child: Child) -> None:
        other = Child()
        try:
            assert len({one.run(pid) for _ in range(3) for one in (child, other)}) == 1
        finally:
            other.stop()


def test_a_transaction_on_a_connection_that_failed_while_it_opened_is_found(child: Child) -> None:
    """Django announces a connection last of all. One that a receiver refused is open, and was not announced to us."""

    def refuse(**_: object) -> None:
        raise RuntimeError("no such schema")

    def leave_open() -> None:
        connection_created.receivers.insert(0, connection_created.receivers.pop())
        with contextlib.suppress(RuntimeError):
            connection.ensure_connection()
        connection.set_autocommit(False)
        ask("SELECT pg_current_xact_id()::text")

    child.run(close_all)
    child.run(renew)
    connection_created.connect(refuse)
    connection_created.sender_receivers_cache.clear()
    try:
        _, outcome = child.end(leave_open)
    finally:
        connection_created.disconnect(refuse)
    assert outcome.failure_type == "open_transaction"
