"""Entries in the history of the admin for what the engine does on somebody's behalf."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.apps import apps
from django.db import models

CHANGE = 2


def note(entries: Mapping[str, list[Any]], *, user: Any) -> None:
    """Write one entry a row, by what is said about the rows; a project without the admin has no history.

    They go where the admin keeps its history: in the same transaction, if that is our database.
    """
    if user is None or not apps.is_installed("django.contrib.admin"):
        return
    history: type[models.Model] = apps.get_model("admin", "LogEntry")
    for message, rows in entries.items():
        history.objects.log_actions(user.pk, rows, CHANGE, message)  # type: ignore[attr-defined]
