"""The pages of runs of the graph: their heads, their open work, and how their joins stand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.contrib import admin
from django.db.models import CharField, Count, Value
from django.http import HttpRequest

from chainsched.admin.kit import display
from chainsched.admin.kit.filters import RunStateFilter
from chainsched.admin.kit.manifest_search import FoundByManifest
from chainsched.admin.kit.operations import OperatingPage
from chainsched.admin.kit.permissions import Verbs
from chainsched.admin.kit.sections import Fact, Facts, Section, Table
from chainsched.domain.joins import JoinOutcome
from chainsched.domain.redaction import redact_text
from chainsched.domain.results import JoinReport, Missing
from chainsched.domain.states import ExecutionState
from chainsched.models import GraphRun, Manifest, ManifestState, Metadata, WorkQueue
from chainsched.models.join_reports import MAX_STATES, describe_joins
from chainsched.models.run_reports import find_shared_work
from chainsched.operations import Operation

MAX_OPEN = 100
MAX_MISSING = 10
UNDECIDED = (JoinOutcome.WAITING, JoinOutcome.SHORT)
MAX_COUNTS = 200
UNSEEN = "a manifest that you may not see"
Open = Sequence[tuple[str, str]]


class RunPage(Verbs, FoundByManifest, OperatingPage):
    """Runs of the graph, newest first."""

    list_display = ("number", "began_with", "due", "standing", "began", "closed")
    list_filter = (RunStateFilter,)
    manifest_column = "head"
    search_fields = ("head__external_id__startswith",)
    sortable_by = ()
    target = "run"

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """Each in the order of an index: open runs by their heads, closed ones by their end, else the newest first."""
        by_state = {"open": ("-head_id", "-id"), "closed": ("-closed_at", "-id")}
        return by_state.get(request.GET.get("state", ""), ("-id",))

    def is_permitted(self, request: HttpRequest, row: Any, operation: Operation) -> bool:
        """A run is cancelled as a whole, so only users who see all its work may cancel it."""
        return super().is_permitted(request, row, operation) and self._sees_all_of(request, row)

    def enrich(self, request: HttpRequest, rows: Sequence[Any]) -> None:
        heads = self.find(request, Manifest, [run.head_id for run in rows])
        for run in rows:
            run.visible_heads = heads

    @admin.display(description="run")
    def number(self, run: GraphRun) -> str:
        return f"#{run.id}"

    @admin.display(description="head")
    def began_with(self, run: Any) -> Any:
        return self.name(run.visible_heads, run.head_id, run.head_external_id)

    @admin.display(description="due")
    def due(self, run: GraphRun) -> Any:
        return display.moment(run.scheduled_for)

    @admin.display(description="state")
    def standing(self, run: GraphRun) -> Any:
        return display.badge(run.state)

    @admin.display(description="began")
    def began(self, run: GraphRun) -> Any:
        return display.moment(run.created_at)

    @admin.display(description="closed")
    def closed(self, run: GraphRun) -> Any:
        return display.moment(run.closed_at)

    def sections(self, request: HttpRequest, row: Any) -> Iterable[Section]:
        executions = self._count_executions(request, row)
        open_work = _load_open_work(row)
        joins = describe_joins(row, names=MAX_MISSING)
        named = [name for name, _ in open_work]
        named += [name for join in joins.reports for name in (join.external_id, *_names(join.missing))]
        seen = self._find_by_name(request, [row.head_external_id, *named])
        yield self._run(row, seen, sum(number for _, _, number in executions))
        counted = [
            (display.standing(ExecutionState, state), workflow, f"{number:,}") for state, workflow, number in executions
        ]
        yield Table("Executions", ("State", "Workflow", "Executions"), counted, if_empty="None yet.")
        yield self._open_work(row, open_work, seen)
        yield self._joins(joins.reports, joins.count, seen)
        yield self.columns(row)

    def _run(self, run: GraphRun, seen: Mapping[str, int], executions: int) -> Facts:
        listed = display.address(self.admin_site, Metadata, "changelist", by_run=run.pk)
        is_head_seen = seen.get(run.head_external_id) == run.head_id
        head = run.head_external_id or f"#{run.head_id}"
        facts = [
            Fact("state", display.badge(run.state)),
            Fact("head", self._named(seen, head) if is_head_seen else head, "The manifest that it began with."),
            Fact("due", display.moment(run.scheduled_for)),
            Fact("began", display.moment(run.created_at)),
            Fact("closed", display.moment(run.closed_at), "When nothing of it was open any more."),
            Fact(
                "executions", display.linked(listed, f"{executions:,} in all"), "Also those that stand for other runs."
            ),
        ]
        if run.cancelled_at is not None:
            facts.insert(1, Fact("cancelled", display.moment(run.cancelled_at)))
            facts.insert(2, Fact("reason", redact_text(run.cancel_reason) or display.NOTHING))
        return Facts("Run", facts)

    def _open_work(self, run: GraphRun, found: Open, seen: Mapping[str, int]) -> Table:
        rows = [(self._named(seen, name), display.badge(standing)) for name, standing in found[:MAX_OPEN]]
        note = f"These are the first {MAX_OPEN}." if len(found) > MAX_OPEN else ""
        return Table("Open work", ("Manifest", "State"), rows, note=note, if_empty="Nothing is open.")

    def _joins(self, reports: Sequence[JoinReport], count: int, seen: Mapping[str, int]) -> Table:
        rows = [
            (
                self._named(seen, join.external_id),
                display.standing(JoinOutcome, join.outcome),
                f"{join.arrived:,} of {join.expected:,} arrived, needs {join.needed:,}",
                f"{join.open:,}",
                display.moment(join.deadline_at),
                self._missing(join, seen),
            )
            for join in reports
        ]
        rest = f"{count:,} or more" if count >= MAX_STATES else f"{count:,}"
        note = f"{rest} in all; these are the first." if count > len(rows) else ""
        columns = ("Join", "Outcome", "Arrivals", "Open", "Deadline", "Missing")
        return Table("Joins", columns, rows, note=note, if_empty="It leads to no join.")

    def _missing(self, join: JoinReport, seen: Mapping[str, int]) -> Any:
        """Who is missing and why; of manifests that the user may not see, only how many."""
        known = [it for it in join.missing if it.external_id in seen]
        lines: list[Any] = [display.side_by_side(self._named(seen, it.external_id), f"({it.reason})") for it in known]
        if join.is_gate_missing and join.outcome in UNDECIDED:
            lines.append("its parent, by whose outcome alone it runs")
        if rest := join.missing_count - len(known):
            lines.append(f"{rest:,} {'more' if known else 'in all'}")
        return display.listed(lines) if lines else display.NOTHING

    def _named(self, seen: Mapping[str, int], name: str) -> Any:
        return display.link_to(self.admin_site, Manifest, seen[name], name) if name in seen else UNSEEN

    def _find_by_name(self, request: HttpRequest, names: Iterable[str]) -> dict[str, int]:
        """The ids of the manifests with these names that the user may see: one query."""
        found = self.visible(request, Manifest).filter(external_id__in=set(names))
        return dict(found.order_by().values_list("external_id", "pk"))

    def _count_executions(self, request: HttpRequest, run: GraphRun) -> list[tuple[str, str, int]]:
        """How many executions of the run are in which state, by workflow: one query."""
        members = self.visible(request, Metadata).filter(pk__in=run.executions().order_by().values("pk"))
        counted = members.order_by().values_list("state", "workflow").annotate(number=Count("pk"))
        return list(counted.order_by("state", "workflow")[:MAX_COUNTS])

    def _sees_all_of(self, request: HttpRequest, run: GraphRun) -> bool:
        work: dict[type[Any], Any] = {
            Metadata: run.executions().order_by(),
            WorkQueue: WorkQueue.objects.queued().filter(run=run.pk).order_by(),
        }
        return all(
            self.sees_all(request, model)
            or not rows.exclude(pk__in=self.visible(request, model).order_by().values("pk")).exists()
            for model, rows in work.items()
        )


def _load_open_work(run: GraphRun) -> list[tuple[str, str]]:
    """The open items that a run waits for, by name and state: running or pending, queued, due; the oldest first."""
    active = Metadata.objects.of_run(run.pk).active()
    queued = WorkQueue.objects.queued().filter(run=run.pk, has_tokens=True)
    due = ManifestState.objects.filter(due_run=run.pk, due_has_tokens=True)
    kinds: list[Any] = [
        rows.order_by().annotate(kind=Value(kind)).values_list(name, state, "kind", "pk")
        for kind, (rows, name, state) in enumerate(
            (
                (active, "manifest_external_id", "state"),
                (queued, "manifest_external_id", "status"),
                (due, "manifest__external_id", Value("due", output_field=CharField())),
            )
        )
    ]
    first, *others = kinds
    found = first.union(*others, all=True).order_by("kind", "pk")[: MAX_OPEN + 1]
    shared = [(work.external_id, work.standing) for work in find_shared_work(run, limit=MAX_OPEN + 1)]
    return [*((name, state) for name, state, *_ in found), *shared]


def _names(missing: Iterable[Missing]) -> list[str]:
    return [it.external_id for it in missing]
