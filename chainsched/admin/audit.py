"""The trail: one entry a row for everything that somebody does here, with who, what, why, before and after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib.admin.models import CHANGE, LogEntry
from django.db import models

from chainsched.domain.trail import entry


def note(
    row: models.Model,
    *,
    user: Any,
    did: str,
    outcome: str,
    before: str,
    after: str,
    reason: str,
    details: Mapping[str, Any],
) -> None:
    """Write down that a user did something to a row; secrets in what they typed are left out."""
    message = entry(did, outcome, before=before, after=after, reason=reason, told=_tell(details))
    LogEntry.objects.log_actions(user.pk, [row], CHANGE, message)


def _tell(details: Mapping[str, Any]) -> str:
    """What was asked for besides; an input is a payload, and the history is for everybody who may see the row."""
    shown = {**details, "input": "of its own"} if "input" in details else details
    return ", ".join(f"{name} {value}" for name, value in shown.items() if value not in (None, ""))
