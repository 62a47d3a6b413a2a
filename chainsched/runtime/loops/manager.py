"""The manifest manager: its turns queue everything that is due, page by page."""

from __future__ import annotations

from datetime import datetime, timedelta

from chainsched.conf import get_config
from chainsched.flow.run.evaluate import PAGE, evaluate
from chainsched.models import ManifestState
from chainsched.runtime.loops.poller import Turn


def turn(now: datetime, *, page: int = PAGE) -> Turn:
    """Judge a page of what is due, and say when the next alarm before the next turn comes.

    A page and no more, so that the dispatcher can begin with it while the next one is judged.
    """
    evaluated = evaluate(now=now, limit=page)
    next_turn = now + timedelta(seconds=get_config().manager_interval)
    has_more = evaluated.seen == page
    next_at = None if has_more else ManifestState.objects.next_alarm(after=now, until=next_turn)
    return Turn(did=evaluated.queued, next_at=next_at, has_more=has_more)
