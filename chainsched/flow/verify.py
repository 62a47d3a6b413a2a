"""Beside the stages: prove from the rows that nothing was forgotten and nothing is where it must not be.

Reads:  everything, page by page.
Writes: with ``repair`` what is wrong, each page under the locks that it was looked at with.
Next:   people; and the manager, for alarms that were missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime

from chainsched.domain.answers import Finding
from chainsched.flow import prove_executions, prove_graph, prove_states

logger = logging.getLogger(__name__)

Check = Callable[..., Iterator[Finding]]

# In an order in which what one mends lets the next find the rest.
CHECKS: Mapping[str, Check] = {
    "guard": prove_graph.guard_is_present,
    "state_row": prove_states.every_manifest_has_a_state,
    "cycle": prove_graph.nothing_goes_in_circles,
    "depth": prove_graph.depth_is_right,
    "process": prove_executions.running_has_a_live_process,
    "open_items": prove_states.at_most_one_open_item,
    "orphaned_row": prove_executions.queued_has_a_manifest,
    "queue_link": prove_executions.queue_and_executions_agree,
    "lineage": prove_executions.parents_and_roots_agree,
    "limits": prove_executions.limits_are_kept,
    "numbers": prove_states.numbers_are_in_order,
    "debts": prove_states.debts_are_right,
    "alarm_missing": prove_states.no_alarm_is_missing,
    "alarm_forbidden": prove_states.no_alarm_is_forbidden,
}

# What the loop looks at: cheap, and what everything else depends on.
RECONCILED = ("debts", "alarm_missing")


def verify(*, now: datetime, repair: bool = False, checks: Sequence[str] = tuple(CHECKS)) -> list[Finding]:
    """Look at the rows and say what is wrong with them; with ``repair`` mend what can be mended.

    Doing it twice does no harm: the second time finds nothing that could be mended.
    """
    return [finding for name in checks for finding in CHECKS[name](name, now=now, repair=repair)]


def reconcile(*, now: datetime) -> int:
    """Mend what would keep manifests from running; returns how much there was.

    Every stage arms what it ends, so finding something is a defect, or somebody changed rows by hand.
    """
    found = verify(now=now, repair=True, checks=RECONCILED)
    for finding in found:
        logger.error("Mended: %s: %s.", finding.subject, finding.evidence)
    return len(found)
