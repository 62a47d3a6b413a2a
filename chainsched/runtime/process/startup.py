"""The steps before the loops start: check discovery, seed declarations, reap the executions of lost processes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from django.apps import apps
from django.core import mail
from django.db import connections
from django.db.migrations.executor import MigrationExecutor

from chainsched.conf import get_config
from chainsched.db import locks, sqlite_file
from chainsched.db.clock import database_now
from chainsched.exceptions import DeclarationError, NotMigrated, UnfitFileSystem
from chainsched.flow.maintain.reap import reap
from chainsched.flow.schedule.declare import schedules
from chainsched.flow.schedule.seed import Seeded, seed

logger = logging.getLogger(__name__)


def prepare() -> Seeded | None:
    """Prepare the database for the loops: WAL on SQLite, the declared schedules, and executions of lost processes."""
    refuse_to_run()
    locks.turn_wal_on(connections[get_config().database])
    seeded = seed(schedules, now=database_now()) if get_config().seed.on_start else None
    reap(now=database_now())
    return seeded


def refuse_to_run() -> None:
    """Raise, with the remedy, if no process may run jobs from this database as it is."""
    _refuse_network_file()
    refuse_unready()


def refuse_unready() -> None:
    """Raise, with the remedy, if tables are missing or a module with declarations could not be imported."""
    if not _is_migrated(get_config().database):
        raise NotMigrated(get_config().database)
    refuse_undiscovered()


def refuse_undiscovered() -> None:
    """Raise if a module with workflows or schedules could not be imported: no part of the schedules is used then."""
    undiscovered: dict[str, Exception] = getattr(apps.get_app_config("chainsched"), "undiscovered", {})
    for module, error in undiscovered.items():
        raise DeclarationError(f"{module} cannot be imported: {type(error).__name__}: {error}") from error


def seed_after_migrate(*, using: str, plan: Sequence[Any]) -> None:
    """Seed when ``migrate`` has brought the tables of chainsched fully up to date; never in a test run."""
    config = get_config()
    if not config.seed.post_migrate or using != config.database or schedules.is_empty or _is_test_run():
        return
    if any(is_backwards for _, is_backwards in plan) or not _is_migrated(using):
        return
    refuse_undiscovered()
    seed(schedules, now=database_now())


def _refuse_network_file() -> None:
    """Raise for an SQLite file on a network: processes share it by file locks and memory, which need one host."""
    file = sqlite_file.database_file(connections[get_config().database])
    file_system = sqlite_file.network_file_system(file) if file is not None else None
    if file_system is not None:
        raise UnfitFileSystem(str(file), file_system=file_system)


def _is_test_run() -> bool:
    # Django's test environment, which every test runner sets up, adds the outbox.
    return hasattr(mail, "outbox")


def _is_migrated(using: str) -> bool:
    executor = MigrationExecutor(connections[using])
    targets = [node for node in executor.loader.graph.leaf_nodes() if node[0] == "chainsched"]
    return not executor.migration_plan(targets)
