"""The manifest manager: each turn queues everything that is due."""

from __future__ import annotations

from datetime import datetime

from chainsched.flow.evaluate import PAGE, evaluate
from chainsched.models import ManifestState
from chainsched.runtime.poller import Turn


def turn(now: datetime, *, page: int = PAGE) -> Turn:
    """Judge what is due, page by page, and say when the next alarm comes."""
    queued = 0
    while True:
        evaluated = evaluate(now=now, limit=page)
        queued += evaluated.queued
        if evaluated.seen < page:
            return Turn(did=queued, next_at=ManifestState.objects.next_alarm(after=now))
