"""How stages write: in short transactions, and in smaller parts when one of many rows is bad."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from django.db import DatabaseError, InterfaceError, connections, transaction

from chainsched.conf import get_config
from chainsched.models import locks

logger = logging.getLogger(__name__)

# What a bad row among good ones makes a write raise: the database refuses it, or its values cannot be sent.
REFUSALS = (DatabaseError, ValueError, TypeError)

T = TypeVar("T")
R = TypeVar("R")


@contextlib.contextmanager
def transact() -> Iterator[None]:
    """A transaction on our database. Inside a caller's transaction it becomes a savepoint and changes nothing of it."""
    alias = get_config().database
    connection = connections[alias]
    is_outermost = not connection.in_atomic_block
    with transaction.atomic(using=alias):
        if is_outermost:
            locks.begin(connection)
        yield


@dataclass(slots=True)
class Parts(Generic[T, R]):
    """What became of the items: the results of the parts that were written, and the items that could not be."""

    results: list[R] = field(default_factory=list)
    refused: list[tuple[T, Exception]] = field(default_factory=list)


def in_parts(items: Sequence[T], write: Callable[[Sequence[T]], R]) -> Parts[T, R]:
    """Write all items in one transaction; if the database refuses, in two halves, and so on down to single ones.

    So one bad row costs a few more transactions and nothing else. A lost connection is raised: smaller parts
    would not help.
    """
    parts: Parts[T, R] = Parts()
    waiting = [items] if items else []
    while waiting:
        part = waiting.pop()
        try:
            parts.results.append(write(part))
        except REFUSALS as error:
            if is_disconnected(error):
                raise
            if len(part) == 1:
                parts.refused.append((part[0], error))
            else:
                logger.warning("Writing %d rows failed (%s); trying smaller parts.", len(part), error)
                middle = len(part) // 2
                waiting += [part[middle:], part[:middle]]
    return parts


def is_disconnected(error: Exception) -> bool:
    """Whether the connection is gone, so that trying smaller parts is useless."""
    if isinstance(error, InterfaceError):
        return True
    connection = connections[get_config().database]
    return isinstance(error, DatabaseError) and not connection.in_atomic_block and not connection.is_usable()
