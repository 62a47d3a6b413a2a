"""The work queue: what waits, where it stands, and for what it waits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse

from chainsched.admin.kit import display
from chainsched.admin.kit.action_locations import action
from chainsched.admin.kit.filters import QueueStatusFilter, typed
from chainsched.admin.kit.manifest_search import FoundByManifest
from chainsched.admin.kit.operations import Instruction, NoEffect, OperatingPage, Operation
from chainsched.admin.kit.permissions import Verbs
from chainsched.admin.kit.sections import Fact, Facts, Section
from chainsched.domain.states import QueueStatus
from chainsched.models import Manifest, ManifestGroup, Metadata, WorkQueue
from chainsched.models.model_methods import ON_REQUEST

MAX_COUNTED = 10_000


def _cancel(row: WorkQueue, instruction: Instruction) -> str:
    is_cancelled = row.cancel(reason=instruction.reason or ON_REQUEST)
    return "cancelled" if is_cancelled else NoEffect("it waited no longer")


def _bring_forward(row: WorkQueue, _instruction: Instruction) -> str:
    return "brought forward" if row.bring_forward() else NoEffect("it waited no longer")


def _is_waiting(row: WorkQueue) -> bool:
    return row.status == QueueStatus.QUEUED


OPERATIONS = {
    "bring_forward": Operation(
        "Bring forward",
        "Brought forward",
        "trigger",
        _bring_forward,
        warning="It goes at once and before all others of its priority, as far as limits and its group allow.",
        is_fitting=_is_waiting,
    ),
    "cancel": Operation(
        "Cancel",
        "Cancelled",
        "cancel",
        _cancel,
        warning="It never runs, and what it was queued for is not made up for.",
        is_fitting=_is_waiting,
    ),
}


class WorkQueuePage(Verbs, FoundByManifest, OperatingPage):
    """What waits, in the order of dispatch; on demand also what was dispatched or cancelled."""

    list_display = (
        "number",
        "manifest_name",
        "standing",
        "priority",
        "source",
        "attempt",
        "due",
        "waits_until",
    )
    list_filter = (QueueStatusFilter, "source", typed("group", "group__name"))
    sortable_by = ()
    actions = ("bring_forward", "cancel")
    audited = ("status", "not_before", "priority", "turn")
    operations = OPERATIONS

    @action(permission="trigger", description="Bring forward", plural="Bring selected rows forward")
    def bring_forward(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Let them go before the others."""
        return self.operate(request, queryset, "bring_forward")

    @action(permission="cancel", description="Cancel", plural="Cancel selected rows")
    def cancel(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Let them never run."""
        return self.operate(request, queryset, "cancel")

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """The order of dispatch for what waits, else the newest first: each in the order of an index."""
        status = request.GET.get("status", QueueStatus.QUEUED.value)
        by_status = {QueueStatus.QUEUED: ("-priority", "turn", "id"), QueueStatus.CANCELLED: ("-created_at", "-id")}
        return by_status.get(status, ("-id",))  # type: ignore[call-overload,no-any-return]

    @admin.display(description="id")
    def number(self, row: WorkQueue) -> str:
        return f"#{row.pk}"

    @admin.display(description="manifest")
    def manifest_name(self, row: WorkQueue) -> str:
        return row.manifest_external_id or display.NOTHING

    @admin.display(description="status")
    def standing(self, row: WorkQueue) -> Any:
        return display.badge(row.status)

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
        told = row.explain()
        facts = [
            Fact("status", display.badge(row.status)),
            Fact("why", f"{told.reason[:1].upper()}{told.reason[1:]}.", f"Code: {told.code}"),
            Fact("position", _position(row) if _is_waiting(row) else display.NOTHING, "In the order of dispatch."),
            Fact("manifest", self.name(manifests, row.manifest_id, row.manifest_external_id)),
            Fact("group", self.name(groups, row.group_id)),
            Fact("became", self.name(executions, row.execution_id)),
            Fact("caused by", self.name(executions, row.parent_execution_id)),
            Fact("not before", display.moment(row.not_before)),
        ]
        return Facts("Now", facts)


def _position(row: WorkQueue) -> str:
    ahead = WorkQueue.objects.queued().ahead_of(row).order_by()[:MAX_COUNTED].count()
    return f"after more than {ahead:,} others" if ahead == MAX_COUNTED else f"{ahead + 1:,}"
