"""The condition that a column holds one of many ids, with the ids as one parameter.

Django's ``__in`` writes a placeholder and adapts a value for each id: in batches of hundreds that took longer than the
statements themselves.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F, Lookup
from django.db.models.sql.compiler import SQLCompiler


class IdIn(Lookup):
    """Whether a column holds one of these ids. A lookup, because Django puts only lookups into WHERE unchanged."""

    prepare_rhs = False

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, tuple[Any, ...]]:
        """An array on PostgreSQL, which the planner estimates by its length; a table of JSON on SQLite."""
        if not self.rhs:
            raise EmptyResultSet
        column, parameters = self.process_lhs(compiler, connection)
        if connection.vendor == "postgresql":
            # As text: the driver would adapt a list item by item.
            return f"{column} = ANY(%s::bigint[])", (*parameters, f"{{{','.join(map(str, self.rhs))}}}")
        listed = f"{column} IN (SELECT value FROM json_each(%s))"  # noqa: S608 - the column comes from the models
        return listed, (*parameters, json.dumps(self.rhs))


def id_in(**wanted: Iterable[int]) -> IdIn:
    """A condition for ``filter``: ``id_in(manifest=ids)`` means ``manifest__in=ids``, for any number of ids."""
    ((column, ids),) = wanted.items()
    return IdIn(F(column), list(ids))
