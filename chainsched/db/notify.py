"""Notices to other processes that there is something to do: PostgreSQL's NOTIFY, nothing elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from django.db import connections

from chainsched.conf import get_config
from chainsched.db.compiled import binding_cursor

CHANNEL = "chainsched"

# The loops that a notice can be for.
MANAGER = "manager"
DISPATCHER = "dispatcher"
WORKER = "worker"
BULK_DECISIONS = "bulk_decisions"
TOPICS = (MANAGER, DISPATCHER, WORKER, BULK_DECISIONS)
# Stands in place of a loop in the notice that a listener sends to itself.
ECHO = "echo"

_SEND = f"SELECT set_config('synchronous_commit', 'off', true), pg_notify('{CHANNEL}', %s)"

_sender = ""
_is_in_turn: ContextVar[bool] = ContextVar("is_in_turn", default=False)


def sign_with(sender: str) -> None:
    """Sign the notices that loops of this process send in their turns, which wake the other loops of it themselves."""
    global _sender  # noqa: PLW0603 - one process, one name
    _sender = sender


@contextmanager
def in_turn() -> Iterator[None]:
    """Sign the notices sent in here. Others, as for writes of jobs and receivers of signals, are news to the loops."""
    token = _is_in_turn.set(True)
    try:
        yield
    finally:
        _is_in_turn.reset(token)


def is_own(payload: str) -> bool:
    """Whether a loop of this process sent the notice."""
    return bool(_sender) and payload.endswith(f":{_sender}")


def topic_of(payload: str) -> str:
    """The loop that a notice is for."""
    return payload.partition(":")[0]


def echo(token: str) -> None:
    """Send a listener of this process a notice by the way that all notices take."""
    send(f"{ECHO}:{token}")


def is_echo(payload: str, token: str = "") -> bool:
    """Whether a listener sent the notice to itself; with a token, whether it is the one with this token."""
    return payload.startswith(f"{ECHO}:{token}")


def send(topic: str) -> None:
    """Wake this loop in every process that runs it.

    Not inside the transaction that made the work: there every commit would wait for one lock. Nor durably: a notice
    that is lost in a crash only delays the work until the loop's next turn.
    """
    connection = connections[get_config().database]
    sender = _sender if _is_in_turn.get() else ""
    if connection.vendor == "postgresql" and get_config().listen:
        with binding_cursor(connection) as cursor:
            cursor.execute(_SEND, [f"{topic}:{sender}"])
