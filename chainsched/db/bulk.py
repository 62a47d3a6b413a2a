"""Writes of many rows in one statement, on PostgreSQL and SQLite alike.

The rows are sent as one JSON parameter that the database expands into a table; on PostgreSQL a second one holds the
values that all rows share, often most of them. So the text of a statement and the number of its parameters do not
depend on the number of rows; a conflict can be skipped and the written rows returned in the same statement, which
Django's ``bulk_create(ignore_conflicts=True)`` cannot do (on SQLite it would also hide failing checks).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import repeat
from operator import is_, itemgetter
from typing import Any
from uuid import UUID

from django.core.serializers.json import DjangoJSONEncoder
from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper

from chainsched.conf import get_config

Row = Mapping[str, Any]

# The column of the expanded table with a row's place in the list: a join returns rows in another order.
PLACE = "place"


@dataclass(frozen=True, slots=True)
class Copied:
    """Fields that an insert copies from the row of another table that the new row's field ``by`` refers to.

    ``fields`` maps the new row's fields to those of the other table. Copied values never leave the database.
    """

    source: type[models.Model]
    by: str
    fields: Mapping[str, str]


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
    named = list(rows[0])
    fields: list[Any] = [model._meta.get_field(name) for name in named]
    given = {*named, *copied.fields} if copied else {*named}
    unnamed = [field for field in model._meta.concrete_fields if field.has_default() and field.name not in given]
    # A default that is called may differ from row to row; the others are worked out once.
    called = [field for field in unnamed if callable(field.default)]
    alike = [field for field in unnamed if not callable(field.default)]
    defaults = [field.get_default() for field in alike]
    full = [[*own, *defaults, *(field.get_default() for field in called)] for own in _picked(rows, named)]
    fields += alike + called
    table, columns = _quoted(connection, model._meta.db_table), [field.column for field in fields]
    rows_sql, parameters = _spread(connection, fields, full)
    values, joined = _list(connection, columns, prefix="v."), ""
    if copied is not None:
        sources = _columns(copied.source, list(copied.fields.values()))
        values, joined = values + ", " + _list(connection, sources, prefix="c."), _join(connection, model, copied)
        columns += _columns(model, list(copied.fields))
    conflict = " ON CONFLICT DO NOTHING" if skip_conflicts else ""
    # SQLite needs WHERE to distinguish the conflict clause of an INSERT … SELECT from a join.
    sql = (
        f"INSERT INTO {table} ({_list(connection, columns)}) "  # noqa: S608 - names come from the models
        f"SELECT {values} FROM {rows_sql}{joined} WHERE true ORDER BY v.{PLACE}{conflict} "
        f"RETURNING {_list(connection, _columns(model, returning))}"
    )
    return _fetch(connection, sql, parameters, returning)


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
    connection = connections[get_config().database]
    fields: list[Any] = [model._meta.get_field(name) for name in rows[0]]
    key_column, *_ = _columns(model, [key])
    changed = [field.column for field in fields if field.column != key_column]
    table = _quoted(connection, model._meta.db_table)
    rows_sql, parameters = _spread(connection, fields, _picked(rows, list(rows[0])))
    quote = connection.ops.quote_name
    sets = ", ".join(f"{quote(column)} = v.{quote(column)}" for column in changed)
    conditions, expected = _compare(connection, model, where or {})
    sql = (
        f"UPDATE {table} SET {sets} FROM {rows_sql} "  # noqa: S608 - names come from the models
        f"WHERE {table}.{quote(key_column)} = v.{quote(key_column)}{conditions} "
        f"RETURNING {table}.{quote(key_column)}"
    )
    return [row[key] for row in _fetch(connection, sql, [*parameters, *expected], [key])]


def analyze(*changed: type[models.Model]) -> None:
    """Let PostgreSQL analyze tables that many rows were written to; autovacuum would do so only a minute later."""
    connection = connections[get_config().database]
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(f"ANALYZE {_list(connection, [model._meta.db_table for model in changed])}")


def rows_from_json(columns: Mapping[str, models.Field[Any, Any]], rows: Sequence[Sequence[Any]]) -> tuple[str, str]:
    """A table expression named ``v`` over the rows, and the one parameter it takes."""
    connection = connections[get_config().database]
    return _rows_from_json(connection, list(columns.values()), rows, names=list(columns))


def select(sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """The rows of a statement of our own, on our database."""
    with connections[get_config().database].cursor() as cursor:
        cursor.execute(sql, list(parameters))
        return [tuple(row) for row in cursor.fetchall()]


def _picked(rows: Sequence[Row], names: Sequence[str]) -> list[tuple[Any, ...]]:
    """The values of these names, of each row in that order."""
    if len(names) == 1:
        return [(row[names[0]],) for row in rows]
    return list(map(itemgetter(*names), rows))


def _spread(
    connection: BaseDatabaseWrapper, fields: Sequence[Any], rows: Sequence[Sequence[Any]]
) -> tuple[str, list[str]]:
    """The table ``v`` over the rows, with the columns that hold one and the same object in all rows sent only once."""
    if connection.vendor != "postgresql":
        rows_sql, parameter = _rows_from_json(connection, fields, rows)
        return rows_sql, [parameter]
    columns = list(zip(*rows, strict=True))
    # The first column, mostly the key, stays, so that there is a table to join to.
    shared = {at for at, values in enumerate(columns) if at and all(map(is_, values, repeat(values[0])))}
    if not shared:
        rows_sql, parameter = _rows_from_json(connection, fields, rows)
        return rows_sql, [parameter]
    own = [at for at in range(len(fields)) if at not in shared]
    own_rows = zip(*(columns[at] for at in own), strict=True)
    rows_sql, parameter = _rows_from_json(connection, [fields[at] for at in own], own_rows)
    typed = _typed(connection, [fields[at] for at in sorted(shared)])
    once = json.dumps({fields[at].column: rows[0][at] for at in sorted(shared)}, cls=_Encoder)
    both = f"(SELECT v.*, s.* FROM {rows_sql}, json_to_record(%s::json) AS s({typed})) AS v"  # noqa: S608 - as above
    return both, [parameter, once]


def _rows_from_json(
    connection: BaseDatabaseWrapper,
    fields: Sequence[Any],
    rows: Iterable[Sequence[Any]],
    *,
    names: Sequence[str] | None = None,
) -> tuple[str, str]:
    names = names or [field.column for field in fields]
    if connection.vendor == "postgresql":
        objects = list(map(dict, map(zip, repeat(names), rows)))
        typed = _typed(connection, fields, names)
        listed = _list(connection, [*names, PLACE])
        rows_sql = f"ROWS FROM (json_to_recordset(%s::json) AS ({typed})) WITH ORDINALITY AS v({listed})"
        return rows_sql, json.dumps(objects, cls=_Encoder)
    quoted = [connection.ops.quote_name(name) for name in names]
    picked = ", ".join(f"json_extract(value, '$[{index}]') AS {name}" for index, name in enumerate(quoted))
    values = [[_as_sqlite(connection, field, value) for field, value in zip(fields, row, strict=True)] for row in rows]
    rows_sql = f"(SELECT {picked}, key AS {PLACE} FROM json_each(%s)) AS v"  # noqa: S608 - names come from the models
    return rows_sql, json.dumps(values)


def _compare(
    connection: BaseDatabaseWrapper, model: type[models.Model], where: Mapping[str, Any]
) -> tuple[str, list[Any]]:
    """The compare of compare-and-set: conditions that an index can serve, and their parameters."""
    table = _quoted(connection, model._meta.db_table)
    fields: dict[Any, Any] = {model._meta.get_field(name): value for name, value in where.items()}
    conditions = [
        f" AND {table}.{_quoted(connection, field.column)} " + ("IS NULL" if value is None else "= %s")
        for field, value in fields.items()
    ]
    values = [field.get_db_prep_value(value, connection) for field, value in fields.items() if value is not None]
    return "".join(conditions), values


def _typed(connection: BaseDatabaseWrapper, fields: Sequence[Any], names: Sequence[str] | None = None) -> str:
    """The columns of the expanded table, as PostgreSQL wants them declared."""
    names = names or [field.column for field in fields]
    types = [_type_of(field, connection.alias) for field in fields]
    return ", ".join(f"{_quoted(connection, name)} {type_}" for name, type_ in zip(names, types, strict=True))


@functools.cache
def _type_of(field: Any, alias: str) -> str:
    """The type of a column; a key's own would make it count up. Remembered: Django works it out anew in every call."""
    connection = connections[alias]
    return str(field.rel_db_type(connection) if field.primary_key else field.db_type(connection))


class _Encoder(DjangoJSONEncoder):
    """Values as PostgreSQL reads them out of JSON; Django's own encoder would cut the microseconds off."""

    def default(self, o: Any) -> Any:
        return o.isoformat() if isinstance(o, datetime) else super().default(o)


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


def _columns(model: type[models.Model], names: Sequence[str]) -> list[str]:
    fields: list[Any] = [model._meta.get_field(name) for name in names]
    return [field.column for field in fields]


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
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
