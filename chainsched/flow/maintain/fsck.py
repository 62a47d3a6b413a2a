"""Maintenance: check that the rows are consistent: no alarm is missing, no row contradicts another.

Reads:  all rows, page by page.
Writes: with ``repair`` the wrong rows, each page under the locks that it was read with.
Next:   the operator, who reads the findings; the manager, for alarms that were missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime

from chainsched.domain.results import Finding
from chainsched.flow.maintain import fsck_executions, fsck_graph, fsck_parked, fsck_put_aside, fsck_runs, fsck_states

logger = logging.getLogger(__name__)

Check = Callable[..., Iterator[Finding]]

# In an order in which the repair of one check lets the next one find the rest.
CHECKS: Mapping[str, Check] = {
    "guard": fsck_graph.guard_is_present,
    "state_row": fsck_states.every_manifest_has_a_state,
    "edges": fsck_graph.edges_are_stored,
    "cycle": fsck_graph.no_cycles,
    "depth": fsck_graph.depth_is_right,
    "process": fsck_executions.running_has_a_live_process,
    "open_items": fsck_states.at_most_one_open_item,
    "orphaned_row": fsck_executions.queued_has_a_manifest,
    "queue_link": fsck_executions.queue_and_executions_agree,
    "lineage": fsck_executions.parents_and_roots_agree,
    "limits": fsck_executions.limits_are_kept,
    "numbers": fsck_states.numbers_are_in_order,
    "members": fsck_graph.members_of_fan_ins_are_right,
    "joins_ahead": fsck_graph.joins_ahead_are_right,
    "tokens": fsck_runs.tokens_are_counted,
    "run_end": fsck_runs.runs_end,
    "parts": fsck_states.parts_are_right,
    "alarm_missing": fsck_states.no_alarm_is_missing,
    "alarm_forbidden": fsck_states.no_alarm_is_forbidden,
    "parked": fsck_parked.parked_rows_have_a_reason,
    "put_aside": fsck_put_aside.nothing_is_put_aside,
}

# The checks of the loop: they are cheap, and manifests do not run if these facts are wrong.
RECONCILED = ("parts", "alarm_missing", "parked")


def run_fsck(*, now: datetime, repair: bool = False, checks: Sequence[str] = tuple(CHECKS)) -> list[Finding]:
    """Check the rows and return the findings; with ``repair`` correct the rows where that is possible.

    Running it twice does no harm: the second run finds nothing that could be repaired.
    """
    return [finding for name in checks for finding in CHECKS[name](name, now=now, repair=repair)]


def reconcile(*, now: datetime) -> int:
    """Repair facts that would keep manifests from running; returns the number of findings.

    Every stage sets the alarms of the manifests it ends work for, so a finding is a defect, or a change by hand. Rows
    that another transaction holds are passed over until the next turn. Those that were put aside are tried again.
    """
    if again := fsck_put_aside.try_again(now=now):
        logger.info("%d manifests and queue rows that were put aside are tried again.", again)
    found = run_fsck(now=now, repair=True, checks=RECONCILED)
    for finding in found:
        logger.error("Repaired: %s: %s.", finding.subject, finding.evidence)
    return len(found)
