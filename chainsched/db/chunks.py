"""Long lists in parts that fit one statement or one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")

CHUNK = 1000


def chunks(items: Sequence[T], *, size: int = CHUNK) -> Iterable[Sequence[T]]:
    """The items in parts that fit one statement."""
    return (items[start : start + size] for start in range(0, len(items), size))
