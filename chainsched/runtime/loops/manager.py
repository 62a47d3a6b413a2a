"""The manifest manager: its turns queue all due manifests, page by page."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from chainsched.conf import get_config
from chainsched.flow.run.evaluate import PAGE, evaluate
from chainsched.flow.run.fold_notes import settle
from chainsched.models import JoinState, ManifestState
from chainsched.runtime.loops.poller import Turn


def turn(now: datetime, *, page: int = PAGE) -> Turn:
    """Deal with all notes, then evaluate one page of due manifests; ``next_at`` if there is more before the next turn.

    One page and no more, so that workers can begin with it while the next one is evaluated.
    """
    settle(now=now)
    evaluated = evaluate(now=now, limit=page)
    next_turn = now + timedelta(seconds=get_config().manager_interval)
    has_more = evaluated.seen == page and evaluated.left < page
    next_at = None if has_more else _next_time(now, until=next_turn)
    return Turn(did=evaluated.queued, next_at=next_at, has_more=has_more)


def _next_time(now: datetime, *, until: datetime) -> datetime | None:
    """The next alarm of a manifest, or deadline of a join, up to a time."""
    alarm = ManifestState.objects.next_alarm(after=now, until=until)
    deadline = JoinState.objects.next_deadline(after=now, until=until)
    return min((time for time in (alarm, deadline) if time is not None), default=None)


def make_turn() -> Callable[[datetime], Turn]:
    """The turns of one process."""
    return turn
