"""The admin's history of a row: who did what to it, why, and how it stood before and after.

``operations.apply_operation`` writes an entry for each operation of a page or a command, ``resolve.decide`` for each
decision about a dead letter. A project without the admin has no history.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.apps import apps
from django.db import models

from chainsched.domain.redaction import redact_text

CHANGE = 2


def describe(did: str, outcome: str, *, before: str, after: str, reason: str, details: str = "") -> str:
    """The text of an entry; secrets in the words that an operator typed are left out."""
    parts = [f"{did}: {outcome}.", *([f"With {details}."] if details else [])]
    parts += [f"Before: {before}. After: {after}.", f"Reason: {reason or 'none given'}."]
    return redact_text(" ".join(parts))


def describe_details(details: Mapping[str, Any]) -> str:
    """The answers to the operation's form. An input is a payload, and every viewer of the row reads its history."""
    shown = {**details, "input": "given, not shown"} if "input" in details else details
    return ", ".join(f"{name} {value}" for name, value in shown.items() if value not in (None, ""))


def write(entries: Mapping[str, list[Any]], *, user: Any) -> None:
    """Write one entry a row, by text. They go to the admin's database: in the same transaction, if that is ours."""
    if user is None or not apps.is_installed("django.contrib.admin"):
        return
    log_entry: type[models.Model] = apps.get_model("admin", "LogEntry")
    for message, rows in entries.items():
        log_entry.objects.log_actions(user.pk, rows, CHANGE, message)  # type: ignore[attr-defined]
