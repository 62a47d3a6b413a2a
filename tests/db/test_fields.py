"""References to users, who may live in another database than ours."""

from typing import Any

import pytest
from django.contrib.auth.models import User

from chainsched.models import BulkDecision, DeadLetter
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
