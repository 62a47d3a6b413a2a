"""Part of fsck: the rules for runs of the graph.

Reads:  the tokens that items, notes and joins hold, and the numbers that JoinStates count.
Writes: with ``repair`` notes that correct the numbers; the ends of runs.
Next:   fsck reports; the manager decides by the corrected numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from django.db.models import Exists, OuterRef, Q

from chainsched.db import bulk
from chainsched.db.notify import MANAGER
from chainsched.domain.results import Finding
from chainsched.flow.announce import wake
from chainsched.flow.transactions import transact
from chainsched.models import GraphRun, JoinNote, JoinState, Metadata, WorkQueue
from chainsched.models.near import RUN_END


def tokens_are_counted(check: str, *, now: datetime, repair: bool) -> Iterator[Finding]:
    """A JoinState counts as many open items as hold a token of it, with the notes that are under way."""
    wrong = _wrong_counts()
    if repair and wrong:
        with transact():
            # Writes of others do not change the difference, because all writers add and take away.
            rows = [{"state_id": id_, "open": held - counted} for id_, (counted, held) in _wrong_counts().items()]
            bulk.insert(JoinNote, rows)
            wake(MANAGER)
    for state in JoinState.objects.filter(id__in=wrong).order_by("id"):
        counted, held = wrong[state.id]
        yield Finding(check, str(state), f"{counted} open items are counted, {held} hold a token", is_repaired=repair)


def _wrong_counts() -> dict[int, tuple[int, int]]:
    """The counted and the held tokens where they differ, as far as this version can say how many are held."""
    wrong = JoinState.objects.wrong_counts()
    if not wrong:
        return {}
    known = set(JoinState.objects.known().filter(id__in=wrong).values_list("id", flat=True))
    holders = (WorkQueue.objects.unknown(), Metadata.objects.unknown(), JoinState.objects.unknown())
    held = {id_ for rows in holders for tokens in rows.order_by().values_list("tokens", flat=True) for id_ in tokens}
    return {id_: numbers for id_, numbers in wrong.items() if id_ in known - held}


def runs_end(check: str, *, now: datetime, repair: bool) -> Iterator[Finding]:
    """A run is closed exactly while nothing of it is open; a join with nothing open before it is decided."""
    ends = JoinState.objects.known().filter(join_id=RUN_END)
    busy = Exists(JoinState.objects.filter(run=OuterRef("run"), open__gt=0))
    open_but_over = ends.filter(~busy, run__closed_at__isnull=True)
    closed_too_soon = ends.filter(busy, run__closed_at__isnull=False)
    undecided = JoinState.objects.waiting().known().filter(~Q(join_id=RUN_END), open=0)
    wrong = [state for states in (open_but_over, closed_too_soon, undecided) for state in states.order_by("id")]
    noted = set(JoinNote.objects.filter(state_id__in=[state.id for state in wrong]).values_list("state_id", flat=True))
    wrong = [state for state in wrong if state.id not in noted]
    if repair and wrong:
        with transact():
            bulk.insert(JoinNote, [{"state_id": state.id, "open": 0} for state in wrong])
            wake(MANAGER)
    for state in wrong:
        is_end = state.join_id == RUN_END
        evidence = f"{state.open} items are open, but " + ("its run says otherwise" if is_end else "it is not decided")
        yield Finding(check, str(state), evidence, is_repaired=repair)
    yield from _endless_runs(check, now=now, repair=repair)


def _endless_runs(check: str, *, now: datetime, repair: bool) -> Iterator[Finding]:
    """Open runs without the row that counts open items before their end, which only a change by hand removes."""
    ends = JoinState.objects.filter(run=OuterRef("pk"), join_id=RUN_END)
    runs = GraphRun.objects.open().filter(~Exists(ends)).order_by("id")
    for run in list(runs):
        if repair:
            with transact():
                GraphRun.objects.open().filter(id=run.id).update(closed_at=now)
        yield Finding(check, str(run), "the row is missing that says when it ends", is_repaired=repair)
