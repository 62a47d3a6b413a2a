"""Several counts in one statement, each up to a bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connections
from django.db.models import QuerySet

from chainsched.conf import get_config


def count_each(rows: Mapping[str, QuerySet[Any]], *, limit: int) -> dict[str, int]:
    """How many rows each of these has, at most ``limit``, by name."""
    connection = connections[get_config().database]
    selects: dict[str, tuple[str, tuple[Any, ...]]] = {}
    for name, found in rows.items():
        try:
            selects[name] = found.order_by().values("pk")[:limit].query.get_compiler(connection.alias).as_sql()
        except EmptyResultSet:
            continue
    if not selects:
        return dict.fromkeys(rows, 0)
    columns = ", ".join(f"(SELECT count(*) FROM ({sql}) counted_{at})" for at, (sql, _) in enumerate(selects.values()))  # noqa: S608 - of querysets
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {columns}", [value for _, values in selects.values() for value in values])
        counted = dict(zip(selects, cursor.fetchone(), strict=True))
    return {name: counted.get(name, 0) for name in rows}
