"""Manifests: why each is or is not running, its next runs, and the outcomes of its last runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.contrib import admin
from django.db.models import F, QuerySet
from django.http import HttpRequest
from django.utils.timezone import get_current_timezone_name

from chainsched.admin.charts import timeline
from chainsched.admin.kit import display
from chainsched.admin.kit.filters import DueFilter, FailingFilter, ManifestStateFilter, typed
from chainsched.admin.kit.operations import OperatingPage
from chainsched.admin.kit.page import PAYLOADS, is_narrowed
from chainsched.admin.kit.permissions import Verbs
from chainsched.admin.kit.sections import Chart, Fact, Facts, Passage, Section, Table
from chainsched.admin.pages.graphs import ManifestGraphs
from chainsched.db.clock import database_now
from chainsched.domain.due import IN_WORDS, Reason
from chainsched.domain.known import is_known, label
from chainsched.domain.results import Explanation
from chainsched.domain.states import ExecutionState, RunCondition, ScheduleType, Source
from chainsched.exceptions import UnknownManifest
from chainsched.flow.inspect.explain import explain
from chainsched.models import DeadLetter, Manifest, ManifestGroup, Metadata
from chainsched.models.manifest_facts import load_open_items
from chainsched.models.obstacles import state_of
from chainsched.servers import known_pools

MAX_RUNS = 10
MAX_PARENTS = 20
# Reasons of a join that name other manifests in their words.
NAMING = (Reason.WAITS_FOR_PARENTS, Reason.TOO_FEW_ARRIVED)
# Columns that may be long and that no list of runs shows.
LONG_COLUMNS = tuple(sorted(PAYLOADS & {field.name for field in Metadata._meta.concrete_fields}))


class Parent(NamedTuple):
    """A manifest that another one runs after."""

    pk: int
    name: str


@dataclass(frozen=True, slots=True)
class Parents:
    """The manifests that the user may see and that another one runs after.

    ``only`` is the only parent, or the gate of a fan-in; ``members`` are the first of those that a join waits for.
    """

    only: Parent | None
    members: Sequence[Parent] = ()
    count: int = 0

    def in_words(self, manifest: Manifest) -> str:
        """When the manifest runs."""
        if not manifest.is_join:
            return display.schedule_in_words(manifest)
        parent = self.only.name if self.only else "its parent"
        return display.join_in_words(manifest, parent=parent, members=self.count)


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
        explanation = self._explain(request, row, now)
        yield self._now(request, row, explanation)
        place = self.place(request, row)
        yield from self._schedule(row, explanation, self._parents(request, row, place.names))
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
        facts = [
            Fact("why", f"{explanation.reason[:1].upper()}{explanation.reason[1:]}.", f"Code: {explanation.code}"),
            Fact("switch", display.badge("enabled" if manifest.is_enabled else "disabled")),
            Fact("next run", display.moment(state.next_run_at), "When the manager evaluates it."),
            Fact("last success", display.moment(state.last_successful_run)),
            Fact("failures", state.consecutive_failures, "Since the last success or decision."),
            Fact("group", self.name(self._group(request, manifest), manifest.group_id, manifest.group.name)),
            Fact("workflow", manifest.workflow),
        ]
        if explanation.code == Reason.AWAITING_DEAD_LETTER:
            letter = self.visible(request, DeadLetter).filter(manifest=manifest.pk).awaiting().first()
            facts.insert(1, Fact("dead letter", display.link(self.admin_site, letter) if letter else display.NOTHING))
        return Facts("Now", facts)

    def _group(self, request: HttpRequest, manifest: Manifest) -> dict[Any, Any]:
        """The group, if this user may see it; a query only where a project hides some groups."""
        if is_narrowed(self.visible(request, ManifestGroup)):
            return self.find(request, ManifestGroup, [manifest.group_id])
        return {manifest.group_id: manifest.group}

    def _explain(self, request: HttpRequest, manifest: Manifest, now: datetime) -> Explanation:
        try:
            found = explain(manifest.pk, pools=known_pools(now=now), now=now)
            # These reasons name the manifests that a join waits for, also those that this user may not see.
            is_told = found.code not in NAMING or self.sees_all(request, Manifest)
            return found if is_told else replace(found, reason=IN_WORDS[Reason(found.code)])
        except UnknownManifest:
            reason = "its state was deleted by hand; `chainsched fsck --repair` restores it"
            return Explanation(manifest.external_id, "no_state", reason, None)

    def _schedule(self, manifest: Manifest, explanation: Explanation, parents: Parents) -> Iterable[Section]:
        facts = [
            Fact("runs", parents.in_words(manifest)),
            Fact("cron expression", manifest.cron_expression or display.NOTHING),
            Fact("time zone", manifest.timezone or "the project's"),
        ]
        if not manifest.is_join or manifest.fan_in:
            unseen = display.NOTHING if manifest.depends_on_id is None else f"#{manifest.depends_on_id}"
            facts.append(Fact("parent", self._linked(parents.only) if parents.only else unseen))
        if not manifest.is_join:
            facts.append(
                Fact(
                    "next ten runs",
                    _listed(explanation.next_runs),
                    f"The times of the schedule alone, in {get_current_timezone_name()}.",
                )
            )
        yield Facts("Schedule", facts)
        if manifest.is_join:
            yield self._join(manifest, parents)

    def _join(self, manifest: Manifest, parents: Parents) -> Facts:
        """The manifests that a join waits for in each run, and when it stops waiting."""
        deadline = timedelta(seconds=manifest.deadline_seconds) if manifest.deadline_seconds is not None else None
        counts = "completion" if manifest.fan_in else label(RunCondition, manifest.run_condition)
        rest = parents.count - len(parents.members)
        names = [self._linked(parent) for parent in parents.members] + ([f"and {rest:,} more"] if rest > 0 else [])
        facts = [
            Fact("waits for", display.listed(names), f"{parents.count:,} that you may see."),
            Fact("arrives by", counts, "The outcome of one of them that counts."),
            Fact(
                "deadline",
                f"{display.duration(deadline)} after the run began" if deadline is not None else "none",
                "Then it decides by what has arrived.",
            ),
            Fact("eager", _yes(is_so=manifest.is_eager), "Whether it runs as soon as enough has arrived."),
            Fact("again on late", _yes(is_so=manifest.runs_again_on_late), "Whether late arrivals make it run again."),
        ]
        if manifest.fan_in:
            condition = label(RunCondition, manifest.run_condition)
            facts.insert(1, Fact("only after", f"{condition} of its parent", "In other runs it does not run."))
        return Facts("Join", facts)

    def _parents(self, request: HttpRequest, manifest: Manifest, names: Mapping[int, str]) -> Parents:
        """The manifests it runs after, the first of them by name: one query, two if there are many.

        No query for a manifest without parents, or with one parent that ``names`` has.
        """
        parent_id = manifest.depends_on_id
        if not manifest.is_join and (parent_id is None or parent_id in names):
            return Parents(None if parent_id is None else Parent(parent_id, names[parent_id]))
        seen = self.visible(request, Manifest).filter(child_edges__child=manifest.pk)
        named = seen.annotate(is_gate=F("child_edges__is_gate")).order_by("-is_gate", "external_id")
        rows = list(named.values_list("pk", "external_id", "is_gate")[: MAX_PARENTS + 2])
        only = next((Parent(pk, name) for pk, name, _ in rows if pk == parent_id), None)
        members = [Parent(pk, name) for pk, name, is_gate in rows if not is_gate]
        is_more = len(members) > MAX_PARENTS
        count = named.filter(is_gate=False).count() if is_more else len(members)
        return Parents(only, members[:MAX_PARENTS], count)

    def _linked(self, parent: Parent) -> Any:
        return display.link_to(self.admin_site, Manifest, parent.pk, parent.name)

    def _timeline(self, runs: Sequence[Metadata], now: datetime) -> Chart:
        shown = [
            timeline.Run(run.pk, run.state, _waiting_since(run), run.started_at, run.ended_at) for run in reversed(runs)
        ]
        return timeline.chart(
            shown, now=now, address_of=lambda pk: display.address(self.admin_site, Metadata, "change", pk)
        )

    def _recent(self, newest: Sequence[Metadata]) -> Table:
        rows = [
            (
                display.link(self.admin_site, run, f"#{run.id}"),
                display.standing(ExecutionState, run.state),
                run.get_source_display() if is_known(Source, run.source) else label(Source, run.source),
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


def _yes(*, is_so: bool) -> str:
    return "yes" if is_so else "no"


def _listed(moments: Sequence[datetime]) -> Any:
    return display.listed([display.moment(at) for at in moments])
