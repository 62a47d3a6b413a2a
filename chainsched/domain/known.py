"""Values of rows that this version may not know, because a newer version that runs beside it wrote them."""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping
from typing import Any

# The columns of a row that hold the values of an enum.
Kinds = Mapping[str, type[enum.Enum]]

LEFT_TO_NEWER = "a newer version must have written it, and its processes deal with it"


@functools.cache
def _values(kind: type[enum.Enum]) -> frozenset[Any]:
    return frozenset(member.value for member in kind)


def is_known(kind: type[enum.Enum], value: Any) -> bool:
    """Whether a stored value is one of those that this version knows."""
    return value in _values(kind)


def find_unknown(kinds: Kinds, row: Mapping[str, Any]) -> str:
    """The first of these columns with a value that this version does not know, and the value; empty without one."""
    named = (
        f"{column.replace('_', ' ')} {row[column]!r}"
        for column, kind in kinds.items()
        if row[column] != "" and not is_known(kind, row[column])
    )
    return next(named, "")


def find_unknown_of(kinds: Kinds, row: Any) -> str:
    """The same of an object that has the columns as attributes."""
    return find_unknown(kinds, {column: getattr(row, column) for column in kinds})


def read(kind: type[enum.StrEnum], value: str) -> str:
    """A stored value as the member of its enum; one that this version does not know as it is."""
    return kind(value) if is_known(kind, value) else value


def label(kind: type[enum.Enum], value: Any) -> str:
    """A stored value in words for people; one that this version does not know is shown as it is, and as unknown."""
    return kind(value).name.replace("_", " ").lower() if is_known(kind, value) else f"unknown: {value}"
