"""Manifests: why each is or is not running, its next runs, and the outcomes of its last runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.timezone import get_current_timezone_name

from chainsched.admin.charts import timeline
from chainsched.admin.kit import display
from chainsched.admin.kit.filters import DueFilter, FailingFilter, ManifestStateFilter, typed
from chainsched.admin.kit.operations import OperatingPage
from chainsched.admin.kit.page import PAYLOADS
from chainsched.admin.kit.permissions import Verbs
from chainsched.admin.kit.sections import Chart, Fact, Facts, Passage, Section, Table
from chainsched.admin.pages.graphs import ManifestGraphs
from chainsched.db.clock import database_now
from chainsched.domain.due import Reason
from chainsched.domain.results import Explanation
from chainsched.domain.states import ExecutionState, ScheduleType, Source
from chainsched.exceptions import UnknownManifest
from chainsched.flow.inspect.explain import explain
from chainsched.graph.load import Member
from chainsched.models import DeadLetter, Manifest, ManifestGroup, Metadata
from chainsched.models.manifest_facts import load_open_items
from chainsched.models.obstacles import state_of
from chainsched.servers import get_server

MAX_RUNS = 10
# Columns that may be long and that no list of runs shows.
LONG_COLUMNS = (*sorted(PAYLOADS - {"trigger_input"}), "failure_reason")


def _is_dormant(manifest: Manifest) -> bool:
    return manifest.schedule_type == ScheduleType.DORMANT_DEPENDENT


class ManifestPage(Verbs, ManifestGraphs, OperatingPage):
    """Manifests with their schedules and states."""

    list_display = ("external_id", "standing", "runs", "next_run", "last_success", "failures", "group_link")
    list_filter = (
        ManifestStateFilter,
        FailingFilter,
        DueFilter,
        "schedule_type",
        typed("group", "group__name"),
        typed("workflow", "workflow"),
        typed("owner", "owner"),
    )
    related = ("group", "state")
    search_fields = ("external_id__startswith",)
    search_help_text = "The beginning of a manifest's external id, case-sensitive."
    sortable_by = ("external_id",)
    target = "manifest"

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """By external id; by the next run if the list is filtered by it, because that column has an index."""
        return ("state__next_run_at", "pk") if request.GET.get("due") in ("now", "hour", "day") else ("external_id",)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """The manifests with this beginning of the external id, spaces included."""
        return queryset.filter(external_id__startswith=search_term) if search_term else queryset, False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).defer("input", "state__trigger_input")

    def enrich(self, request: HttpRequest, rows: Sequence[Any]) -> None:
        open_items = load_open_items([manifest.pk for manifest in rows])
        groups = self.find(request, ManifestGroup, [manifest.group_id for manifest in rows])
        for manifest in rows:
            manifest.open_item = open_items.get(manifest.pk)
            manifest.visible_groups = groups

    @admin.display(description="state")
    def standing(self, manifest: Any) -> Any:
        """Its open item, or the reason why it will not run, or the outcome of its last runs."""
        if manifest.open_item is not None:
            return display.badge(manifest.open_item)
        return display.badge(_state_without_open_item(manifest))

    @admin.display(description="runs")
    def runs(self, manifest: Manifest) -> str:
        return display.shorten(display.schedule_in_words(manifest), 60)

    @admin.display(description="next run")
    def next_run(self, manifest: Manifest) -> Any:
        return display.moment(display.state_of(manifest).next_run_at)

    @admin.display(description="last success")
    def last_success(self, manifest: Manifest) -> Any:
        return display.moment(display.state_of(manifest).last_successful_run)

    @admin.display(description="failures")
    def failures(self, manifest: Manifest) -> int:
        return display.state_of(manifest).consecutive_failures

    @admin.display(description="group")
    def group_link(self, manifest: Any) -> Any:
        return self.name(manifest.visible_groups, manifest.group_id, manifest.group.name)

    def sections(self, request: HttpRequest, row: Any) -> Iterable[Section]:
        now = database_now()
        explanation = self._explain(row, now)
        place = self.place(request, row)
        yield self._now(request, row, explanation)
        yield self._schedule(row, explanation, place.parent)
        yield place.picture
        newest = self.visible(request, Metadata).filter(manifest=row.pk).order_by("-id").defer(*LONG_COLUMNS)
        runs = list(newest[: timeline.MAX_RUNS])
        yield self._timeline(runs, now)
        yield self._recent(runs[:MAX_RUNS])
        self._load_payloads(request, row)
        yield from self.payloads(request, row, "input")
        yield from self._trigger_input(request, row)
        yield self.columns(row)
        yield self.columns(display.state_of(row), title="Run-time state")

    def _now(self, request: HttpRequest, manifest: Manifest, explanation: Explanation) -> Facts:
        state = display.state_of(manifest)
        groups = self.find(request, ManifestGroup, [manifest.group_id])
        facts = [
            Fact("why", f"{explanation.reason[:1].upper()}{explanation.reason[1:]}.", f"Code: {explanation.code}"),
            Fact("switch", display.badge("enabled" if manifest.is_enabled else "disabled")),
            Fact("next run", display.moment(state.next_run_at), "When the manager evaluates it."),
            Fact("last success", display.moment(state.last_successful_run)),
            Fact("failures", state.consecutive_failures, "Since the last success or decision."),
            Fact("group", self.name(groups, manifest.group_id, manifest.group.name)),
            Fact("workflow", manifest.workflow),
        ]
        if explanation.code == Reason.AWAITING_DEAD_LETTER:
            letter = self.visible(request, DeadLetter).filter(manifest=manifest.pk).awaiting().first()
            facts.insert(1, Fact("dead letter", display.link(self.admin_site, letter) if letter else display.NOTHING))
        return Facts("Now", facts)

    def _explain(self, manifest: Manifest, now: datetime) -> Explanation:
        try:
            return explain(manifest.pk, workflows=get_server().known_workflows(now=now), now=now)
        except UnknownManifest:
            reason = "its state was deleted by hand; `chainsched fsck --repair` restores it"
            return Explanation(manifest.external_id, "no_state", reason, None)

    def _schedule(self, manifest: Manifest, explanation: Explanation, parent: Member | None) -> Facts:
        unseen = display.NOTHING if manifest.depends_on_id is None else f"#{manifest.depends_on_id}"
        named = display.link_to(self.admin_site, Manifest, parent.pk, parent.name) if parent else unseen
        facts = [
            Fact("runs", display.schedule_in_words(manifest)),
            Fact("cron expression", manifest.cron_expression or display.NOTHING),
            Fact("time zone", manifest.timezone or "the project's"),
            Fact("parent", named),
            Fact(
                "next ten runs",
                _listed(explanation.next_runs),
                f"The times of the schedule alone, in {get_current_timezone_name()}.",
            ),
        ]
        return Facts("Schedule", facts)

    def _timeline(self, runs: Sequence[Metadata], now: datetime) -> Chart:
        shown = [
            timeline.Run(run.pk, ExecutionState(run.state), _waiting_since(run), run.started_at, run.ended_at)
            for run in reversed(runs)
        ]
        return timeline.chart(
            shown, now=now, address_of=lambda pk: display.address(self.admin_site, Metadata, "change", pk)
        )

    def _recent(self, newest: Sequence[Metadata]) -> Table:
        rows = [
            (
                display.link(self.admin_site, run, f"#{run.id}"),
                display.badge(run.state),
                run.get_source_display(),
                run.attempt,
                display.moment(run.started_at),
                display.duration(_duration(run)),
                display.shorten(run.failure_type, 40),
            )
            for run in newest
        ]
        columns = ("Execution", "State", "Source", "Attempt", "Started", "Took", "Failure")
        return Table("Recent executions", columns, rows, if_empty="It has not run yet.")

    def _load_payloads(self, request: HttpRequest, manifest: Manifest) -> None:
        """Read both inputs in one query, for users who may see them."""
        if not self.has_payloads_permission(request, manifest):
            return
        columns = Manifest.objects.filter(pk=manifest.pk).values_list("input", "state__trigger_input")
        manifest.input, display.state_of(manifest).trigger_input = columns.first() or (None, None)

    def _trigger_input(self, request: HttpRequest, manifest: Manifest) -> Iterable[Section]:
        """The input of a trigger that has not been queued yet."""
        state = display.state_of(manifest)
        if state.trigger_at is None or not self.has_payloads_permission(request, manifest):
            return
        if (value := state.trigger_input) is not None:
            yield Passage("Input of the waiting trigger", display.passage(value)[: display.MAX_SHOWN])


def _state_without_open_item(manifest: Manifest) -> str:
    """The obstacle that the manifest has met, or the outcome of its last runs."""
    if (obstacle := state_of(manifest, is_group_enabled=manifest.group.is_enabled)) is not None:
        return obstacle.value
    if display.state_of(manifest).consecutive_failures > 0:
        return "failing"
    return "dormant" if _is_dormant(manifest) else "idle"


def _waiting_since(run: Metadata) -> datetime:
    """When the wait of a run began. A retry has the due time of the first attempt, so it counts from its dispatch."""
    is_retry = run.attempt > 1 or run.source in (Source.RETRY, Source.DEAD_LETTER)
    return run.created_at if is_retry else run.scheduled_for


def _duration(run: Metadata) -> Any:
    return run.ended_at - run.started_at if run.ended_at and run.started_at else None


def _listed(moments: Sequence[datetime]) -> Any:
    return display.listed([display.moment(at) for at in moments])
