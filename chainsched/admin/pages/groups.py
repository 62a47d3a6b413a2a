"""Groups: their limits and switches, and their open work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from chainsched.admin.kit import display
from chainsched.admin.kit.operations import OperatingPage
from chainsched.admin.kit.permissions import Verbs
from chainsched.admin.kit.sections import Fact, Facts, Section, Table
from chainsched.admin.pages.graphs import MAX_ON_PAGE, GroupGraphs
from chainsched.domain.routing import DEFAULT_QUEUE
from chainsched.domain.states import ExecutionState
from chainsched.models import Manifest, ManifestGroup, Metadata, WorkQueue
from chainsched.models.obstacles import state_of
from chainsched.operations import Operation

MAX_MEMBERS = 50


# The operations that apply to every member of a group.
OF_MEMBERS = ("trigger", "cancel")


class ManifestGroupPage(Verbs, GroupGraphs, OperatingPage):
    """Groups with their limits, switches and open work."""

    list_display = ("name", "switch", "max_active_jobs", "active", "waiting", "priority")
    list_filter = ("is_enabled",)
    search_fields = ("name__startswith",)
    search_help_text = "The beginning of a group's name, case-sensitive."
    sortable_by = ("name",)
    target = "group"

    def is_permitted(self, request: HttpRequest, row: Any, operation: Operation) -> bool:
        """An operation on all members is permitted only to users who see all of them."""
        if not super().is_permitted(request, row, operation):
            return False
        is_of_members = any(operation is self.operations[name] for name in OF_MEMBERS)
        return not is_of_members or self._sees_members(request, row)

    def _sees_members(self, request: HttpRequest, group: ManifestGroup) -> bool:
        if self.sees_all(request, Manifest):
            return True
        seen = self.visible(request, Manifest).order_by().values("pk")
        return not Manifest.objects.filter(group=group).exclude(pk__in=seen).exists()

    def enrich(self, request: HttpRequest, rows: Sequence[Any]) -> None:
        ids = [group.pk for group in rows]
        active = Metadata.objects.filter(group__in=ids).active_by_group()
        waiting = WorkQueue.objects.filter(group__in=ids).waiting_by_group()
        for group in rows:
            group.counts = (active.get(group.pk, 0), waiting.get(group.pk, 0))

    @admin.display(description="switch")
    def switch(self, group: ManifestGroup) -> Any:
        return display.badge("enabled" if group.is_enabled else "disabled")

    @admin.display(description="active")
    def active(self, group: Any) -> int:
        return int(group.counts[0])

    @admin.display(description="waiting")
    def waiting(self, group: Any) -> int:
        return int(group.counts[1])

    def sections(self, request: HttpRequest, row: Any) -> Iterable[Section]:
        self.enrich(request, [row])
        limit = row.max_active_jobs or "no limit of its own"
        facts = [
            Fact("switch", self.switch(row)),
            Fact("active", f"{row.counts[0]} of {limit}", "Pending or running at this moment."),
            Fact("waiting", row.counts[1], "Rows in the queue."),
            Fact("priority", row.priority, "0 to 31; for manifests without a priority of their own."),
            Fact("queue", row.queue or DEFAULT_QUEUE, "Where workers take jobs from; for manifests without one."),
        ]
        yield Facts("Now", facts)
        yield self._active_executions(request, row)
        yield self._graph(request, row)
        yield self._members(request, row)
        yield self.columns(row)

    def _active_executions(self, request: HttpRequest, group: ManifestGroup) -> Table:
        running = self.visible(request, Metadata).filter(group=group.pk).active().order_by("id")[:MAX_MEMBERS]
        rows = [
            (
                display.link(self.admin_site, run, str(run)),
                display.standing(ExecutionState, run.state),
                display.moment(run.started_at),
            )
            for run in running
        ]
        return Table(
            "Active executions", ("Execution", "State", "Started"), rows, if_empty="None is pending or running."
        )

    def _graph(self, request: HttpRequest, group: ManifestGroup) -> Section:
        whole = display.linked(self.members_of(group.pk), "On a page of its own")
        if self.has_small_graph(request, group):
            drawn = self.members_picture(request, group)
            return replace(drawn, notes=[*drawn.notes, whole])
        return Facts("Graph", [Fact("graph", whole, f"It has more than {MAX_ON_PAGE} manifests.")])

    def _members(self, request: HttpRequest, group: ManifestGroup) -> Table:
        members = self.visible(request, Manifest).filter(group=group.pk).order_by("external_id")
        found = list(members.select_related("state")[: MAX_MEMBERS + 1])
        rows = [
            (
                display.link(self.admin_site, member),
                display.badge(_switch(member)),
                display.schedule_in_words(member),
                display.moment(display.state_of(member).next_run_at),
            )
            for member in found[:MAX_MEMBERS]
        ]
        note = f"More than {MAX_MEMBERS}; the list of manifests shows all." if len(found) > MAX_MEMBERS else ""
        return Table("Members", ("Manifest", "Switch", "Runs", "Next run"), rows, note=note)


def _switch(member: Manifest) -> str:
    """Whether a member runs by itself, regardless of the switch of the group."""
    obstacle = state_of(member, is_group_enabled=True)
    return "enabled" if obstacle is None else obstacle.value
