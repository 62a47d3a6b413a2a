"""Hot queries: built once, given their values with each call, and prepared where that is safe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.db.models import F, Value
from django.db.transaction import TransactionManagementError
from django.test.utils import CaptureQueriesContext

from chainsched.db.compiled import NOW, CompiledQuery, CompiledUpdate, Ids, binding_cursor
from chainsched.db.id_in import id_in
from chainsched.models import Manifest, ManifestState, Metadata, WorkQueue
from tests.factories import make_manifest, make_queue_row

pytestmark = pytest.mark.django_db

AT = datetime(2026, 3, 2, 13, 5, 7, 123456, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def due_states() -> CompiledQuery:
    return CompiledQuery(
        lambda: ManifestState.objects.filter(next_run_at__lte=NOW).order_by("next_run_at").values_list("manifest_id"),
        has_limit=True,
    )


def prepared_statements() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement FROM pg_prepared_statements")
        return [statement for (statement,) in cursor.fetchall()]


class TestQueries:
    def test_values_are_given_with_each_call(self):
        first, second = (make_manifest(state={"next_run_at": AT + number * SECOND}).id for number in (0, 1))
        query = due_states()
        assert query.column(now=AT - SECOND, limit=10) == []
        assert query.column(now=AT, limit=10) == [first]
        assert query.column(now=AT + SECOND, limit=10) == [first, second]
        assert query.column(now=AT + SECOND, limit=1) == [first]

    def test_ids_are_one_parameter_of_any_number(self):
        known = [make_manifest().id for _ in range(3)]
        query = CompiledQuery(lambda: Manifest.objects.filter(id_in(id=Ids())).order_by("id").values_list("id"))
        assert query.column(ids=known) == known
        assert query.column(ids=set(known[:1])) == known[:1]
        assert query.column(ids=range(10**6, 10**6 + 5_000)) == []

    def test_for_no_ids_no_statement_is_sent(self):
        query = CompiledQuery(lambda: Manifest.objects.filter(id_in(id=Ids())).values_list("id"))
        with CaptureQueriesContext(connection) as captured:
            assert query.rows(ids=[]) == []
        assert len(captured) == 0

    def test_columns_come_back_as_django_reads_them(self):
        make_queue_row(make_manifest(), input={"a": [1, None]}, scheduled_for=AT, tokens=[4, 5])
        columns = ("input", "scheduled_for", "tokens", "has_tokens", "not_before")
        query = CompiledQuery(lambda: WorkQueue.objects.values_list(*columns))
        assert query.rows() == [tuple(row) for row in WorkQueue.objects.values_list(*columns)]

    def test_texts_with_marks_of_parameters_are_values_that_never_change(self):
        odd = "100 % 'quoted' %s"
        make_manifest(external_id=odd)
        query = CompiledQuery(lambda: Manifest.objects.filter(external_id=odd).values_list("external_id"))
        assert query.column() == [odd]

    @pytest.mark.postgres
    def test_a_value_that_cannot_become_text_is_refused(self):
        query = CompiledQuery(lambda: ManifestState.objects.filter(next_run_at__lte=AT).values_list("pk"))
        with pytest.raises(TypeError, match="make it a Parameter"):
            query.rows()

    def test_logged_statements_show_their_values(self):
        manifest = make_manifest(state={"next_run_at": AT})
        with CaptureQueriesContext(connection) as captured:
            assert due_states().column(now=AT, limit=7) == [manifest.id]
        (logged,) = captured.captured_queries
        assert "2026-03-02" in logged["sql"]
        assert "LIMIT 7" in logged["sql"]


class TestUpdates:
    def test_rows_are_written_and_counted(self):
        chosen, other = make_manifest(state={"next_run_at": AT}), make_manifest(state={"next_run_at": AT})
        update = CompiledUpdate(
            lambda: ManifestState.objects.filter(id_in(manifest=Ids())),
            next_run_at=NOW,
            occurrence_at=None,
            due_execution=F("due_execution") + Value(1),
        )
        assert update.run(ids=[chosen.id], now=AT + SECOND) == 1
        assert update.run(ids=[], now=AT) == 0
        states = {state.manifest_id: (state.next_run_at, state.due_execution) for state in ManifestState.objects.all()}
        assert states == {chosen.id: (AT + SECOND, 1), other.id: (AT, 0)}


@pytest.mark.postgres
class TestPreparing:
    @pytest.fixture(autouse=True)
    def new_session(self, db: None) -> Iterator[None]:
        """What is known of a session stays with its cursor."""
        connection.ensure_connection()
        session = connection.connection.__dict__
        session.pop("_chainsched_cursor", None)
        yield
        session.pop("_chainsched_cursor", None)

    def run_once(self) -> None:
        due_states().column(now=AT, limit=1)

    def test_a_statement_is_prepared_once_for_a_session(self):
        with transaction.atomic():
            for _ in range(3):
                self.run_once()
            assert sum("next_run_at" in statement for statement in prepared_statements()) == 1

    def test_other_statements_of_the_session_are_not_prepared(self):
        self.run_once()
        for _ in range(10):
            list(Metadata.objects.filter(id=1))
        assert not [statement for statement in prepared_statements() if "chainsched_metadata" in statement]
        assert connection.connection.prepare_threshold is None

    def test_a_session_that_may_prepare_nothing_prepares_nothing(self, monkeypatch):
        with connection.cursor() as cursor:
            cursor.execute("DEALLOCATE ALL")
        monkeypatch.setitem(connection.settings_dict["OPTIONS"], "prepare_threshold", None)
        self.run_once()
        assert prepared_statements() == []

    def test_a_session_of_a_pooler_prepares_nothing(self, monkeypatch):
        with connection.cursor() as cursor:
            cursor.execute("DEALLOCATE ALL")
        monkeypatch.setattr("chainsched.db.compiled_cursor._leads_to_the_server", lambda session: False)
        self.run_once()
        assert prepared_statements() == []

    def test_a_session_to_the_server_itself_is_known_as_one(self):
        connection.ensure_connection()
        with binding_cursor(connection) as cursor:
            assert cursor._cursor._is_preparing

    def test_a_session_keeps_its_cursor_but_not_the_rows(self):
        with binding_cursor(connection) as cursor:
            cursor.execute("SELECT 1")
            own = cursor._cursor
            with binding_cursor(connection) as inner:
                inner.execute("SELECT 2")
                assert (inner.fetchall(), cursor.fetchall()) == ([(2,)], [(1,)])
        with binding_cursor(connection) as cursor:
            assert cursor._cursor is own
            assert own.pgresult is None

    def test_wrappers_of_the_connection_see_its_statements(self):
        seen = []

        def see(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
            seen.append(sql)
            return execute(sql, *rest)

        with connection.execute_wrapper(see), binding_cursor(connection) as cursor:
            cursor.execute("SELECT 1")
        assert seen == ["SELECT 1"]

    def test_a_broken_transaction_refuses_further_statements(self):
        with transaction.atomic():
            transaction.set_rollback(True)
            with pytest.raises(TransactionManagementError), binding_cursor(connection) as cursor:
                cursor.execute("SELECT 1")

    def test_errors_are_those_of_django(self):
        with pytest.raises(DatabaseError), transaction.atomic(), binding_cursor(connection) as cursor:
            cursor.execute("SELECT nothing FROM nowhere")
        self.run_once()


@pytest.mark.postgres
class TestSessionsThatLoseTheirStatements:
    """Code of the project may share the session, and discard what is prepared in it."""

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("statement", ["DISCARD ALL", "DEALLOCATE ALL"])
    def test_they_are_prepared_again(self, statement):
        known = make_manifest().id
        query = CompiledQuery(lambda: Manifest.objects.filter(id_in(id=Ids())).values_list("id"))
        assert query.column(ids=[known]) == [known]
        with connection.cursor() as cursor:
            cursor.execute(statement)
        assert query.column(ids=[known]) == [known]

    @pytest.mark.django_db(transaction=True)
    def test_in_a_transaction_the_next_one_succeeds(self):
        known = make_manifest().id
        query = CompiledQuery(lambda: Manifest.objects.filter(id_in(id=Ids())).values_list("id"))
        assert query.column(ids=[known]) == [known]
        with connection.cursor() as cursor:
            cursor.execute("DEALLOCATE ALL")
        with pytest.raises(DatabaseError), transaction.atomic():
            query.column(ids=[known])
        with transaction.atomic():
            assert query.column(ids=[known]) == [known]

    @pytest.mark.django_db(transaction=True)
    def test_so_they_are_when_a_column_got_another_type(self):
        make_manifest("a", owner="x")
        query = CompiledQuery(lambda: Manifest.objects.order_by("id").values_list("owner"))
        assert query.column() == ["x"]
        try:
            with connection.cursor() as cursor:
                cursor.execute("ALTER TABLE chainsched_manifest ALTER COLUMN owner TYPE text")
            assert query.column() == ["x"]
        finally:
            with connection.cursor() as cursor:
                cursor.execute("ALTER TABLE chainsched_manifest ALTER COLUMN owner TYPE varchar(100)")
