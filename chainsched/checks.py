"""System checks: all problems of settings, declarations and the database at once, each with an id."""

from __future__ import annotations

import os
import sqlite3
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, cast

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004 - Django's own names for them
from django.db import connections

from chainsched.apps import ChainschedConfig
from chainsched.conf import get_config
from chainsched.db import audit_guard
from chainsched.domain import cron
from chainsched.domain.declarations import Declaration
from chainsched.domain.redaction import find_secret_names
from chainsched.domain.states import ScheduleType
from chainsched.domain.validation import find_problems
from chainsched.exceptions import ConfigurationError
from chainsched.flow.schedule.declare import schedules
from chainsched.registry import registry
from chainsched.secret import FORMAT

VENDORS = ("postgresql", "sqlite")
OLDEST_SQLITE = (3, 35, 0)
# In seconds: the timeout that Python sets by default, and the one that several writers need.
SQLITE_PATIENCE = 5.0
LEAST_PATIENCE = 20
# As psycopg numbers the levels; named here because psycopg may not be installed.
READ_COMMITTED = 2


def check_configuration(app_configs: Sequence[AppConfig] | None, **_kwargs: Any) -> list[CheckMessage]:
    """The CHAINSCHED setting and the database it names."""
    try:
        alias = get_config().database
    except ConfigurationError as error:
        return [Error(problem, id="chainsched.E001") for problem in error.problems]
    return [*_time_messages(), *_database_messages(alias)]


def check_declarations(app_configs: Sequence[AppConfig] | None, **_kwargs: Any) -> list[CheckMessage]:
    """The modules that declare, and their declarations. Batches with callables as items are read when seeding."""
    try:
        get_config()
    except ConfigurationError:
        return []  # reported by check_configuration; declarations cannot be judged without limits
    config = cast("ChainschedConfig", apps.get_app_config("chainsched"))
    messages: list[CheckMessage] = [
        Error(
            f"{module} cannot be imported: {type(error).__name__}: {error}{_place(error)}",
            hint="run_scheduler refuses to start until it can be.",
            id="chainsched.E002",
        )
        for module, error in config.undiscovered.items()
    ]
    declarations, problems = schedules.expand_static()
    messages += [Error(str(problem), id="chainsched.E003") for problem in problems]
    return [*messages, *_declaration_messages(declarations)]


def check_inputs(app_configs: Sequence[AppConfig] | None, **_kwargs: Any) -> list[CheckMessage]:
    """Fields of inputs that look like secrets: their values would be stored as given."""
    workflows = {registry.get(name).name: registry.get(name) for name in registry.names()}
    return [
        Warning(
            f"Workflow {name}: the field {field!r} of its input looks like a secret, and would be stored in the clear.",
            hint="Type it chainsched.Secret, which stores a name and finds the value at run time.",
            id="chainsched.W004",
        )
        for name, found in workflows.items()
        for field in find_secret_names(found.input_type.schema(), by_name_only=FORMAT)
    ]


def check_database(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None, **_kwargs: Any
) -> list[CheckMessage]:
    """That the trigger that guards the audit trail exists."""
    try:
        alias = get_config().database
    except ConfigurationError:
        return []  # reported by check_configuration
    if alias not in (databases or ()):
        return []
    connection = connections[alias]
    if connection.vendor not in VENDORS or audit_guard.TABLE not in connection.introspection.table_names():
        return []
    if audit_guard.is_present(connection):
        return []
    return [
        # Not an error: that would stop the migration that could create it again.
        Warning(
            f"The trigger {audit_guard.TRIGGER} is missing: executions that have ended could be changed.",
            hint="Run `manage.py chainsched fsck --check guard --repair`, which creates it.",
            id="chainsched.W003",
        )
    ]


def _place(error: Exception) -> str:
    """Where in the project's code it happened."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    own = [frame for frame in frames if f"{os.sep}chainsched{os.sep}" not in frame.filename]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


def _time_messages() -> Iterator[CheckMessage]:
    if not settings.USE_TZ:
        yield Error(
            "USE_TZ is False, but a schedule needs times that say their zone.",
            hint="Set USE_TZ = True; TIME_ZONE may stay as it is.",
            id="chainsched.E008",
        )


def _database_messages(alias: str) -> Iterator[CheckMessage]:
    connection = connections[alias]
    options = connection.settings_dict.get("OPTIONS", {})
    if connection.vendor not in VENDORS:
        yield Error(
            f"chainsched runs on PostgreSQL and SQLite, not on {connection.display_name}.",
            hint="Correctness rests on partial unique constraints. Name another database in CHAINSCHED['DATABASE'].",
            id="chainsched.E004",
        )
    elif connection.vendor == "sqlite":
        yield from _sqlite_messages(options)
    elif options.get("isolation_level") not in (None, READ_COMMITTED):
        yield Error(
            f"The database {alias!r} has an isolation level other than READ COMMITTED.",
            hint="chainsched locks first and looks later, which a snapshot of the whole transaction would defeat.",
            id="chainsched.E006",
        )


def _sqlite_messages(options: dict[str, Any]) -> Iterator[CheckMessage]:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        yield Error(
            f"SQLite {sqlite3.sqlite_version} is too old; chainsched needs 3.35 or newer.",
            hint="It relies on RETURNING. A newer Python usually brings a newer SQLite.",
            id="chainsched.E005",
        )
    if str(options.get("transaction_mode", "")).upper() != "IMMEDIATE":
        yield Warning(
            "SQLite transactions do not begin IMMEDIATE.",
            hint="Set OPTIONS['transaction_mode'] = 'IMMEDIATE', or your own transactions that read first and trigger "
            "jobs later can fail with 'database is locked'.",
            id="chainsched.W001",
        )
    if (patience := options.get("timeout", SQLITE_PATIENCE)) < LEAST_PATIENCE:
        yield Warning(
            f"SQLite gives up a write that has waited for {patience:g} s.",
            hint=f"Set OPTIONS['timeout'] = {LEAST_PATIENCE} or more: schedulers, workers and the project take turns "
            "at writing, and under load that takes longer.",
            id="chainsched.W005",
        )


def _declaration_messages(declarations: Sequence[Declaration]) -> Iterator[CheckMessage]:
    """Problems of the declarations alone. Only seeding knows whether a parent that is not declared is stored."""
    declared = {found.external_id: found for found in declarations}
    edges = [
        (declared[parent].group.name, found.group.name)
        for found in declarations
        for parent in found.parents
        if parent in declared
    ]
    problems = find_problems(
        declarations,
        limit=get_config().max_job_depth,
        stored_parents={},
        stored_depths={},
        group_edges=edges,
        is_known=lambda _: True,
    )
    yield from (Error(str(problem), id="chainsched.E003") for problem in problems)
    for found in declarations:
        if found.stated["schedule_type"] == ScheduleType.CRON:
            yield from _cron_messages(found)


def _cron_messages(found: Declaration) -> Iterator[CheckMessage]:
    expression = found.stated["cron_expression"]
    if cron.restricts_both_day_fields(expression):
        yield Warning(
            f"Manifest {found.external_id!r}: {expression!r} restricts the day of the month and the day of the week; "
            "it runs when either matches.",
            hint="Replace one of the two by * if both should have to match.",
            id="chainsched.W002",
        )
