"""System checks: what is wrong with settings, declarations and the database, each with its id."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest
from django.apps import apps
from django.core.checks import CheckMessage, run_checks
from django.db import connection
from django.test import override_settings

from chainsched import Cron, Every, ManifestItem, checks
from chainsched.apps import ChainschedConfig
from chainsched.db import audit_guard
from chainsched.flow.schedule.declare import Schedules
from tests.testapp.workflows import Slice, copy, ping

# Django's own checks of JSON columns ask SQLite what it can.
pytestmark = pytest.mark.django_db

needs_sqlite = pytest.mark.skipif(connection.vendor != "sqlite", reason="about SQLite")
needs_postgres = pytest.mark.postgres


def ours(*, databases: list[str] | None = None) -> list[CheckMessage]:
    """What Django's own run of all checks says with our ids."""
    return [found for found in run_checks(databases=databases) if str(found.id).startswith("chainsched.")]


def ids(found: list[CheckMessage]) -> list[str]:
    return [str(message.id).removeprefix("chainsched.") for message in found]


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> Schedules:
    """A place to declare into that the checks read, and that is gone after the test."""
    fresh = Schedules()
    monkeypatch.setattr(checks, "schedules", fresh)
    return fresh


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> ChainschedConfig:
    """Our app with no failed discovery, restored after the test."""
    config = cast("ChainschedConfig", apps.get_app_config("chainsched"))
    monkeypatch.setattr(config, "undiscovered", {})
    return config


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The database's OPTIONS, to be changed at will."""
    changed = dict(connection.settings_dict["OPTIONS"])
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", changed)
    return changed


@pytest.mark.django_db
def test_a_sound_project_has_nothing_to_report(declared, app):
    declared.schedule(copy, "sync", Slice("users"), Every.minutes(5)).include(ping, "after")
    assert ours(databases=["default"]) == []


@override_settings(CHAINSCHED={"MAX_RETRIES": -1, "LISTENN": True})
def test_every_wrong_setting_is_an_error(declared):
    found = ours()
    assert ids(found) == ["E001", "E001"]
    assert "MAX_RETRIES" in found[0].msg
    assert "LISTEN" in found[1].msg


def test_a_module_that_cannot_be_imported_is_an_error_with_its_cause(app, declared, tmp_path, monkeypatch):
    package = tmp_path / "broken_shop"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "schedules.py").write_text("raise LookupError('no such table: prices')")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        app._import(import_module("broken_shop"), "schedules")
        (found,) = ours()
    finally:
        sys.modules.pop("broken_shop", None)
    assert found.id == "chainsched.E002"
    assert "broken_shop.schedules" in found.msg
    assert "LookupError: no such table: prices" in found.msg


def declare_twice(to: Schedules) -> None:
    to.schedule(ping, "sync", None, Every.minutes(5))
    to.schedule(ping, "sync", None, Every.minutes(6))


def declare_circle_of_manifests(to: Schedules) -> None:
    items = [ManifestItem("a", depends_on="sync-b"), ManifestItem("b", depends_on="sync-a")]
    to.schedule(ping, "root", None, Every.minutes(5)).include_many(ping, "sync", items)


def declare_circle_of_groups(to: Schedules) -> None:
    to.schedule(ping, "a", None, Every.minutes(5), group="one").include(ping, "b", group="two").then_include(
        ping, "c", group="one"
    )


def declare_quarrelling_members(to: Schedules) -> None:
    to.schedule(ping, "a", None, Every.minutes(5), group="etl", group_priority=3)
    to.schedule(ping, "b", None, Every.minutes(5), group="etl", group_priority=4)


def declare_bad_item(to: Schedules) -> None:
    to.schedule_many(copy, "sync", [ManifestItem("a", {"tabel": "x"})], Every.minutes(5))


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (declare_twice, ["'sync'", "twice"]),
        (declare_circle_of_manifests, ["sync-a", "sync-b"]),
        (declare_circle_of_groups, ["one", "two"]),
        (declare_quarrelling_members, ["'etl'", "priority"]),
        (declare_bad_item, ["'sync-a'", "tabel"]),
    ],
)
def test_a_wrong_declaration_is_an_error_that_names_it(declare, words, declared, app):
    declare(declared)
    (found,) = ours()
    assert found.id == "chainsched.E003"
    assert all(word in found.msg for word in words)


def test_problems_of_several_kinds_are_reported_together(declared, app):
    app.undiscovered["shop.schedules"] = ImportError("gone")
    declare_twice(declared)
    declare_quarrelling_members(declared)
    assert ids(ours()) == ["E002", "E003", "E003"]


def test_the_problems_of_two_batches_are_reported_together(declared, app):
    declared.schedule_many(copy, "one", [ManifestItem("a", {"tabel": "x"})], Every.minutes(5))
    declared.schedule_many(copy, "two", [ManifestItem("b", {"tabel": "x"})], Every.minutes(5))
    assert ids(ours()) == ["E003", "E003"]


def test_a_batch_that_a_callable_makes_is_not_called_by_checks(declared, app):
    def items() -> list[ManifestItem]:
        raise AssertionError("called by a check")

    declared.schedule_many(ping, "sync", items, Every.minutes(5))
    assert ours() == []


def test_any_other_database_is_refused(monkeypatch, declared, app):
    monkeypatch.setattr(connection, "vendor", "mysql")
    monkeypatch.setattr(connection, "display_name", "MySQL")
    (found,) = checks.check_configuration(None)
    assert found.id == "chainsched.E004"
    assert "MySQL" in found.msg
    assert "partial unique" in str(found.hint)


def test_times_without_zone_are_refused(settings, declared, app):
    settings.USE_TZ = False
    assert ids(ours()) == ["E008"]


@needs_sqlite
def test_a_sqlite_that_is_too_old_is_refused(monkeypatch, declared, app):
    monkeypatch.setattr(checks, "OLDEST_SQLITE", (99, 0, 0))
    assert ids(ours()) == ["E005"]


@needs_postgres
@pytest.mark.parametrize("level", [3, 4], ids=["repeatable read", "serializable"])
def test_an_isolation_level_above_read_committed_is_refused(level, options, declared, app):
    options["isolation_level"] = level
    assert ids(ours()) == ["E006"]


@needs_postgres
def test_read_committed_may_be_stated(options, declared, app):
    from psycopg import IsolationLevel  # noqa: PLC0415 - not everybody who runs the tests on SQLite has it

    options["isolation_level"] = IsolationLevel.READ_COMMITTED
    assert ours() == []


@pytest.mark.django_db
def test_a_missing_guard_is_an_error(declared, app):
    with connection.cursor() as cursor:
        on_table = f" ON {audit_guard.TABLE}" if connection.vendor == "postgresql" else ""
        cursor.execute(f"DROP TRIGGER {audit_guard.TRIGGER}{on_table}")
    (found,) = ours(databases=["default"])
    assert found.id == "chainsched.W003"
    assert audit_guard.TRIGGER in found.msg


@needs_postgres
@pytest.mark.django_db
def test_a_guard_that_was_switched_off_is_missing(declared, app):
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {audit_guard.TABLE} DISABLE TRIGGER {audit_guard.TRIGGER}")
    assert ids(ours(databases=["default"])) == ["W003"]


@pytest.mark.django_db
def test_the_guard_is_looked_for_only_when_databases_are_checked(declared, app):
    with connection.cursor() as cursor:
        on_table = f" ON {audit_guard.TABLE}" if connection.vendor == "postgresql" else ""
        cursor.execute(f"DROP TRIGGER {audit_guard.TRIGGER}{on_table}")
    assert ours() == []


@needs_sqlite
@pytest.mark.parametrize("mode", [None, "DEFERRED", ""])
def test_sqlite_transactions_that_begin_late_are_a_warning(mode, options, declared, app):
    options.pop("transaction_mode", None)
    if mode is not None:
        options["transaction_mode"] = mode
    (found,) = ours()
    assert found.id == "chainsched.W001"
    assert "IMMEDIATE" in str(found.hint)


@needs_sqlite
@pytest.mark.parametrize(
    ("seconds", "expected"), [(None, ["W005"]), (5, ["W005"]), (19.9, ["W005"]), (20, []), (60, [])]
)
def test_sqlite_writers_that_wait_too_short_are_a_warning(seconds, expected, options, declared, app):
    options.pop("timeout", None)
    if seconds is not None:
        options["timeout"] = seconds
    found = ours()
    assert ids(found) == expected
    assert all(f"{seconds or 5:g} s" in message.msg and "'timeout'" in str(message.hint) for message in found)


@needs_sqlite
def test_the_transaction_mode_may_be_written_small(options, declared, app):
    options["transaction_mode"] = "immediate"
    assert ours() == []


@pytest.mark.parametrize(
    ("expression", "expected"),
    [("0 0 1 * mon", ["W002"]), ("0 0 1 * *", []), ("0 0 * * mon", []), ("0 0 L * 5", ["W002"])],
)
def test_a_cron_that_restricts_both_days_is_a_warning(expression, expected, declared, app):
    declared.schedule(ping, "pay", None, Cron.expression(expression))
    found = ours()
    assert ids(found) == expected
    assert all("'pay'" in message.msg and expression in message.msg for message in found)


def test_a_warning_of_a_batch_names_the_member(declared, app):
    declared.schedule_many(ping, "pay", [ManifestItem("a")], Cron.expression("0 0 1 * 1"))
    (found,) = ours()
    assert "'pay-a'" in found.msg


def test_every_id_is_tried_here():
    """W004 is tried in test_secret."""
    source = Path(checks.__file__).read_text(encoding="utf-8")
    known = {part[:4] for part in source.split('id="chainsched.')[1:]}
    assert known == {"E001", "E002", "E003", "E004", "E005", "E006", "E008", "W001", "W002", "W003", "W004", "W005"}
