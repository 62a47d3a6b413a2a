"""Executions: the causes of each, its outcome, and the executions that it led to."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from chainsched.admin.charts.tree import Leaf, Line, arrange, count_shown
from chainsched.admin.kit import display
from chainsched.admin.kit.filters import NEWEST, CreatedFilter, ExecutionStateFilter, RunFilter, typed_among_newest
from chainsched.admin.kit.manifest_search import FoundByManifest
from chainsched.admin.kit.operations import OperatingPage
from chainsched.admin.kit.page import HIDDEN
from chainsched.admin.kit.permissions import Verbs
from chainsched.admin.kit.sections import Fact, Facts, Node, Section, Table, Tree
from chainsched.db.id_in import id_in
from chainsched.domain.redaction import redact_text
from chainsched.domain.results import Ancestry
from chainsched.domain.states import ExecutionState
from chainsched.models import GraphRun, Manifest, ManifestGroup, Metadata, Process, TakenOver
from chainsched.operations import Operation

MAX_NODES = 200
MAX_EXPANDED = 50
MAX_READ = 2_000
MAX_COUNTED = 10_000
SHOWN_PAYLOADS = ("failure_traceback", "progress", "input", "output")


class MetadataPage(Verbs, FoundByManifest, OperatingPage):
    """Executions, newest first."""

    list_display = ("number", "manifest_name", "outcome", "failure", "attempt", "source", "started", "took")
    list_filter = (
        ExecutionStateFilter,
        CreatedFilter,
        typed_among_newest("workflow", "workflow"),
        typed_among_newest("group", "group__name"),
        typed_among_newest("failure type", "failure_type"),
        RunFilter,
    )
    ordering = ("-id",)
    search_help_text = (
        f"{FoundByManifest.search_help_text} Or an execution's whole uuid. "
        f"Filters look at the newest {NEWEST:,} executions."
    )
    sortable_by = ()
    target = "execution"

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find an execution by its uuid, which Django would compare as text and so without the index."""
        try:
            found = queryset.filter(external_id=UUID(search_term))
        except ValueError:
            found = queryset.none()
        # Manifests may be named by uuids as well.
        return (found, False) if found.exists() else super().get_search_results(request, queryset, search_term)

    def is_permitted(self, request: HttpRequest, row: Any, operation: Operation) -> bool:
        """A tree is cancelled as a whole, so only users who see all of it may cancel it."""
        if not super().is_permitted(request, row, operation):
            return False
        return operation is not self.operations["cancel_tree"] or self._sees_tree(request, row)

    @admin.display(description="id")
    def number(self, execution: Metadata) -> str:
        return f"#{execution.pk}"

    @admin.display(description="manifest")
    def manifest_name(self, execution: Metadata) -> str:
        return execution.manifest_external_id or display.NOTHING

    @admin.display(description="state")
    def outcome(self, execution: Metadata) -> Any:
        return display.standing(ExecutionState, execution.state)

    @admin.display(description="failure")
    def failure(self, execution: Metadata) -> str:
        return display.shorten(execution.failure_type, 40)

    @admin.display(description="started")
    def started(self, execution: Metadata) -> Any:
        return display.moment(execution.started_at)

    @admin.display(description="took")
    def took(self, execution: Metadata) -> str:
        ended, started = execution.ended_at, execution.started_at
        return display.duration(ended - started if ended and started else None)

    def sections(self, request: HttpRequest, row: Any) -> Iterable[Section]:
        yield self._outcome(request, row)
        yield self._times(row)
        ancestry = row.explain()
        yield self._causes(request, row, ancestry)
        yield self._tree(request, row, [row.pk, *(cause.execution_id for cause in ancestry.chain)])
        yield from self.payloads(request, row, *SHOWN_PAYLOADS)
        yield self.columns(row)

    def _outcome(self, request: HttpRequest, execution: Metadata) -> Facts:
        manifests = self.find(request, Manifest, [execution.manifest_id])
        groups = self.find(request, ManifestGroup, [execution.group_id])
        processes = self.find(request, Process, [execution.process_id])
        facts = [
            Fact("state", display.standing(ExecutionState, execution.state)),
            Fact("manifest", self.name(manifests, execution.manifest_id, execution.manifest_external_id)),
            Fact("group", self.name(groups, execution.group_id)),
            Fact("ran in", self.name(processes, execution.process_id)),
            Fact("attempt", execution.attempt),
        ]
        if execution.run_id is not None:
            facts += self._run(request, execution)
        if execution.cancel_requested:
            facts.append(Fact("asked to stop", redact_text(execution.cancel_reason) or "yes"))
        if execution.failure_type:
            facts += self._failure(request, execution)
        return Facts("Outcome", facts)

    def _failure(self, request: HttpRequest, execution: Metadata) -> Iterable[Fact]:
        """Its type and fingerprint; the reason, which may quote a payload, for those who may see payloads."""
        yield Fact("failure", execution.failure_type)
        yield Fact("fingerprint", execution.failure_fingerprint or display.NOTHING, "The same for similar failures.")
        is_shown = self.read_payloads(request, execution, "failure_reason", *SHOWN_PAYLOADS)
        yield Fact("reason", redact_text(execution.failure_reason)[: display.MAX_SHOWN] if is_shown else HIDDEN)

    def _run(self, request: HttpRequest, execution: Metadata) -> Iterable[Fact]:
        """The run of the graph that it is named after, and how many others it stands for."""
        runs = self.find(request, GraphRun, [execution.run_id])
        yield Fact("run", self.name(runs, execution.run_id), "The passage through the graph that it is a part of.")
        further = TakenOver.objects.filter(execution_id=execution.pk).count()
        if further:
            words = f"{further:,} further run{'' if further == 1 else 's'}"
            yield Fact("stands for", words, "It took them over while it waited.")

    def _times(self, execution: Metadata) -> Facts:
        names = ("scheduled_for", "created_at", "claimed_at", "started_at", "ended_at")
        facts = [Fact(name.replace("_", " "), display.moment(getattr(execution, name))) for name in names]
        return Facts("Times", [*facts, Fact("took", self.took(execution))])

    def _causes(self, request: HttpRequest, execution: Metadata, ancestry: Ancestry) -> Table:
        """The chain of causes up to the root; a cause that the user may not see has a line without details."""
        found = self.find(request, Metadata, [cause.execution_id for cause in ancestry.chain])
        rows = [
            (
                self.name(found, cause.execution_id, cause.name),
                display.standing(ExecutionState, cause.state),
                cause.reason,
            )
            if cause.execution_id in found
            else ("an execution that you may not see", "", "")
            for cause in ancestry.chain
        ]
        ids = (
            f"Correlation id {execution.external_id}, causation id {execution.causation_id or 'none'}, "
            f"root correlation id {ancestry.root_correlation_id or 'none'}."
        )
        cancelled = " Its tree was cancelled and gets no further work." if ancestry.is_tree_cancelled else ""
        return Table("Why it ran", ("Execution", "State", "Ran because"), rows, note=ids + cancelled)

    def _tree(self, request: HttpRequest, execution: Metadata, line: Collection[int]) -> Tree:
        """The tree that it belongs to. This execution and its causes are shown even if not all of the tree is read."""
        members = self.visible(request, Metadata).filter(pk__in=execution.tree().order_by().values("id"))
        columns = ("id", "parent_execution_id", "manifest_external_id", "workflow", "state")
        runs = {row[0]: Leaf(*row) for row in members.order_by("id").values_list(*columns)[: MAX_READ + 1]}
        is_cut = len(runs) > MAX_READ
        if is_cut:
            runs |= {row[0]: Leaf(*row) for row in members.filter(id_in(pk=line)).values_list(*columns)}
        lines = arrange(sorted(runs.values()), room=MAX_NODES, kept=line)
        nodes = [Node(self._words(shown), shown.depth, is_here=shown.run.pk == execution.pk) for shown in lines]
        total = _count(members) if is_cut else len(runs)
        rest = total - count_shown(lines)
        least = "at least " if total >= MAX_COUNTED else ""
        note = f"and {least}{rest:,} more" if rest > 0 else ""
        return Tree("Tree", nodes, note=note, is_collapsed=len(nodes) > MAX_EXPANDED)

    def _sees_tree(self, request: HttpRequest, execution: Metadata) -> bool:
        if self.sees_all(request, Metadata):
            return True
        seen = self.visible(request, Metadata).order_by().values("pk")
        return not execution.tree().order_by().exclude(pk__in=seen).exists()

    def _words(self, line: Line) -> Any:
        run = line.run
        if line.more:
            return display.side_by_side(
                f"and {line.more:,} more of {run.workflow}", display.standing(ExecutionState, run.state)
            )
        words = f"{run.name or run.workflow} #{run.pk}"
        return display.side_by_side(
            display.link_to(self.admin_site, Metadata, run.pk, words), display.standing(ExecutionState, run.state)
        )


def _count(members: QuerySet[Any]) -> int:
    return members.order_by()[:MAX_COUNTED].count()
