"""Causes across runs and messages: the correlation scope of the current context, and its headers.

Each run of a workflow has its own scope. A message that it publishes carries ``headers()``; the consumer of that
message opens ``receive()``, and messages and runs that start in there carry the same root:

    publish(body, headers=correlation.headers(message_id))            # inside a workflow
    with correlation.receive(message.headers, message_id=message.id):  # in the consumer of the message
        manifest.trigger()

Scopes live in a context variable: they nest, end with their block, and never leak into other threads or tasks.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

from chainsched.conf import get_config
from chainsched.domain.outcomes import writable

NO_SCOPE = "-"
MAX_ID = 200
MAX_DIGITS = 15


@dataclass(frozen=True, slots=True)
class Scope:
    """The ids of a scope. ``causation_id`` is the cause of every message and run that starts inside."""

    correlation_id: str
    causation_id: str
    root_correlation_id: str
    _sequence: Iterator[int] = field(repr=False, compare=False, default_factory=lambda: itertools.count(1))

    def next_in_sequence(self) -> int:
        """The number of the next published message: 1 for the first, or one more than that of the received message."""
        return next(self._sequence)


_current: ContextVar[Scope | None] = ContextVar("chainsched_scope", default=None)


def current() -> Scope | None:
    """The scope of the current context; None outside of any."""
    return _current.get()


class _Block(contextlib.AbstractContextManager[Scope]):
    """A scope for a block; a class, because a generator takes several times as long, and each job opens one."""

    __slots__ = ("_scope", "_token")

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def __enter__(self) -> Scope:
        self._token = _current.set(self._scope)
        return self._scope

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


def begin(
    correlation_id: str, *, causation_id: str | None = None, root_correlation_id: str | None = None, sequence: int = 0
) -> contextlib.AbstractContextManager[Scope]:
    """Open a scope for a block. Without a cause it is the cause of everything inside; without a root, the root."""
    own = _storable(correlation_id)
    return _Block(
        Scope(
            correlation_id=own,
            causation_id=_storable(causation_id) if causation_id else own,
            root_correlation_id=_storable(root_correlation_id) if root_correlation_id else own,
            _sequence=itertools.count(sequence + 1),
        )
    )


def receive(headers: Mapping[str, str], *, message_id: str) -> contextlib.AbstractContextManager[Scope]:
    """Open the scope of a received message, from its headers.

    A message without headers, from a publisher that does not set them, is the root of all that follows from it.
    """
    names = get_config().headers
    return begin(
        headers.get(names.correlation_id) or message_id,
        causation_id=message_id,
        root_correlation_id=headers.get(names.root_correlation_id) or headers.get(names.correlation_id),
        sequence=_number(headers.get(names.sequence)),
    )


def headers(message_id: str, *, explicit: Mapping[str, str] | None = None) -> dict[str, str]:
    """The headers of a message that is published in this context; headers that the caller gives take precedence.

    Outside of any scope a message correlates with itself and has neither cause nor root.
    """
    names = get_config().headers
    scope = current()
    if scope is None:
        made = {names.correlation_id: message_id, names.sequence: "0"}
    else:
        made = {
            names.correlation_id: scope.correlation_id,
            names.sequence: str(scope.next_in_sequence()),
            names.causation_id: scope.causation_id,
            names.root_correlation_id: scope.root_correlation_id,
        }
    return {**made, **(explicit or {})}


class CorrelationFilter(logging.Filter):
    """Stamps log records with ``correlation_id``, ``causation_id`` and ``root_correlation_id``; ``-`` outside a scope.

    For handlers in LOGGING: every record passes, each has the three attributes.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        scope = current()
        record.correlation_id = scope.correlation_id if scope else NO_SCOPE
        record.causation_id = scope.causation_id if scope else NO_SCOPE
        record.root_correlation_id = scope.root_correlation_id if scope else NO_SCOPE
        return True


def _storable(id_: str) -> str:
    """An id in a form that the rows can store; messages may carry any text."""
    is_plain = len(id_) <= MAX_ID and id_.isascii() and id_.isprintable()
    return id_ if is_plain else writable(id_)[:MAX_ID]


def _number(text: str | None) -> int:
    """A sequence number from a header; headers come from outside, so anything else counts as 0."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else 0
