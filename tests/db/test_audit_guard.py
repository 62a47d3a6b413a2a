"""The guard of the audit trail: an execution that has ended is final, by the ORM and by hand."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from chainsched.db import audit_guard, bulk
from chainsched.exceptions import ExecutionIsFinal
from chainsched.models import Metadata

NOW = datetime(2026, 3, 2, 13, tzinfo=UTC)
TERMINAL = ["completed", "failed", "cancelled"]
ACTIVE = ["pending", "in_progress"]

pytestmark = pytest.mark.django_db


def execution(state: str, **columns: Any) -> Metadata:
    ended_at = NOW if state in TERMINAL else None
    return Metadata.objects.create(
        workflow="shop.copy",
        source="schedule",
        scheduled_for=NOW,
        created_at=NOW,
        state=state,
        ended_at=ended_at,
        **columns,
    )


def run_sql(sql: str, *parameters: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)


def by_queryset(row: Metadata) -> None:
    Metadata.objects.filter(pk=row.pk).update(failure_reason="rewritten")


def by_save(row: Metadata) -> None:
    row.failure_reason = "rewritten"
    row.save()


def by_bulk_update(row: Metadata) -> None:
    row.failure_reason = "rewritten"
    Metadata.objects.bulk_update([row], ["failure_reason"])


def by_our_bulk(row: Metadata) -> None:
    bulk.update(Metadata, [{"id": row.pk, "failure_reason": "rewritten"}])


def by_raw_sql(row: Metadata) -> None:
    run_sql("UPDATE chainsched_metadata SET failure_reason = 'rewritten' WHERE id = %s", row.pk)


def by_reopening(row: Metadata) -> None:
    run_sql("UPDATE chainsched_metadata SET state = 'pending', ended_at = NULL WHERE id = %s", row.pk)


def by_writing_the_same(row: Metadata) -> None:
    run_sql("UPDATE chainsched_metadata SET state = state WHERE id = %s", row.pk)


CHANGES = [by_queryset, by_save, by_bulk_update, by_our_bulk, by_raw_sql, by_reopening, by_writing_the_same]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("state", TERMINAL)
def test_an_ended_execution_cannot_be_changed(state: str, change: Callable[[Metadata], None]):
    row = execution(state)
    with pytest.raises(IntegrityError, match="is final"), transaction.atomic():
        change(row)
    row.refresh_from_db()
    assert (row.state, row.failure_reason, row.ended_at) == (state, "", NOW)


@pytest.mark.parametrize("change", CHANGES[:5], ids=lambda change: change.__name__)
@pytest.mark.parametrize("state", ACTIVE)
def test_an_active_execution_may_change(state: str, change: Callable[[Metadata], None]):
    row = execution(state)
    change(row)
    row.refresh_from_db()
    assert row.failure_reason == "rewritten"


@pytest.mark.parametrize("state", TERMINAL)
def test_an_execution_may_end(state):
    row = execution("in_progress")
    assert Metadata.objects.filter(pk=row.pk).update(state=state, ended_at=NOW) == 1


def test_one_ended_execution_among_many_refuses_the_whole_statement():
    active, ended = execution("in_progress"), execution("completed")
    with pytest.raises(IntegrityError, match="is final"), transaction.atomic():
        Metadata.objects.filter(pk__in=[active.pk, ended.pk]).update(progress={"done": 1})
    active.refresh_from_db()
    assert active.progress is None


@pytest.mark.parametrize("state", [*TERMINAL, *ACTIVE])
def test_the_orm_deletes_no_execution(state):
    row = execution(state)
    with pytest.raises(ExecutionIsFinal):
        row.delete()
    with pytest.raises(ExecutionIsFinal):
        Metadata.objects.filter(pk=row.pk).delete()
    with pytest.raises(ExecutionIsFinal):
        Metadata.objects.all().delete()
    assert Metadata.objects.filter(pk=row.pk).exists()


@pytest.mark.postgres
@pytest.mark.parametrize("state", TERMINAL)
def test_an_ended_execution_cannot_be_deleted_by_hand(state):
    row = execution(state)
    with pytest.raises(IntegrityError, match="is final"), transaction.atomic():
        run_sql("DELETE FROM chainsched_metadata WHERE id = %s", row.pk)
    assert Metadata.objects.filter(pk=row.pk).exists()


@pytest.mark.postgres
@pytest.mark.parametrize("value", ["off", "ON ", "true", ""])
def test_only_the_right_word_opens_the_door(value):
    row = execution("completed")
    run_sql(f"SELECT set_config('{audit_guard.RETENTION_SETTING}', %s, true)", value)
    with pytest.raises(IntegrityError, match="is final"), transaction.atomic():
        run_sql("DELETE FROM chainsched_metadata WHERE id = %s", row.pk)


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_the_door_is_open_for_one_transaction():
    first, second = execution("completed"), execution("failed")
    with transaction.atomic():
        run_sql(f"SET LOCAL {audit_guard.RETENTION_SETTING} = 'on'")
        run_sql("DELETE FROM chainsched_metadata WHERE id = %s", first.pk)
    with pytest.raises(IntegrityError, match="is final"), transaction.atomic():
        run_sql("DELETE FROM chainsched_metadata WHERE id = %s", second.pk)
    assert list(Metadata.objects.values_list("pk", flat=True)) == [second.pk]


@pytest.mark.postgres
def test_the_door_lets_nobody_rewrite():
    row = execution("completed")
    run_sql(f"SET LOCAL {audit_guard.RETENTION_SETTING} = 'on'")
    with pytest.raises(IntegrityError, match="is final"), transaction.atomic():
        by_raw_sql(row)


@pytest.mark.postgres
def test_a_pending_execution_may_be_deleted_by_hand():
    row = execution("pending")
    run_sql("DELETE FROM chainsched_metadata WHERE id = %s", row.pk)
    assert not Metadata.objects.filter(pk=row.pk).exists()


def test_the_guard_is_found_taken_away_and_put_back():
    assert audit_guard.is_present(connection)
    run_sql(audit_guard._REMOVE[connection.vendor][0])
    assert not audit_guard.is_present(connection)
    for _ in range(2):  # installing again replaces it
        for statement in audit_guard._INSTALL[connection.vendor]:
            run_sql(statement.replace("%", "%%"))
    assert audit_guard.is_present(connection)
    row = execution("completed")
    with pytest.raises(IntegrityError, match="is final"), transaction.atomic():
        by_queryset(row)
