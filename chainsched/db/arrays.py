"""Columns of values as arrays of PostgreSQL, each as one text; and the table that they are expanded into.

One text for each column is less work for all than a document of rows: for this process, for the driver, which adapts a
list item by item, and for the server.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

from chainsched.db.fields import IdList

# Text without a length: a cast to a type with one would cut longer text off, which the table would refuse.
TEXT_TYPES = (models.CharField, models.TextField)


class _Encoder(DjangoJSONEncoder):
    """Values as PostgreSQL reads them; Django's own encoder would cut the microseconds off."""

    def default(self, o: Any) -> Any:
        return o.isoformat() if isinstance(o, datetime) else super().default(o)


_encode = _Encoder().encode


def as_array(field: models.Field[Any, Any], values: Sequence[Any]) -> str:
    """The values of a column as the text of an array of ``array_type``."""
    kind: Any = type(field)
    write = _writer(kind)
    # Many columns have the same object in all rows: the time of the write, the process, an empty text.
    if len(values) > 1 and len(set(map(id, values))) == 1:
        written = ["NULL" if values[0] is None else write(values[0])] * len(values)
    else:
        written = ["NULL" if value is None else write(value) for value in values]
    return f"{{{','.join(written)}}}"


def array_type(connection: BaseDatabaseWrapper, field: models.Field[Any, Any]) -> str:
    """The type of the array that holds values of a column; lists travel as text, as there are no arrays of arrays."""
    return f"{_element_type(field, connection.alias)}[]"


def expanded(connection: BaseDatabaseWrapper, fields: Sequence[Any], names: Sequence[str], *, place: str) -> str:
    """A table named ``v`` with these columns, and the place of each row in the lists; it takes an array a column."""
    quote = connection.ops.quote_name
    arrays = ", ".join(f"%s::{array_type(connection, field)}" for field in fields)
    listed = ", ".join(map(quote, [*names, place]))
    table = f"unnest({arrays}) WITH ORDINALITY AS v({listed})"
    if not any(isinstance(field, IdList) for field in fields):
        return table
    read = [
        f"{quote(name)}::{field.db_type(connection)} AS {quote(name)}" if isinstance(field, IdList) else quote(name)
        for field, name in zip(fields, names, strict=True)
    ]
    return f"(SELECT {', '.join([*read, quote(place)])} FROM {table}) AS v"  # noqa: S608 - names come from the models


@functools.cache
def _element_type(field: Any, alias: str) -> str:
    """The type of a column; a key's own would make it count up. Remembered: Django works it out anew in every call."""
    from django.db import connections  # noqa: PLC0415 - by its alias, which can be remembered

    if isinstance(field, (*TEXT_TYPES, IdList)):
        return "text"
    connection = connections[alias]
    return str(field.rel_db_type(connection) if field.primary_key else field.db_type(connection))


@functools.cache
def _writer(kind: Any) -> Callable[[Any], str]:
    if issubclass(kind, models.JSONField):
        return lambda value: _quoted(_encode(value))
    if issubclass(kind, TEXT_TYPES):
        return _quoted
    if issubclass(kind, IdList):
        return lambda ids: f'"{{{",".join(map(str, ids))}}}"'
    if issubclass(kind, models.BooleanField):
        return _truth
    # Also of times: PostgreSQL reads them with a space, too.
    return str


def _truth(value: Any) -> str:
    return "t" if value else "f"


def _quoted(text: str) -> str:
    if "\\" in text:
        text = text.replace("\\", "\\\\")
    if '"' in text:
        text = text.replace('"', '\\"')
    return f'"{text}"'
