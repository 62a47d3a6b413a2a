"""Rows that the database refuses: triggers on the tables that queue and dispatch write, and a list of the refused."""

from __future__ import annotations

from collections.abc import Iterable

from django.db import connection

from chainsched.models import Metadata, WorkQueue

Refused = tuple[str, type[WorkQueue] | type[Metadata]]

INSTALL = """
CREATE TABLE chaos_refusal (manifest text, refused_by text);
CREATE FUNCTION chaos_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM chaos_refusal WHERE manifest = NEW.manifest_external_id AND refused_by = TG_TABLE_NAME) THEN
        RAISE EXCEPTION 'the chaos refuses %', NEW.manifest_external_id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
"""
TRIGGER = "CREATE TRIGGER chaos_refuse BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION chaos_refuse();"


def install() -> None:
    """Add the triggers; they refuse nothing at first."""
    tables = (WorkQueue._meta.db_table, Metadata._meta.db_table)
    with connection.cursor() as cursor:
        cursor.execute(INSTALL + "".join(TRIGGER.format(table=table) for table in tables))


def refuse(refused: Iterable[Refused]) -> None:
    """Refuse further rows of these manifests, each in the table of one model."""
    tables = {name: model._meta.db_table for name, model in refused}
    with connection.cursor() as cursor:
        # In one statement, so that all of them are refused or none.
        insert = "INSERT INTO chaos_refusal SELECT * FROM unnest(%s::text[], %s::text[])"
        cursor.execute(insert, [list(tables), list(tables.values())])


def allow_all() -> None:
    """Refuse nothing any more."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM chaos_refusal")
