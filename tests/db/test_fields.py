"""References to users, who may live in another database than ours; lists of ids."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core import serializers
from django.db import connection, models

from chainsched.db import bulk
from chainsched.db.fields import IdList
from chainsched.models import BulkDecision, DeadLetter, DueNote
from tests.factories import NOW, make_letter

NAMED = [(DeadLetter, "resolved_by"), (BulkDecision, "asked_by")]


class Collector:
    """What Django asks while it deletes a user of this database: which rows to change, and where."""

    def __init__(self) -> None:
        self.updates: list[tuple[str, Any, str]] = []

    def add_field_update(self, field: Any, value: Any, rows: Any) -> None:
        self.updates.append((field.name, value, rows.db))


@pytest.mark.parametrize(("model", "column"), NAMED)
def test_a_user_of_another_database_is_forgotten_in_ours(model: Any, column: str) -> None:
    field = model._meta.get_field(column)
    deleting = Collector()
    field.remote_field.on_delete(deleting, field, model.objects.using("of_users"), "of_users")
    assert deleting.updates == [(column, None, "default")]


@pytest.mark.django_db
def test_a_user_who_is_deleted_is_forgotten() -> None:
    someone = User.objects.create_user("someone")
    letter = make_letter(resolved_by=someone)
    bulk_decision = BulkDecision.objects.create(verb="retry", total=1, created_at=NOW, asked_by=someone)
    someone.delete()
    letter.refresh_from_db()
    bulk_decision.refresh_from_db()
    assert (letter.resolved_by_id, bulk_decision.asked_by_id) == (None, None)


LISTS = [[], [7], [3, 1, 2], [2**62]]


@pytest.mark.django_db
class TestAListOfIds:
    @pytest.mark.parametrize("ids", LISTS)
    def test_it_is_read_as_it_was_written(self, ids: list[int]) -> None:
        note = DueNote.objects.create(child_id=1, tokens=ids)
        note.refresh_from_db()
        assert note.tokens == ids
        assert DueNote.objects.values_list("tokens", flat=True).get() == ids

    @pytest.mark.parametrize("ids", LISTS)
    def test_rows_that_are_written_together_have_it_too(self, ids: list[int]) -> None:
        bulk.insert(DueNote, [{"child_id": 1, "tokens": ids}, {"child_id": 2, "tokens": []}])
        first, second = DueNote.objects.order_by("child_id")
        assert (first.tokens, second.tokens) == (ids, [])
        bulk.update(DueNote, [{"id": first.id, "tokens": []}, {"id": second.id, "tokens": ids}])
        assert list(DueNote.objects.order_by("child_id").values_list("tokens", flat=True)) == [[], ids]

    def test_a_tuple_is_written_as_a_list(self) -> None:
        DueNote.objects.create(child_id=1, tokens=(4, 5))
        DueNote.objects.update(tokens=(6, 7))
        assert DueNote.objects.get().tokens == [6, 7]

    def test_each_row_has_an_empty_list_of_its_own(self) -> None:
        first, second = DueNote(child_id=1), DueNote(child_id=2)
        first.tokens.append(9)
        assert second.tokens == []

    def test_the_database_can_spread_it(self) -> None:
        """Where tokens are counted, a statement reads one row for each id."""
        DueNote.objects.create(child_id=1, tokens=[4, 5])
        is_postgres = connection.vendor == "postgresql"
        spread = "unnest(tokens) AS t(value)" if is_postgres else "json_each(tokens) AS t"
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT t.value FROM chainsched_duenote CROSS JOIN {spread} ORDER BY 1")  # noqa: S608
            assert cursor.fetchall() == [(4,), (5,)]

    @pytest.mark.parametrize("ids", LISTS)
    def test_it_survives_a_dump(self, ids: list[int]) -> None:
        DueNote.objects.create(child_id=1, tokens=ids)
        dumped = serializers.serialize("json", DueNote.objects.all())
        DueNote.objects.all().delete()
        for row in serializers.deserialize("json", dumped):
            row.save()
        assert DueNote.objects.get().tokens == ids


def test_one_migration_is_for_both_databases() -> None:
    """Its class is named there, and only the connection decides the type of the column."""
    field = IdList(help_text="…")
    _, path, args, options = field.deconstruct()
    assert path == "chainsched.db.fields.IdList"
    again: models.Field[Any, Any] = IdList(*args, **options)
    assert again.deconstruct()[1:] == (path, args, options)
    assert field.db_type(connection) == ("bigint[]" if connection.vendor == "postgresql" else "text")
