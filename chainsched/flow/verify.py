"""Beside the stages: prove that nothing was forgotten.

Reads:  manifests that have no alarm.
Writes: the alarms that are missing.
Next:   the manager.
"""

from __future__ import annotations

import logging
from datetime import datetime

from chainsched.flow.arm import arm
from chainsched.flow.transact import transact
from chainsched.models import ManifestState

logger = logging.getLogger(__name__)

PAGE = 1000


def reconcile(*, now: datetime) -> int:
    """Arm whatever has nothing open, nothing that forbids it, and yet no alarm; returns how many there were.

    Every stage arms what it ends, so finding one is a defect, or somebody changed rows by hand.
    """
    _check_debts()
    found = last_id = 0
    while page := ManifestState.objects.without_alarm(after=last_id, limit=PAGE):
        last_id = page[-1]
        with transact():
            found += arm(ManifestState.objects.lock_without_alarm(page), now=now)
    if found:
        logger.error("%d manifests had no alarm although nothing was open; they are armed again.", found)
    return found


def _check_debts() -> None:
    """Look again at what continuations wait for, so that none waits for a part that nobody will do."""
    last_id = 0
    while page := ManifestState.objects.debtors(after=last_id, limit=PAGE):
        last_id = page[-1]
        with transact():
            ManifestState.objects.note_debts(ManifestState.objects.lock(page))
