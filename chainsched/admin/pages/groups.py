"""Groups: their limits and switches, and what is under way in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse

from chainsched.admin.kit import display
from chainsched.admin.kit.action_locations import ON_THE_PAGE, action
from chainsched.admin.kit.forms import LimitsForm
from chainsched.admin.kit.operations import Instruction, NoEffect, OperatingPage, Operation, stopped
from chainsched.admin.kit.permissions import Verbs
from chainsched.admin.kit.sections import Fact, Facts, Section, Table
from chainsched.admin.pages.graphs import MAX_ON_PAGE, GroupGraphs
from chainsched.models import Manifest, ManifestGroup, Metadata, WorkQueue
from chainsched.models.model_methods import ON_REQUEST
from chainsched.models.obstacles import state_of

MAX_MEMBERS = 50


def _trigger(group: ManifestGroup, _instruction: Instruction) -> str:
    answers = group.trigger()
    told = ", ".join(f"{number} {answer.in_words}" for answer, number in answers.items())
    return told or NoEffect("no enabled member stands at the beginning of a chain")


def _set_limits(group: ManifestGroup, instruction: Instruction) -> str:
    return "changed" if group.set_limits(**instruction.details) else NoEffect("nothing to change")


def _cancel(group: ManifestGroup, instruction: Instruction) -> str:
    return stopped(group.cancel(reason=instruction.reason or ON_REQUEST))


# What is done to every member of a group.
OF_MEMBERS = ("trigger", "cancel")
OPERATIONS = {
    "trigger": Operation("Trigger", "Triggered", "trigger", _trigger),
    "enable": Operation(
        "Enable",
        "Enabled",
        "switch",
        lambda group, _: "enabled" if group.enable() else NoEffect("it was enabled already"),
        is_fitting=lambda group: not group.is_enabled,
    ),
    "disable": Operation(
        "Disable",
        "Disabled",
        "switch",
        lambda group, _: "disabled" if group.disable() else NoEffect("it was disabled already"),
        warning="Nothing of it is queued or dispatched until it is enabled again; what runs goes on.",
        is_fitting=lambda group: group.is_enabled,
    ),
    "set_limits": Operation("Change limits", "Changed limits", "limit", _set_limits, form=LimitsForm),
    "cancel": Operation(
        "Cancel running",
        "Cancelled running",
        "cancel",
        _cancel,
        warning="Everything that its manifests have queued, pending or running is stopped and not made up for.",
    ),
}


class ManifestGroupPage(Verbs, GroupGraphs, OperatingPage):
    """Groups with their limits, switches and what they have under way."""

    list_display = ("name", "switch", "max_active_jobs", "active", "waiting", "priority")
    list_filter = ("is_enabled",)
    search_fields = ("name__startswith",)
    search_help_text = "The beginning of a group's name, with its capitals."
    sortable_by = ("name",)
    actions = ("trigger", "enable", "disable", "set_limits", "cancel")
    audited = ("is_enabled", "max_active_jobs", "priority")
    operations = OPERATIONS

    @action(permission="trigger", description="Trigger", plural="Trigger selected groups")
    def trigger(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Run all enabled members that depend on nothing."""
        return self.operate(request, queryset, "trigger")

    @action(permission="switch", description="Enable", plural="Enable selected groups")
    def enable(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Let their manifests run again."""
        return self.operate(request, queryset, "enable")

    @action(permission="switch", description="Disable", plural="Disable selected groups")
    def disable(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Let nothing of them be queued or dispatched."""
        return self.operate(request, queryset, "disable")

    @action(permission="limit", description="Change limits", location=ON_THE_PAGE)
    def set_limits(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Change the limit and the priority of one group."""
        return self.operate(request, queryset, "set_limits")

    @action(permission="cancel", description="Cancel running", plural="Cancel what runs in selected groups")
    def cancel(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Stop what all their members have under way."""
        return self.operate(request, queryset, "cancel")

    def is_permitted(self, request: HttpRequest, row: Any, operation: Operation) -> bool:
        """What is done to all members is done by nobody who does not see them all."""
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
            Fact("priority", row.priority, "0 to 31; for manifests that state none of their own."),
        ]
        yield Facts("Now", facts)
        yield self._under_way(request, row)
        yield self._graph(request, row)
        yield self._members(request, row)
        yield self.columns(row)

    def _under_way(self, request: HttpRequest, group: ManifestGroup) -> Table:
        running = self.visible(request, Metadata).filter(group=group.pk).active().order_by("id")[:MAX_MEMBERS]
        rows = [
            (display.link(self.admin_site, run, str(run)), display.badge(run.state), display.moment(run.started_at))
            for run in running
        ]
        return Table("Under way", ("Execution", "State", "Started"), rows, if_empty="Nothing is pending or running.")

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
    """Whether a member runs by itself, apart from the switch of the group."""
    obstacle = state_of(member, is_group_enabled=True)
    return "enabled" if obstacle is None else obstacle.value
