"""Part of plan: queues that declarations name and no worker takes; and names of queues that nothing uses.

Reads:  the live processes; the queues of manifests and groups.
Writes: nothing.
Next:   seed logs the warnings; a worker that was told its queues prints those that nothing uses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import timedelta

from chainsched.conf import get_config
from chainsched.db.clock import database_now
from chainsched.domain.routing import DEFAULT_QUEUE, listed, queues_taken
from chainsched.models import Manifest, ManifestGroup, Process
from chainsched.registry import registry


def warn_of_untaken(named: Iterable[tuple[str, str]]) -> list[str]:
    """A warning for each queue that some (subject, queue) names and no live worker takes; none without live workers."""
    subjects: dict[str, list[str]] = {}
    for subject, queue in named:
        if queue:
            subjects.setdefault(queue, []).append(subject)
    if not subjects:
        return []
    beaten_since = database_now() - timedelta(seconds=get_config().process_expiry)
    pools = Process.objects.alive(beaten_since=beaten_since).pools()
    taken = queues_taken(pools)
    if not pools or taken is None:
        return []
    return [
        f"No worker that runs now takes queue {queue!r} of {listed(names)}; they take {listed(taken)}. "
        f"Start one with --queues {queue}."
        for queue, names in sorted(subjects.items())
        if queue not in taken
    ]


def unused_among(queues: Collection[str]) -> tuple[list[str], list[str]]:
    """Those of these queues that no manifest, group or workflow names; and all that one names."""
    used = {DEFAULT_QUEUE, *registry.queues()}
    for model in (Manifest, ManifestGroup):
        used.update(model.objects.exclude(queue="").order_by().values_list("queue", flat=True).distinct())
    return sorted(set(queues) - used), sorted(used)
