"""The guard of the audit trail: triggers that refuse any change to an execution that has ended.

PostgreSQL also refuses to delete one, unless retention has turned on a setting that lasts for one transaction.
SQLite refuses changes only; a trigger on deletes there would break every flush of a test database.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

TABLE = "chainsched_metadata"
TRIGGER = "chainsched_metadata_is_final"
FUNCTION = "chainsched_refuse_change"
RETENTION_SETTING = "chainsched.retention"
REFUSAL = "chainsched: an execution that has ended is final"

_INSTALL = {
    "postgresql": (
        f"""
        CREATE OR REPLACE FUNCTION {FUNCTION}() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF TG_OP = 'DELETE' AND current_setting('{RETENTION_SETTING}', true) = 'on' THEN
                RETURN OLD;
            END IF;
            RAISE EXCEPTION '{REFUSAL}' USING ERRCODE = 'restrict_violation';
        END $$
        """,
        f"DROP TRIGGER IF EXISTS {TRIGGER} ON {TABLE}",
        f"""
        CREATE TRIGGER {TRIGGER} BEFORE UPDATE OR DELETE ON {TABLE} FOR EACH ROW
        WHEN (OLD.state IN ('completed', 'failed', 'cancelled')) EXECUTE FUNCTION {FUNCTION}()
        """,
    ),
    "sqlite": (
        f"DROP TRIGGER IF EXISTS {TRIGGER}",
        f"""
        CREATE TRIGGER {TRIGGER} BEFORE UPDATE ON {TABLE} FOR EACH ROW
        WHEN OLD.state IN ('completed', 'failed', 'cancelled')
        BEGIN SELECT RAISE(ABORT, '{REFUSAL}'); END
        """,
    ),
}

_REMOVE = {
    "postgresql": (f"DROP TRIGGER IF EXISTS {TRIGGER} ON {TABLE}", f"DROP FUNCTION IF EXISTS {FUNCTION}()"),
    "sqlite": (f"DROP TRIGGER IF EXISTS {TRIGGER}",),
}

_PRESENT = {
    "postgresql": (
        "SELECT count(*) FROM pg_trigger WHERE tgname = %s AND tgenabled <> 'D' AND tgrelid = to_regclass(%s)"
    ),
    "sqlite": "SELECT count(*) FROM sqlite_master WHERE type = 'trigger' AND name = %s AND tbl_name = %s",
}


def install(schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Create the triggers in a migration, replacing older ones."""
    for statement in _INSTALL.get(schema_editor.connection.vendor, ()):
        schema_editor.execute(statement)


@contextlib.contextmanager
def retention_allowed(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Allow deletes for retention: inside, and only within this transaction, ended executions may be deleted."""
    if connection.vendor != "postgresql":
        yield
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config(%s, 'on', true)", [RETENTION_SETTING])
        yield
        cursor.execute("SELECT set_config(%s, 'off', true)", [RETENTION_SETTING])


def repair(connection: BaseDatabaseWrapper) -> None:
    """Create the triggers outside of a migration."""
    with connection.cursor() as cursor:
        for statement in _INSTALL[connection.vendor]:
            cursor.execute(statement)


def remove(schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Drop the triggers in a migration."""
    for statement in _REMOVE.get(schema_editor.connection.vendor, ()):
        schema_editor.execute(statement)


def is_present(connection: BaseDatabaseWrapper) -> bool:
    """Whether the trigger exists in the database and is enabled."""
    with connection.cursor() as cursor:
        cursor.execute(_PRESENT[connection.vendor], [TRIGGER, TABLE])
        return bool(cursor.fetchone()[0])
