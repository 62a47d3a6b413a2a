"""The condition that a column holds one of many ids, with the ids as one parameter.

Django's ``__in`` writes a placeholder and adapts a value for each id: in batches of hundreds that took longer than the
statements themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F, Lookup
from django.db.models.sql.compiler import SQLCompiler

from chainsched.conf import get_config
from chainsched.db.compiled import Ids, Names, list_of_ids, list_of_names

_CONDITIONS = {
    "postgresql": "{} = ANY(%s::bigint[])",
    "sqlite": "{} IN (SELECT value FROM json_each(%s))",
}


class IdIn(Lookup):
    """Whether a column holds one of these ids. A lookup, because Django puts only lookups into WHERE unchanged."""

    prepare_rhs = False

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, tuple[Any, ...]]:
        """An array on PostgreSQL, which the planner estimates by its length; a table of JSON on SQLite."""
        column, parameters = self.process_lhs(compiler, connection)
        if isinstance(self.rhs, Ids):
            return _CONDITIONS[connection.vendor].format(column), (*parameters, self.rhs)
        if not self.rhs:
            raise EmptyResultSet
        condition, parameter = _condition(connection, column, self.rhs)
        return condition, (*parameters, parameter)


class NameIn(Lookup):
    """``column`` holds one of the texts, which are given with each call of a compiled query."""

    lookup_name = "name_in"
    prepare_rhs = False

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, tuple[Any, ...]]:
        """An array on PostgreSQL, a table of JSON on SQLite."""
        column, parameters = self.process_lhs(compiler, connection)
        condition = _CONDITIONS[connection.vendor].format(column).replace("bigint", "text")
        return condition, (*parameters, self.rhs)


def among_ids(column: str, ids: Iterable[int]) -> tuple[str, str]:
    """The same condition for SQL of our own, and the one parameter that it takes.

    A table of the ids would not tell PostgreSQL which they are: of a skewed table it then expects too many rows, and
    reads it whole.
    """
    return _condition(connections[get_config().database], column, list(ids))


def among_names(column: str, names: Iterable[str]) -> tuple[str, str]:
    """The same for texts."""
    connection = connections[get_config().database]
    return _CONDITIONS[connection.vendor].format(column).replace("bigint", "text"), list_of_names(connection, names)


def _condition(connection: BaseDatabaseWrapper, column: str, ids: list[int]) -> tuple[str, str]:
    return _CONDITIONS[connection.vendor].format(column), list_of_ids(connection, ids)


def id_in(**wanted: Iterable[int] | Ids) -> IdIn:
    """A condition for ``filter``: ``id_in(manifest=ids)`` means ``manifest__in=ids``, for any number of ids."""
    ((column, ids),) = wanted.items()
    return IdIn(F(column), ids if isinstance(ids, Ids) else list(ids))


def name_in(**wanted: Names) -> NameIn:
    """A condition for ``filter`` of a compiled query: ``name_in(workflow=Names())``."""
    ((column, names),) = wanted.items()
    return NameIn(F(column), names)
