"""PostgreSQL is asked to look again at tables that have grown, and at no others."""

import pytest
from django.db import DatabaseError, connection

from chainsched.db import bulk
from chainsched.flow.maintain import analyze as module
from chainsched.flow.maintain.analyze import analyze_grown
from chainsched.models import WorkQueue
from tests.factories import make_manifest, make_queue_row

# Committed, and truncated before the next test: rows that were rolled back make a table as large as others.
pytestmark = pytest.mark.django_db(transaction=True)

ROWS = 5000


def grow() -> None:
    """Many more rows in the queue than PostgreSQL knows of."""
    columns = {str(field.column) for field in WorkQueue._meta.concrete_fields} - {"id", "manifest_id"}
    listed = ", ".join(f'"{column}"' for column in sorted(columns))
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE chainsched_workqueue")
        cursor.execute("ANALYZE chainsched_workqueue")
    row = make_queue_row(make_manifest())
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO chainsched_workqueue ({listed}) SELECT {listed} FROM chainsched_workqueue, "  # noqa: S608
            f"generate_series(1, {ROWS}) WHERE id = {row.id}"
        )


@pytest.mark.postgres
def test_a_table_that_has_grown_is_analyzed_once():
    bulk.analyze(*module.WATCHED)
    assert analyze_grown() == 0
    grow()
    assert bulk.grown(module.WATCHED) == [WorkQueue]
    assert analyze_grown() == 1
    assert analyze_grown() == 0


@pytest.mark.postgres
def test_one_that_cannot_be_analyzed_now_stops_nothing(monkeypatch):
    def refuse(*_models):
        raise DatabaseError("canceling statement due to lock timeout")

    grow()
    monkeypatch.setattr(bulk, "analyze", refuse)
    assert analyze_grown() == 0
    assert bulk.grown(module.WATCHED) == [WorkQueue]


def test_a_new_installation_has_nothing_to_analyze():
    make_queue_row(make_manifest())
    assert analyze_grown() == 0
