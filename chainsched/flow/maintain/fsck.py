"""Beside the stages: prove from the rows that nothing was forgotten and nothing is where it must not be.

Reads:  everything, page by page.
Writes: with ``repair`` what is wrong, each page under the locks that it was looked at with.
Next:   people; and the manager, for alarms that were missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime

from chainsched.domain.results import Finding
from chainsched.flow.maintain import fsck_executions, fsck_graph, fsck_states

logger = logging.getLogger(__name__)

Check = Callable[..., Iterator[Finding]]

# In an order in which what one mends lets the next find the rest.
CHECKS: Mapping[str, Check] = {
    "guard": fsck_graph.guard_is_present,
    "state_row": fsck_states.every_manifest_has_a_state,
    "cycle": fsck_graph.nothing_goes_in_circles,
    "depth": fsck_graph.depth_is_right,
    "process": fsck_executions.running_has_a_live_process,
    "open_items": fsck_states.at_most_one_open_item,
    "orphaned_row": fsck_executions.queued_has_a_manifest,
    "queue_link": fsck_executions.queue_and_executions_agree,
    "lineage": fsck_executions.parents_and_roots_agree,
    "limits": fsck_executions.limits_are_kept,
    "numbers": fsck_states.numbers_are_in_order,
    "outstanding_parts": fsck_states.outstanding_parts_are_right,
    "alarm_missing": fsck_states.no_alarm_is_missing,
    "alarm_forbidden": fsck_states.no_alarm_is_forbidden,
}

# What the loop looks at: cheap, and what everything else depends on.
RECONCILED = ("outstanding_parts", "alarm_missing")


def run_fsck(*, now: datetime, repair: bool = False, checks: Sequence[str] = tuple(CHECKS)) -> list[Finding]:
    """Look at the rows and say what is wrong with them; with ``repair`` mend what can be mended.

    Doing it twice does no harm: the second time finds nothing that could be mended.
    """
    return [finding for name in checks for finding in CHECKS[name](name, now=now, repair=repair)]


def reconcile(*, now: datetime) -> int:
    """Mend what would keep manifests from running; returns how much there was.

    Every stage arms what it ends, so finding something is a defect, or somebody changed rows by hand.
    """
    found = run_fsck(now=now, repair=True, checks=RECONCILED)
    for finding in found:
        logger.error("Mended: %s: %s.", finding.subject, finding.evidence)
    return len(found)
