"""Maintenance: merge the hourly statistics into one row for each kind and hour, and delete old ones.

Reads:  statistics that record appended.
Writes: the merged rows in their place.
Next:   the operator, on the overview page.
"""

from __future__ import annotations

from datetime import datetime

from chainsched.domain.statistics import KEPT_FOR
from chainsched.flow.transactions import transact
from chainsched.models import HourlyStatistic

BATCH = 5000


def roll_up(*, now: datetime) -> int:
    """Merge a batch and delete a batch of old rows; returns how many were merged, BATCH if there may be more."""
    with transact():
        old = HourlyStatistic.objects.filter(hour__lt=now - KEPT_FOR).order_by("hour")
        HourlyStatistic.objects.filter(id__in=list(old.values_list("id", flat=True)[:BATCH])).delete()
        return HourlyStatistic.objects.merge_appended(limit=BATCH)
