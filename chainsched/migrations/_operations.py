"""The migration operation that installs the guard of the audit trail."""

from __future__ import annotations

from typing import Any

from django.db import router
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation, OperationCategory
from django.db.migrations.state import ProjectState
from django.db.models import F

from chainsched.models import guard


class InstallGuard(Operation):
    """Install the triggers that make ended executions final.

    A migration that alters the table repeats it with ``RenewGuard``: SQLite drops triggers when it remakes one.
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
            guard.install(schema_editor)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: Any, to_state: Any
    ) -> None:
        if router.allow_migrate(schema_editor.connection.alias, app_label, model_name="metadata"):
            guard.remove(schema_editor)

    def describe(self) -> str:
        return "Install the guard that makes ended executions final"


class RenewGuard(InstallGuard):
    """Put the guard back after a migration that altered the table: first and last in it, for both directions."""

    database_backwards = InstallGuard.database_forwards


def keep_occurrences(apps: Any, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Let alarms that are no wishes count as the schedule's own from now on."""
    states = apps.get_model("chainsched", "ManifestState").objects.using(schema_editor.connection.alias)
    own = states.filter(next_run_at__isnull=False, manifest__schedule_type__in=["cron", "interval", "once"])
    own.exclude(trigger_at__isnull=False, trigger_at=F("next_run_at")).update(occurrence_at=F("next_run_at"))
