"""The work queue: the rows that wait, the position of each, and why it waits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from chainsched.admin.kit import display
from chainsched.admin.kit.filters import PUT_ASIDE, QueueStatusFilter, typed
from chainsched.admin.kit.manifest_search import FoundByManifest
from chainsched.admin.kit.operations import OperatingPage
from chainsched.admin.kit.permissions import Verbs
from chainsched.admin.kit.sections import Fact, Facts, Section
from chainsched.domain.known import label
from chainsched.domain.parking import ParkedFor
from chainsched.domain.states import QueueStatus
from chainsched.models import Manifest, ManifestGroup, Metadata, WorkQueue

MAX_COUNTED = 10_000


def _is_in_line(row: WorkQueue) -> bool:
    return row.status == QueueStatus.QUEUED and row.put_aside_at is None and not row.parked_for


class WorkQueuePage(Verbs, FoundByManifest, OperatingPage):
    """Queued rows, in the order of dispatch; on request also those that were dispatched or cancelled."""

    list_display = (
        "number",
        "manifest_name",
        "standing",
        "priority",
        "queue",
        "source",
        "attempt",
        "due",
        "waits_until",
    )
    list_filter = (QueueStatusFilter, "parked_for", "source", typed("queue", "queue"), typed("group", "group__name"))
    sortable_by = ()
    target = "row"

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """The order of dispatch for queued rows, else the newest first: each in the order of an index."""
        status = request.GET.get("status", QueueStatus.QUEUED.value)
        by_status = {
            QueueStatus.QUEUED.value: ("-priority", "turn", "id"),
            PUT_ASIDE: ("put_aside_at", "id"),
            QueueStatus.CANCELLED.value: ("-created_at", "-id"),
        }
        return by_status.get(status, ("-id",))

    @admin.display(description="id")
    def number(self, row: WorkQueue) -> str:
        return f"#{row.pk}"

    @admin.display(description="manifest")
    def manifest_name(self, row: WorkQueue) -> str:
        return row.manifest_external_id or display.NOTHING

    @admin.display(description="status")
    def standing(self, row: WorkQueue) -> Any:
        return _standing(row)

    @admin.display(description="due")
    def due(self, row: WorkQueue) -> Any:
        return display.moment(row.scheduled_for)

    @admin.display(description="not before")
    def waits_until(self, row: WorkQueue) -> Any:
        return display.moment(row.not_before)

    def sections(self, request: HttpRequest, row: Any) -> Iterable[Section]:
        yield self._standing(request, row)
        yield from self.payloads(request, row, "input")
        yield self.columns(row)

    def _standing(self, request: HttpRequest, row: WorkQueue) -> Facts:
        manifests = self.find(request, Manifest, [row.manifest_id])
        groups = self.find(request, ManifestGroup, [row.group_id])
        executions = self.find(request, Metadata, [row.execution_id, row.parent_execution_id])
        explanation = row.explain()
        facts = [
            Fact("status", _standing(row)),
            Fact("why", f"{explanation.reason[:1].upper()}{explanation.reason[1:]}.", f"Code: {explanation.code}"),
            Fact("position", _position(row) if _is_in_line(row) else display.NOTHING, "In the order of dispatch."),
            Fact("manifest", self.name(manifests, row.manifest_id, row.manifest_external_id)),
            Fact("group", self.name(groups, row.group_id)),
            Fact("execution", self.name(executions, row.execution_id)),
            Fact("caused by", self.name(executions, row.parent_execution_id)),
            Fact("queue", row.queue, "Where workers take it from."),
            Fact("not before", display.moment(row.not_before)),
        ]
        return Facts("Now", facts)


def _standing(row: WorkQueue) -> Any:
    if row.status == QueueStatus.QUEUED and row.put_aside_at is not None:
        return display.badge(PUT_ASIDE)
    if row.status == QueueStatus.QUEUED and row.parked_for:
        return display.badge("parked", f"parked: {label(ParkedFor, row.parked_for)}")
    return display.standing(QueueStatus, row.status)


def _position(row: WorkQueue) -> str:
    ahead = WorkQueue.objects.in_line().ahead_of(row).order_by()[:MAX_COUNTED].count()
    return f"after more than {ahead:,} others" if ahead == MAX_COUNTED else f"{ahead + 1:,}"
