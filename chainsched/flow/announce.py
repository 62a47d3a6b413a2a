"""Beside the stages: tell the project and other processes what happened, once it has really happened.

Reads:  the rows that a stage wrote, after its commit, if anybody listens.
Writes: nothing.
Next:   the project's receivers; loops that other processes turn.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Collection, Sequence

from django.db import transaction
from django.dispatch import Signal

from chainsched.conf import get_config
from chainsched.db import notify
from chainsched.domain.log_limit import Leave, LogLimit
from chainsched.domain.outcomes import Finished
from chainsched.models import DeadLetter, Metadata

logger = logging.getLogger(__name__)

# Each kind of line has its own, so that what is retried takes nothing from what was given up.
_log_limits = {level: LogLimit(lines=50, seconds=10) for level in (logging.INFO, logging.WARNING)}


def announce_executions(signal: Signal, execution_ids: Collection[int]) -> None:
    """Send the signal for each of these executions when the present transaction has committed."""
    _announce(signal, Metadata, list(execution_ids), name="execution")


def announce_letters(signal: Signal, letter_ids: Collection[int]) -> None:
    """Send the signal for each of these dead letters when the present transaction has committed."""
    _announce(signal, DeadLetter, list(letter_ids), name="dead_letter")


def report_failures(finished: Sequence[Finished], *, retried: Collection[int], dead_lettered: Collection[int]) -> None:
    """Log failures, as far as the log can bear it: one that is retried is worth a line, one given up worth a look."""
    levels = dict.fromkeys(retried, logging.INFO) | dict.fromkeys(dead_lettered, logging.WARNING)
    for item in finished:
        if item.execution_id in levels:
            _report(item, level=levels[item.execution_id])


def _report(item: Finished, *, level: int) -> None:
    share = _log_limits[level].ask(now=time.monotonic()) if logger.isEnabledFor(level) else Leave.KEEP_SILENT
    consequence = "went to the dead letter" if level == logging.WARNING else "failed and will be retried"
    if share is Leave.SPEAK:
        reason = item.outcome.failure_reason.splitlines()[0][:200] if item.outcome.failure_reason else ""
        logger.log(level, "Execution %d %s: %s: %s", item.execution_id, consequence, item.outcome.failure_type, reason)
    elif share is Leave.SAY_ENOUGH:
        logger.log(level, "More executions %s; for a while they are not named here.", consequence)


def wake(topic: str) -> None:
    """Tell other processes that there is something to do, when the present transaction has committed."""
    transaction.on_commit(functools.partial(notify.send, topic), using=get_config().database, robust=True)


def _announce(signal: Signal, model: type[Metadata | DeadLetter], ids: list[int], *, name: str) -> None:
    if not ids or not signal.has_listeners(model):
        return

    def send() -> None:
        for row in model.objects.filter(id__in=ids).order_by("id"):
            signal.send_robust(sender=model, **{name: row})

    # Robust: not even a database that went away meanwhile may harm what was written.
    transaction.on_commit(send, using=get_config().database, robust=True)
