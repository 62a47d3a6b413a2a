"""The condition that a column holds one of many ids, with the ids as one parameter.

Django's ``__in`` writes a placeholder and adapts a value for each id: in batches of hundreds that took longer than the
statements themselves.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F, Lookup
from django.db.models.sql.compiler import SQLCompiler

from chainsched.conf import get_config


class IdIn(Lookup):
    """Whether a column holds one of these ids. A lookup, because Django puts only lookups into WHERE unchanged."""

    prepare_rhs = False

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, tuple[Any, ...]]:
        """An array on PostgreSQL, which the planner estimates by its length; a table of JSON on SQLite."""
        if not self.rhs:
            raise EmptyResultSet
        column, parameters = self.process_lhs(compiler, connection)
        condition, parameter = _condition(connection, column, self.rhs)
        return condition, (*parameters, parameter)


def among_ids(column: str, ids: Iterable[int]) -> tuple[str, str]:
    """The same condition for SQL of our own, and the one parameter that it takes.

    A table of the ids would not tell PostgreSQL which they are: of a skewed table it then expects too many rows, and
    reads it whole.
    """
    return _condition(connections[get_config().database], column, list(ids))


def _condition(connection: BaseDatabaseWrapper, column: str, ids: list[int]) -> tuple[str, str]:
    if connection.vendor == "postgresql":
        # As text: the driver would adapt a list item by item.
        return f"{column} = ANY(%s::bigint[])", f"{{{','.join(map(str, ids))}}}"
    return f"{column} IN (SELECT value FROM json_each(%s))", json.dumps(ids)  # noqa: S608 - names come from the models


def id_in(**wanted: Iterable[int]) -> IdIn:
    """A condition for ``filter``: ``id_in(manifest=ids)`` means ``manifest__in=ids``, for any number of ids."""
    ((column, ids),) = wanted.items()
    return IdIn(F(column), list(ids))
