"""The manifest manager: its turns queue all due manifests, page by page."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from chainsched.conf import get_config
from chainsched.flow.run.evaluate import PAGE, evaluate
from chainsched.models import ManifestState
from chainsched.runtime.loops.poller import Turn


def turn(now: datetime, *, page: int = PAGE) -> Turn:
    """Evaluate one page of due manifests; ``next_at`` if an alarm comes before the next turn.

    One page and no more, so that the dispatcher can begin with it while the next one is evaluated.
    """
    evaluated = evaluate(now=now, limit=page)
    next_turn = now + timedelta(seconds=get_config().manager_interval)
    has_more = evaluated.seen == page
    next_at = None if has_more else ManifestState.objects.next_alarm(after=now, until=next_turn)
    return Turn(did=evaluated.queued, next_at=next_at, has_more=has_more)


def make_turn() -> Callable[[datetime], Turn]:
    """The turns of one process."""
    return turn
