"""The migrations: there and back again, and nothing missing."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from django.db import connection

from chainsched.db import audit_guard


def tables() -> set[str]:
    return {name for name in connection.introspection.table_names() if name.startswith("chainsched_")}


def migrate(target: str | None = None) -> None:
    call_command("migrate", "chainsched", *([target] if target else []), verbosity=0)


@pytest.mark.django_db
def test_no_change_of_the_models_lacks_its_migration():
    call_command("makemigrations", "chainsched", check=True, dry_run=True, verbosity=0)


@pytest.mark.django_db(transaction=True)
def test_the_schema_can_be_taken_down_and_built_again():
    everything = tables()
    assert everything
    try:
        migrate("zero")
        assert tables() == set()
    finally:
        migrate()
    assert tables() == everything
    assert audit_guard.is_present(connection)


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_taking_the_schema_down_leaves_no_function_behind():
    try:
        migrate("zero")
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_proc WHERE proname = %s", [audit_guard.FUNCTION])
            assert cursor.fetchone() == (0,)
    finally:
        migrate()


@pytest.mark.django_db(transaction=True)
def test_the_sql_of_the_guard_can_be_printed():
    printed = call_command("sqlmigrate", "chainsched", "0001", verbosity=0)
    assert audit_guard.TRIGGER in str(printed)
