"""Beside the stages: tell the project and other processes what happened, once it has really happened.

Reads:  the rows that a stage wrote, after its commit, if anybody listens.
Writes: nothing.
Next:   the project's receivers; loops that other processes turn.
"""

from __future__ import annotations

import functools
from collections.abc import Collection

from django.db import transaction
from django.dispatch import Signal

from chainsched.conf import get_config
from chainsched.models import DeadLetter, Metadata, notices


def announce_executions(signal: Signal, execution_ids: Collection[int]) -> None:
    """Send the signal for each of these executions when the present transaction has committed."""
    _announce(signal, Metadata, list(execution_ids), name="execution")


def announce_letters(signal: Signal, letter_ids: Collection[int]) -> None:
    """Send the signal for each of these dead letters when the present transaction has committed."""
    _announce(signal, DeadLetter, list(letter_ids), name="dead_letter")


def wake(topic: str) -> None:
    """Tell other processes that there is something to do, when the present transaction has committed."""
    transaction.on_commit(functools.partial(notices.send, topic), using=get_config().database, robust=True)


def _announce(signal: Signal, model: type[Metadata | DeadLetter], ids: list[int], *, name: str) -> None:
    if not ids or not signal.has_listeners(model):
        return

    def send() -> None:
        for row in model.objects.filter(id__in=ids).order_by("id"):
            signal.send_robust(sender=model, **{name: row})

    # Robust: not even a database that went away meanwhile may harm what was written.
    transaction.on_commit(send, using=get_config().database, robust=True)
