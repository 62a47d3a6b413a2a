"""The migration operation that installs the guard of the audit trail."""

from __future__ import annotations

from typing import Any

from django.db import router
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation, OperationCategory
from django.db.migrations.state import ProjectState

from chainsched.db import audit_guard


class InstallGuard(Operation):
    """Install the triggers that make ended executions final.

    A migration that alters the table repeats it as its last operation: SQLite drops triggers when it remakes a table.
    """

    reduces_to_sql = True
    reversible = True
    category = OperationCategory.SQL

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Leave the models as they are."""

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: Any, to_state: Any
    ) -> None:
        if router.allow_migrate(schema_editor.connection.alias, app_label, model_name="metadata"):
            audit_guard.install(schema_editor)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: Any, to_state: Any
    ) -> None:
        if router.allow_migrate(schema_editor.connection.alias, app_label, model_name="metadata"):
            audit_guard.remove(schema_editor)

    def describe(self) -> str:
        return "Install the guard that makes ended executions final"
