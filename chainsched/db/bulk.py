"""Writes of many rows in one statement, on PostgreSQL and SQLite alike.

The rows are sent as one array a column on PostgreSQL, as one JSON parameter on SQLite, and the database expands them
into a table. So the text of a statement and the number of its parameters do not depend on the number of rows: it is
built once for each set of columns, and prepared. A conflict can be skipped and the written rows returned in the same
statement, which Django's ``bulk_create(ignore_conflicts=True)`` cannot do (on SQLite it also hides failing checks).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper

from chainsched.conf import get_config
from chainsched.db import arrays
from chainsched.db.compiled import binding_cursor

Row = Mapping[str, Any]
Names = tuple[str, ...]

# The column of the expanded table with a row's place in the list: a join returns rows in another order.
PLACE = "place"


@dataclass(frozen=True, slots=True)
class Copied:
    """Fields that an insert copies from the row of another table that the new row's field ``by`` refers to.

    ``fields`` are pairs: the new row's field, and that of the other table. Copied values never leave the database.
    """

    source: type[models.Model]
    by: str
    fields: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, source: type[models.Model], *, by: str, fields: Mapping[str, str]) -> Copied:
        """The same from a mapping of the new row's fields to those of the other table."""
        return cls(source, by, tuple(fields.items()))


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows by their columns: the values of all rows in each list, and the values that are the ``same`` in all rows."""

    listed: Mapping[str, Sequence[Any]]
    same: Mapping[str, Any] = field(default_factory=dict)


def insert(
    model: type[models.Model],
    rows: Sequence[Row],
    *,
    returning: Sequence[str] = ("id",),
    skip_conflicts: bool = False,
    copied: Copied | None = None,
) -> list[dict[str, Any]]:
    """Insert the rows in their order, with increasing ids, and return the named columns of the written rows.

    With ``skip_conflicts`` a row that breaks a unique constraint is left out and so absent from the answer.
    All rows name the same columns; those they neither name nor copy get the field's default.
    """
    if not rows:
        return []
    connection = connections[get_config().database]
    named, names = tuple(rows[0]), tuple(returning)
    statement = _insert(model, named, alias=connection.alias, returning=names, skips=skip_conflicts, copied=copied)
    # A default that is called may differ from row to row; the others are worked out once.
    columns = [[row[name] for row in rows] for name in named]
    columns += [[field.get_default()] * len(rows) for field in statement.alike]
    columns += [[field.get_default() for _ in rows] for field in statement.called]
    return _fetch(connection, statement.sql, _parameters(connection, statement.fields, columns), names)


def update(
    model: type[models.Model],
    rows: Sequence[Row],
    *,
    key: str = "id",
    where: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Write each row's columns to the row with its key, and return the keys that were written.

    ``where`` holds the values that the stored row must still have: the compare of compare-and-set.
    """
    if not rows:
        return []
    columns = Columns({name: [row[name] for row in rows] for name in rows[0]})
    return update_columns(model, columns, key=key, where=where)


def update_columns(
    model: type[models.Model], columns: Columns, *, key: str = "id", where: Row | None = None
) -> list[Any]:
    """The same for rows that are given by their columns, ``key`` among those that are listed."""
    if not columns.listed[key]:
        return []
    connection = connections[get_config().database]
    expected = where or {}
    nulls = tuple(name for name, value in expected.items() if value is None)
    names, same, compared = tuple(columns.listed), tuple(columns.same), tuple(expected)
    statement = _update(model, names, key, alias=connection.alias, same=same, compared=compared, nulls=nulls)
    parameters = [
        *_adapted(model, columns.same, connection),
        *_parameters(connection, statement.fields, list(columns.listed.values())),
        *_adapted(model, {name: value for name, value in expected.items() if value is not None}, connection),
    ]
    with binding_cursor(connection) as cursor:
        cursor.execute(statement.sql, parameters)
        return [written for (written,) in cursor.fetchall()]


def _adapted(model: type[models.Model], values: Row, connection: BaseDatabaseWrapper) -> list[Any]:
    return [_field(model, name).get_db_prep_value(value, connection) for name, value in values.items()]


def analyze(*changed: type[models.Model]) -> None:
    """Let PostgreSQL analyze tables that many rows were written to; autovacuum would do so only a minute later."""
    connection = connections[get_config().database]
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(f"ANALYZE {_list(connection, [model._meta.db_table for model in changed])}")


def grown(watched: Sequence[type[models.Model]]) -> list[type[models.Model]]:
    """Those of these tables that are several times as large as PostgreSQL knows; none on SQLite."""
    connection = connections[get_config().database]
    if connection.vendor != "postgresql":
        return []
    names = {model._meta.db_table: model for model in watched}
    found = select(_GROWN, [list(names)])
    return [names[name] for (name,) in found]


# In blocks of 8 kB; "relpages" is the number that the last VACUUM or ANALYZE found.
_GROWN = """
    SELECT relname FROM pg_class
    WHERE oid IN (SELECT to_regclass(quote_ident(name)) FROM unnest(%s::text[]) AS name)
    AND pg_relation_size(oid) / 8192 > 4 * greatest(relpages, 8)
"""


def expand(columns: Mapping[str, models.Field[Any, Any]], rows: Iterable[Sequence[Any]]) -> tuple[str, list[Any]]:
    """A table expression named ``v`` over the rows, and the parameters it takes."""
    connection = connections[get_config().database]
    fields, listed = list(columns.values()), list(rows)
    values = list(zip(*listed, strict=True)) if listed else [()] * len(fields)
    sql = _expanded(connection, fields, list(columns))
    return sql, _parameters(connection, fields, values)


def select(sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """The rows of a statement of our own, on our database."""
    with binding_cursor(connections[get_config().database]) as cursor:
        cursor.execute(sql, list(parameters))
        return [tuple(row) for row in cursor.fetchall()]


@dataclass(frozen=True, slots=True)
class _Statement:
    """A text, the fields of the table that is expanded in it, and those of them that get their defaults."""

    sql: str
    fields: Sequence[Any]
    alike: Sequence[Any] = ()
    called: Sequence[Any] = ()


@functools.cache
def _insert(
    model: type[models.Model], named: Names, *, alias: str, returning: Names, skips: bool, copied: Copied | None
) -> _Statement:
    connection = connections[alias]
    given = {*named, *(name for name, _ in copied.fields)} if copied else {*named}
    unnamed = [field for field in model._meta.concrete_fields if field.has_default() and field.name not in given]
    called = [field for field in unnamed if callable(field.default)]
    alike = [field for field in unnamed if not callable(field.default)]
    fields = [*(_field(model, name) for name in named), *alike, *called]
    columns = [field.column for field in fields]
    rows_sql = _expanded(connection, fields, columns)
    values, joined = _list(connection, columns, prefix="v."), ""
    if copied is not None:
        sources = _columns(copied.source, [source for _, source in copied.fields])
        values, joined = values + ", " + _list(connection, sources, prefix="c."), _join(connection, model, copied)
        columns += _columns(model, [name for name, _ in copied.fields])
    table, conflict = _quoted(connection, model._meta.db_table), " ON CONFLICT DO NOTHING" if skips else ""
    # SQLite needs WHERE to distinguish the conflict clause of an INSERT … SELECT from a join.
    sql = (
        f"INSERT INTO {table} ({_list(connection, columns)}) "  # noqa: S608 - names come from the models
        f"SELECT {values} FROM {rows_sql}{joined} WHERE true ORDER BY v.{PLACE}{conflict} "
        f"RETURNING {_list(connection, _columns(model, returning))}"
    )
    return _Statement(sql, fields, alike, called)


@functools.cache
def _update(
    model: type[models.Model], named: Names, key: str, *, alias: str, same: Names, compared: Names, nulls: Names
) -> _Statement:
    connection = connections[alias]
    fields, quote = [_field(model, name) for name in named], connection.ops.quote_name
    key_column = _field(model, key).column
    table = _quoted(connection, model._meta.db_table)
    changed = [field.column for field in fields if field.column != key_column]
    sets = ", ".join(
        [f"{quote(_field(model, name).column)} = %s" for name in same]
        + [f"{quote(column)} = v.{quote(column)}" for column in changed]
    )
    # The compare of compare-and-set: conditions that an index can serve.
    conditions = "".join(
        f" AND {table}.{quote(_field(model, name).column)} " + ("IS NULL" if name in nulls else "= %s")
        for name in compared
    )
    rows_sql = _expanded(connection, fields, [field.column for field in fields])
    sql = (
        f"UPDATE {table} SET {sets} FROM {rows_sql} "  # noqa: S608 - names come from the models
        f"WHERE {table}.{quote(key_column)} = v.{quote(key_column)}{conditions} "
        f"RETURNING {table}.{quote(key_column)}"
    )
    return _Statement(sql, fields)


def _expanded(connection: BaseDatabaseWrapper, fields: Sequence[Any], names: Sequence[str]) -> str:
    if connection.vendor == "postgresql":
        return arrays.expanded(connection, fields, names, place=PLACE)
    quoted = [connection.ops.quote_name(name) for name in names]
    picked = ", ".join(f"json_extract(value, '$[{index}]') AS {name}" for index, name in enumerate(quoted))
    return f"(SELECT {picked}, key AS {PLACE} FROM json_each(%s)) AS v"  # noqa: S608 - names come from the models


def _parameters(connection: BaseDatabaseWrapper, fields: Sequence[Any], columns: Sequence[Sequence[Any]]) -> list[Any]:
    """The rows, given by columns, as the parameters of the expanded table."""
    if connection.vendor == "postgresql":
        return [arrays.as_array(field, values) for field, values in zip(fields, columns, strict=True)]
    adapted = [
        [_as_sqlite(connection, field, value) for value in values]
        for field, values in zip(fields, columns, strict=True)
    ]
    return [json.dumps(list(zip(*adapted, strict=True)))]


def _as_sqlite(connection: BaseDatabaseWrapper, field: Any, value: Any) -> Any:
    """A value as Django stores it in SQLite, where JSON, lists, times and uuids are text."""
    if value is None:
        return None
    if isinstance(field, models.JSONField):
        return json.dumps(value, cls=field.encoder)
    if isinstance(value, UUID):
        return value.hex
    if isinstance(value, list):
        return json.dumps(value)
    return connection.ops.adapt_datetimefield_value(value) if isinstance(value, datetime) else value


def _field(model: type[models.Model], name: str) -> Any:
    return model._meta.get_field(name)


def _columns(model: type[models.Model], names: Iterable[str]) -> list[str]:
    return [_field(model, name).column for name in names]


def _quoted(connection: BaseDatabaseWrapper, name: str) -> str:
    return connection.ops.quote_name(name)


def _list(connection: BaseDatabaseWrapper, columns: Sequence[str], *, prefix: str = "") -> str:
    return ", ".join(prefix + connection.ops.quote_name(column) for column in columns)


def _join(connection: BaseDatabaseWrapper, model: type[models.Model], copied: Copied) -> str:
    key, *_ = _columns(model, [copied.by])
    source = _quoted(connection, copied.source._meta.db_table)
    return f" JOIN {source} AS c ON c.id = v.{_quoted(connection, key)}"


def _fetch(
    connection: BaseDatabaseWrapper, sql: str, parameters: Sequence[Any], names: Sequence[str]
) -> list[dict[str, Any]]:
    with binding_cursor(connection) as cursor:
        cursor.execute(sql, parameters)
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
