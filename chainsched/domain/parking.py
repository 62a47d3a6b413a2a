"""Which queued rows are parked: out of the line of those that dispatch looks at, until the reason is gone.

A turn of dispatch then costs as much as the rows that may start, not as much as those that wait.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from chainsched.domain.routing import Pool, are_taken

# Of a full group so many rows stay in line, or as many as its limit allows jobs if that is fewer; of all full groups
# together not more than half a page, so that the next one is reached.
KEPT = 100
KEPT_IN_ALL = 500


class ParkedFor(enum.StrEnum):
    """The reason for which a row is parked."""

    TIME = "time"
    DISABLED = "disabled"
    NO_WORKER = "no_worker"
    GROUP_FULL = "group_full"


@dataclass(frozen=True, slots=True)
class Waiting:
    """A queued row, as far as it decides whether the row is parked."""

    row_id: int
    manifest_id: int | None
    group_id: int | None
    workflow: str
    queue: str
    not_before: datetime | None
    group_limit: int | None
    is_held: bool
    """Whether an obstacle holds it: its manifest or its group is disabled."""


def park_until(not_before: datetime | None, *, now: datetime) -> ParkedFor | None:
    """The reason for a row that may not start before a time, until that has come."""
    return ParkedFor.TIME if not_before is not None and not_before > now else None


def lasting_reason(row: Waiting, *, pools: Collection[Pool], now: datetime) -> ParkedFor | None:
    """The reason that does not depend on other rows, in the order in which an explanation names reasons."""
    if (until := park_until(row.not_before, now=now)) is not None:
        return until
    if row.is_held:
        # Enabling a group lets in the rows of its manifests; a row without one stays in line and is passed over.
        return ParkedFor.DISABLED if row.manifest_id is not None else None
    if not are_taken(row.workflow, row.queue, pools=pools):
        return ParkedFor.NO_WORKER
    return None


def find_parkable(
    line: Sequence[Waiting], *, pools: Collection[Pool], active: Mapping[int | None, int], now: datetime
) -> dict[int, ParkedFor]:
    """The rows of the line, given in its order, that are to be parked, with the reasons.

    Of a full group some rows stay in line, so that those who take rows find the next ones as soon as jobs of the group
    end; whoever takes some lets as many in again.
    """
    found: dict[int, ParkedFor] = {}
    limits = {row.group_id: row.group_limit for row in line if row.group_id is not None and row.group_limit is not None}
    full = {group_id: limit for group_id, limit in limits.items() if active.get(group_id, 0) >= limit}
    most = min(KEPT, max(1, KEPT_IN_ALL // max(1, len(full))))
    kept: Counter[int] = Counter()
    for row in line:
        reason = lasting_reason(row, pools=pools, now=now)
        if reason is None and row.group_id in full:
            kept[row.group_id] += 1
            if kept[row.group_id] > min(full[row.group_id], most):
                reason = ParkedFor.GROUP_FULL
        if reason is not None:
            found[row.row_id] = reason
    return found


def places_in(limits: Mapping[int, int | None], *, active: Mapping[int | None, int], page: int) -> dict[int, int]:
    """How many parked rows of groups come into line again: as many as may start, at most a page of each group."""
    free = {
        group_id: page if limit is None else min(page, limit - active.get(group_id, 0))
        for group_id, limit in limits.items()
    }
    return {group_id: number for group_id, number in free.items() if number > 0}
