"""Hot queries: built once for each database and, on PostgreSQL, prepared once for each session.

Django takes longer to build most of them than PostgreSQL to run them, and PostgreSQL longer to plan than to run. They
are written as querysets and SQL like all others; a ``Parameter`` stands in place of each value that changes from call
to call, and all other values become part of the text, so that a plan that is kept can use partial indexes.

A pooler that hands sessions on between transactions would run a prepared statement in a session that does not know it,
or knows another one by its name. So statements are prepared only in sessions that lead to the server itself, which
their key for cancelling shows, or where OPTIONS of the database set ``prepare_threshold`` to a number; with None never.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import DateTimeField, Expression, Field, QuerySet
from django.db.models.sql import UpdateQuery
from django.db.models.sql.compiler import SQLCompiler

from chainsched.conf import get_config

# The planner must know the size of a limit: of one that is a parameter it expects a tenth of all rows, and sorts whole
# tables. So a text has one of these limits, and around it the one that is wanted.
LIMITS = (1, 32, 1_024, 2**31 - 1)

_PLACES = re.compile("%%|%s")


class Parameter(Expression):
    """A value that is given with each call, under this name; it is adapted as one of the field."""

    def __init__(self, name: str, field: Field[Any, Any]) -> None:
        super().__init__(output_field=field)
        self.name = name

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, tuple[Any, ...]]:
        return "%s", (self,)

    def adapt(self, value: Any, connection: BaseDatabaseWrapper) -> Any:
        return self.output_field.get_db_prep_value(value, connection)


# The time that a caller has read from the database's clock.
NOW = Parameter("now", DateTimeField())
# A stretch of time.
AFTER = Parameter("after", DateTimeField())
UNTIL = Parameter("until", DateTimeField())


@dataclass(frozen=True, slots=True)
class Ids:
    """Ids that are given with each call, under this name, for ``id_in``.

    For none of them a query has no rows and is not sent, unless it ``may_be_empty``, as for rows to leave out.
    """

    name: str = "ids"
    may_be_empty: bool = False

    def adapt(self, value: Collection[int], connection: BaseDatabaseWrapper) -> str:
        return list_of_ids(connection, value)


@dataclass(frozen=True, slots=True)
class Names:
    """Texts that are given with each call, under this name, for ``name_in``."""

    name: str = "names"

    def adapt(self, value: Collection[str], connection: BaseDatabaseWrapper) -> str:
        return list_of_names(connection, value)


@dataclass(frozen=True, slots=True)
class _Limit:
    name: str = "limit"

    def adapt(self, value: int, connection: BaseDatabaseWrapper) -> int:
        return value


Slot = Parameter | Ids | Names | _Limit


def list_of_ids(connection: BaseDatabaseWrapper, ids: Iterable[int]) -> str:
    """Ids as the one parameter that ``id_in`` takes. As text: the driver would adapt a list item by item."""
    if connection.vendor == "postgresql":
        return f"{{{','.join(map(str, ids))}}}"
    return json.dumps(list(ids))


def list_of_names(connection: BaseDatabaseWrapper, names: Iterable[str]) -> str:
    """Texts as the one parameter that ``name_in`` takes."""
    if connection.vendor == "postgresql":
        quoted = (name.replace("\\", "\\\\").replace('"', '\\"') for name in names)
        return "{" + ",".join(f'"{name}"' for name in quoted) + "}"
    return json.dumps(list(names))


@dataclass(frozen=True, slots=True)
class _Built:
    """The text of a query, its parameters in their order, and the converters of its columns."""

    sql: str
    slots: Sequence[Slot]
    converters: Sequence[tuple[int, Sequence[Callable[..., Any]], Any]]

    def has_no_rows(self, values: Mapping[str, Any]) -> bool:
        """Whether a list of ids is empty without which there are no rows."""
        return any(isinstance(slot, Ids) and not slot.may_be_empty and not values[slot.name] for slot in self.slots)

    def parameters(self, values: Mapping[str, Any], connection: BaseDatabaseWrapper) -> list[Any]:
        # By name: lists of ids, which take time, often stand in several places.
        adapted: dict[str, Any] = {}
        for slot in self.slots:
            if slot.name not in adapted:
                adapted[slot.name] = slot.adapt(values[slot.name], connection)
        return [adapted[slot.name] for slot in self.slots]

    def converted(self, rows: list[Any], connection: BaseDatabaseWrapper) -> list[Any]:
        # Most columns that have to be converted are empty in most rows; an empty one stays so.
        converters = [one for one in self.converters if any(row[one[0]] is not None for row in rows)]
        if not converters:
            return rows
        columns = list(zip(*rows, strict=True))
        for at, convert, expression in converters:
            values: Iterable[Any] = columns[at]
            for function in convert:
                values = [function(value, expression, connection) for value in values]
            columns[at] = tuple(values)
        return list(zip(*columns, strict=True))


class _Compiled:
    """A statement that is built at its first call for each database."""

    def __init__(self) -> None:
        self._built: dict[tuple[str, int | None], _Built] = {}

    def _of(self, connection: BaseDatabaseWrapper, *, limit: int | None = None) -> _Built:
        key = (connection.alias, limit)
        built = self._built.get(key)
        if built is None:
            built = self._built[key] = self._build(connection, limit)
        return built

    def _build(self, connection: BaseDatabaseWrapper, limit: int | None) -> _Built:
        raise NotImplementedError


class CompiledQuery(_Compiled):
    """A queryset with ``values_list``, as a function of its parameters.

    ``has_limit`` says that its number of rows is a parameter too, named ``limit``.
    """

    def __init__(self, queryset: Callable[[], QuerySet[Any, Any]], *, has_limit: bool = False) -> None:
        super().__init__()
        self._queryset, self._has_limit = queryset, has_limit

    def rows(self, **values: Any) -> list[Any]:
        """The rows for these values of its parameters, as tuples."""
        connection = connections[get_config().database]
        limit = next(limit for limit in LIMITS if limit >= values["limit"]) if self._has_limit else None
        built = self._of(connection, limit=limit)
        if built.has_no_rows(values):
            return []
        with binding_cursor(connection) as cursor:
            cursor.execute(built.sql, built.parameters(values, connection))
            return built.converted(cursor.fetchall(), connection)

    def value(self, **values: Any) -> Any:
        """The value of its only column in the first row; None without a row. For a query that has a limit."""
        found = self.rows(**values, limit=1)
        return found[0][0] if found else None

    def column(self, **values: Any) -> list[Any]:
        """The values of its only column."""
        return [value for (value,) in self.rows(**values)]

    def _build(self, connection: BaseDatabaseWrapper, limit: int | None) -> _Built:
        queryset = self._queryset()[:limit]
        compiler = queryset.query.get_compiler(connection=connection)
        text, parameters = compiler.as_sql()
        sql, slots = _with_literals(connection, text, parameters)
        if limit is not None:
            sql, slots = f"SELECT * FROM ({sql}) AS q LIMIT %s", [*slots, _Limit()]  # noqa: S608 - a text of Django
        columns = [column for column, *_ in compiler.select[: compiler.col_count]]
        converters = compiler.get_converters(columns)
        return _Built(sql, slots, [(at, convert, column) for at, (convert, column) in converters.items()])


class CompiledUpdate(_Compiled):
    """An update of the rows of a queryset, as a function of its parameters."""

    def __init__(self, queryset: Callable[[], QuerySet[Any, Any]], **columns: Any) -> None:
        super().__init__()
        self._queryset, self._columns = queryset, columns

    def run(self, **values: Any) -> int:
        """Write; returns how many rows were written."""
        connection = connections[get_config().database]
        built = self._of(connection)
        if built.has_no_rows(values):
            return 0
        with binding_cursor(connection) as cursor:
            cursor.execute(built.sql, built.parameters(values, connection))
            return int(cursor.rowcount)

    def _build(self, connection: BaseDatabaseWrapper, limit: int | None) -> _Built:
        query: Any = self._queryset().query.chain(UpdateQuery)
        query.add_update_values(self._columns)
        text, parameters = query.get_compiler(connection=connection).as_sql()
        return _Built(*_with_literals(connection, text, parameters), converters=())


def _with_literals(connection: BaseDatabaseWrapper, text: str, parameters: Sequence[Any]) -> tuple[str, list[Slot]]:
    """The text with all values that never change written into it, and the parameters that are left."""
    left = iter(parameters)

    def written(place: re.Match[str]) -> str:
        if place[0] == "%%":
            return "%%"
        value = next(left)
        return "%s" if isinstance(value, Slot) else _literal(connection, value)

    return _PLACES.sub(written, text), [value for value in parameters if isinstance(value, Slot)]


def _literal(connection: BaseDatabaseWrapper, value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper() if connection.vendor == "postgresql" else str(int(value))
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list) and connection.vendor == "postgresql":
        return f"'{list_of_ids(connection, value)}'"
    if isinstance(value, str) and "\\" not in value:
        return "'" + value.replace("'", "''").replace("%", "%%") + "'"
    raise TypeError(f"{value!r} cannot be written into a statement: make it a Parameter")


def binding_cursor(connection: BaseDatabaseWrapper) -> Any:
    """A cursor that prepares its statements, where that is safe.

    On SQLite it is Django's own, as the driver keeps statements anyway; and where Django logs statements, which it can
    only show with their values if it has written these into them.
    """
    if connection.vendor != "postgresql" or connection.queries_logged:
        return connection.cursor()
    # Only here: on SQLite the driver may be missing.
    from chainsched.db.compiled_cursor import BindingCursor  # noqa: PLC0415

    return BindingCursor(connection)
