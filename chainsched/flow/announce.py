"""Used by the stages: send signals to the project and notices to other processes, once a transaction has committed.

Reads:  the rows that a stage wrote, after its commit, if a receiver is connected.
Writes: nothing.
Next:   the project's receivers, in this thread or where a sender takes them; loops in other processes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import cast

from django.db import connections, transaction
from django.db.models import Model
from django.dispatch import Signal

from chainsched.conf import get_config
from chainsched.db import notify
from chainsched.db.chunks import chunks
from chainsched.domain.log_limit import LogDecision, LogLimit
from chainsched.domain.outcomes import Finished
from chainsched.models import DeadLetter, Metadata

logger = logging.getLogger(__name__)

LOG_SECONDS = 10
# The rows that are loaded at once for a signal.
LOADED = 500
# One limit for each level, so that lines about retries never use up the lines about dead letters.
_log_limits = {level: LogLimit(lines=50, seconds=LOG_SECONDS) for level in (logging.INFO, logging.WARNING)}


@dataclass(frozen=True, slots=True)
class Announcement:
    """A signal that is to be sent for each of these rows, which are committed."""

    signal: Signal
    model: type[Metadata | DeadLetter]
    argument: str
    ids: Sequence[int]

    def parts(self, number: int) -> list[Announcement]:
        """The same for at most so many rows at a time, in the order of their ids."""
        return [replace(self, ids=part) for part in chunks(sorted(self.ids), size=number)]

    def load(self) -> Sequence[Model]:
        """The rows as they are now; those that are gone are missing."""
        return list(self.model.objects.filter(id__in=self.ids).order_by("id"))

    def send(self, row: Model) -> None:
        """Call the receivers for one row. Django logs those that raise, and calls the next."""
        self.signal.send_robust(sender=self.model, **{self.argument: row})


Sender = Callable[[Announcement], object]


def send_now(announcement: Announcement) -> None:
    """Load the rows and call the receivers in this thread."""
    for part in announcement.parts(LOADED):
        for row in part.load():
            part.send(row)


_sender: Sender = send_now


def send_by(sender: Sender) -> None:
    """Let this sender, which is called after a commit, deliver all signals of this process; by default ``send_now``."""
    global _sender  # noqa: PLW0603 - one sender for the process, which its supervisor sets
    _sender = sender


def announce_executions(signal: Signal, execution_ids: Collection[int]) -> None:
    """Send the signal for each of these executions when the present transaction has committed."""
    _announce(signal, Metadata, list(execution_ids), name="execution")


def announce_letters(signal: Signal, letter_ids: Collection[int]) -> None:
    """Send the signal for each of these dead letters when the present transaction has committed."""
    _announce(signal, DeadLetter, list(letter_ids), name="dead_letter")


def report_failures(finished: Sequence[Finished], *, retried: Collection[int], dead_lettered: Collection[int]) -> None:
    """Log failures within the limit of lines: as information if they are retried, as a warning if dead-lettered."""
    levels = dict.fromkeys(retried, logging.INFO) | dict.fromkeys(dead_lettered, logging.WARNING)
    for item in finished:
        if item.execution_id in levels:
            _report(item, level=levels[item.execution_id])


def _report(item: Finished, *, level: int) -> None:
    decision = _log_limits[level].decide(now=time.monotonic()) if logger.isEnabledFor(level) else LogDecision.SKIP
    consequence = "went to the dead letter" if level == logging.WARNING else "failed and will be retried"
    if decision is LogDecision.WRITE:
        reason = item.outcome.failure_reason.splitlines()[0][:200] if item.outcome.failure_reason else ""
        logger.log(level, "Execution %d %s: %s: %s", item.execution_id, consequence, item.outcome.failure_type, reason)
    elif decision is LogDecision.WRITE_NOTICE:
        logger.log(level, "More executions %s; they are not logged for up to %d s.", consequence, LOG_SECONDS)


def wake(topic: str, *, only_if: Callable[[], bool] | None = None) -> None:
    """Wake a loop in other processes when the present transaction has committed, if ``only_if`` holds then.

    Once for each transaction, however many stages ask for it.
    """
    connection, notice = connections[get_config().database], _Notice(topic, only_if)
    held, waiting = set(connection.savepoint_ids), cast("list[tuple[set[str], object, bool]]", connection.run_on_commit)
    if not any(notice.is_implied_by(earlier) for sids, earlier, _ in waiting if sids <= held):
        transaction.on_commit(notice, using=connection.alias, robust=True)


@dataclass(frozen=True, slots=True)
class _Notice:
    """A notice that is to be sent after a commit."""

    topic: str
    only_if: Callable[[], bool] | None

    def is_implied_by(self, earlier: object) -> bool:
        """Whether another one wakes the loop in any case."""
        return isinstance(earlier, _Notice) and earlier.topic == self.topic and earlier.only_if is None

    def __call__(self) -> None:
        if self.only_if is None or self.only_if():
            notify.send(self.topic)


def _announce(signal: Signal, model: type[Metadata | DeadLetter], ids: list[int], *, name: str) -> None:
    if not ids or not signal.has_listeners(model):
        return
    announcement = Announcement(signal, model, name, ids)
    # Robust: the rows are committed, so not even a lost database connection may raise here.
    transaction.on_commit(lambda: _sender(announcement), using=get_config().database, robust=True)
