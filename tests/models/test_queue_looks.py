"""The looks of dispatch into a long queue read the head of an index, whatever PostgreSQL knows of the rows."""

import pytest
from django.db import connection, transaction

from chainsched.db import locks
from chainsched.domain.routing import Pool
from chainsched.models import queue_looks
from chainsched.models.queue_looks import LOOK_COLUMNS, Looked
from tests.factories import NOW, make_manifest, make_queue_row

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

ROWS = 3000
POOLS = [Pool(["testapp.ping"]), Pool(["testapp.ping"], ["default"])]


@pytest.fixture
def long_queue():
    """Rows of one group, after PostgreSQL has looked at them."""
    manifest = make_manifest(state={})
    row = make_queue_row(manifest)
    columns = {str(field.column) for field in type(row)._meta.concrete_fields} - {"id", "turn", "manifest_id"}
    listed = ", ".join(f'"{column}"' for column in sorted(columns))
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO chainsched_workqueue (turn, {listed}) SELECT n, {listed} FROM chainsched_workqueue, "  # noqa: S608
            f"generate_series(2, {ROWS}) n WHERE id = {row.id}"
        )
        cursor.execute("ANALYZE chainsched_workqueue")


def plan_of(part_of_text: str) -> str:
    """The plan that the session keeps for the statement with this in its text, for no values in particular."""
    with connection.cursor() as cursor, transaction.atomic():
        locks.set_locally(connection, {"plan_cache_mode": "force_generic_plan"} | locks.BY_INDEX)
        cursor.execute("SELECT name, statement, cardinality(parameter_types) FROM pg_prepared_statements")
        ((name, number),) = [(name, number) for name, text, number in cursor.fetchall() if part_of_text in text]
        cursor.execute(f"EXPLAIN EXECUTE {name}({', '.join(['NULL'] * number)})")
        return "\n".join(line for (line,) in cursor.fetchall())


@pytest.mark.parametrize("pool", POOLS, ids=["all queues", "named queues"])
def test_the_look_for_rows_to_take_sorts_none(long_queue, pool):
    found = Looked(NOW, pool, full_groups=[], taken=[]).lock(limit=100)
    assert [row["turn"] for row in found] == list(range(1, 101))
    plan = plan_of("FOR NO KEY UPDATE")
    assert "chainsched_queue_order" in plan
    assert "Sort" not in plan, plan
    assert set(found[0]) == set(LOOK_COLUMNS)


@pytest.mark.parametrize("pool", POOLS, ids=["all queues", "named queues"])
def test_the_look_for_whether_there_is_any_sorts_none(long_queue, pool):
    assert queue_looks.has_any_ready(NOW, pool=pool)
    plan = plan_of("chainsched_workqueue")
    assert "Sort" not in plan, plan
