"""Bulk decisions: one decision for more dead letters than a request should write, its progress and the outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html

from chainsched.admin.kit import display
from chainsched.admin.kit.filters import BulkDecisionFilter, BulkDecisionOutcomeFilter, BulkDecisionStatusFilter
from chainsched.admin.kit.forms import ReasonForm
from chainsched.admin.kit.operations import OperatingPage, Question
from chainsched.admin.kit.page import ReadOnlyPage
from chainsched.admin.kit.permissions import Verbs
from chainsched.admin.kit.sections import Fact, Facts, Section, Table
from chainsched.db.clock import database_now
from chainsched.domain.redaction import redact_text
from chainsched.domain.states import BulkDecisionOutcome, BulkDecisionStatus, BulkDecisionVerb
from chainsched.flow.operate.bulk_decisions import request_bulk_decision
from chainsched.models import BulkDecision, BulkDecisionItem, DeadLetter
from chainsched.operations import Operation

MAX_CHOSEN = 50_000
PAGE = 2000
MAX_SKIPPED = 50
# The page that asks names the dependents of this many letters.
MAX_EXPLAINED = 500
MAX_SELECTION = 1000
IN_THE_BACKGROUND = (
    "A scheduler decides about them in the background, in batches; a page shows the progress and each outcome."
)


class DecidingAboutMany(OperatingPage):
    """Allows an action on more letters than a form can name, all that match the filters: schedulers carry it out."""

    def operate_on_many(self, request: HttpRequest, rows: QuerySet[Any], name: str) -> HttpResponse | None:
        """Ask about all letters that await a decision, or store the bulk decision if the request has an answer."""
        if request.POST.get("select_across") != "1":
            return super().operate_on_many(request, rows, name)
        operation = self.operations[name]
        is_answered = "confirmed" in request.POST
        ids = list(self._permitted(request, rows, operation, upto=_newest(request) if is_answered else None))
        if is_answered and request.POST.get("count") != str(len(ids)):
            self.message_user(
                request, "The selection has changed since it was shown; check it again.", messages.WARNING
            )
            ids, is_answered = list(self._permitted(request, rows, operation, upto=None)), False
        if not ids or len(ids) > MAX_CHOSEN:
            self.message_user(request, _refusal(ids), messages.ERROR)
            return None
        form = self.form_for(request, operation, [None], is_fresh=not is_answered)
        if not is_answered or not form.is_valid():
            return self._ask_about(request, rows, name, form, ids)
        return self._store(request, name, form, ids)

    def _permitted(self, request: HttpRequest, rows: Any, operation: Operation, *, upto: int | None) -> Iterator[int]:
        """The letters that the user sees, that await a decision, and that they may decide about, checked one by one."""
        awaiting = rows.awaiting().select_related(None).prefetch_related(None).defer("reason", "note").order_by("pk")
        shown = awaiting if upto is None else awaiting.filter(pk__lte=upto)
        found, last = 0, 0
        while found <= MAX_CHOSEN and (page := list(shown.filter(pk__gt=last)[:PAGE])):
            permitted = [letter.pk for letter in page if self.is_permitted(request, letter, operation)]
            found, last = found + len(permitted), page[-1].pk
            yield from permitted

    def _ask_about(
        self, request: HttpRequest, rows: QuerySet[Any], name: str, form: ReasonForm, ids: Sequence[int]
    ) -> HttpResponse:
        named = list(rows.filter(pk__in=ids[: self.max_named]).order_by("pk"))
        # Letters that are created after this page was shown are not part of the selection.
        hidden = [("select_across", "1"), ("newest", str(ids[-1])), (self.checkbox_name, str(ids[0]))]
        first = list(rows.filter(pk__in=ids[:MAX_EXPLAINED]))
        consequences = [IN_THE_BACKGROUND, *self.consequences(request, first, name)]
        return self.ask(request, name, Question(form, len(ids), named, hidden, consequences))

    def _store(self, request: HttpRequest, name: str, form: ReasonForm, ids: Sequence[int]) -> HttpResponse:
        reason = form.cleaned_data["reason"]
        bulk_decision = request_bulk_decision(
            BulkDecisionVerb(name),
            ids,
            by=request.user,
            note=reason,
            selection=request.GET.urlencode()[:MAX_SELECTION],
            now=database_now(),
        )
        self.message_user(
            request,
            f"{len(ids)} dead letters will be decided about by bulk decision {bulk_decision.pk}.",
            messages.SUCCESS,
        )
        if self.visible(request, BulkDecision).filter(pk=bulk_decision.pk).exists():
            return HttpResponseRedirect(
                reverse(f"{self.admin_site.name}:chainsched_bulkdecision_change", args=[bulk_decision.pk])
            )
        return HttpResponseRedirect(request.get_full_path())


def _newest(request: HttpRequest) -> int:
    posted = request.POST.get("newest", "")
    return int(posted) if posted.isdecimal() and len(posted) < 19 else 0


def _refusal(ids: Sequence[int]) -> str:
    if not ids:
        return "Nothing was done: none of them awaits a decision that you may make."
    return f"Nothing was done: a bulk decision takes at most {MAX_CHOSEN:,} letters. Narrow the list by its filters."


class BulkDecisionPage(Verbs, OperatingPage):
    """Bulk decisions, newest first."""

    list_display = ("number", "what", "standing", "progress", "asker", "asked")
    list_filter = (BulkDecisionStatusFilter,)
    people = ("asked_by",)
    ordering = ("-id",)
    sortable_by = ()
    target = "bulk_decision"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """All bulk decisions; only their own for users who do not see all dead letters."""
        rows = super().get_queryset(request)
        return rows if self.sees_all(request, DeadLetter) else rows.filter(asked_by=request.user)

    def has_cancel_permission(self, request: HttpRequest, row: Any = None) -> bool:
        """Users who may make this decision may cancel it."""
        verbs = {"retry": self.has_retry_permission, "acknowledge": self.has_acknowledge_permission}
        checks = [verbs[row.verb]] if row is not None and row.verb in verbs else list(verbs.values())
        return any(is_permitted(request) for is_permitted in checks)

    @admin.display(description="id")
    def number(self, bulk_decision: BulkDecision) -> str:
        return f"#{bulk_decision.pk}"

    @admin.display(description="bulk decision")
    def what(self, bulk_decision: BulkDecision) -> str:
        return f"{bulk_decision.get_verb_display()} {bulk_decision.total:,} dead letters"

    @admin.display(description="status")
    def standing(self, bulk_decision: BulkDecision) -> Any:
        return display.standing(BulkDecisionStatus, bulk_decision.status)

    @admin.display(description="progress")
    def progress(self, bulk_decision: BulkDecision) -> Any:
        ended = bulk_decision.total - bulk_decision.left
        bar = format_html('<progress max="{}" value="{}"></progress>', bulk_decision.total, ended)
        return display.side_by_side(bar, f"{ended:,} of {bulk_decision.total:,}")

    @admin.display(description="asked by")
    def asker(self, bulk_decision: BulkDecision) -> str:
        return str(bulk_decision.asked_by or "a deleted account")

    @admin.display(description="asked")
    def asked(self, bulk_decision: BulkDecision) -> Any:
        return display.moment(bulk_decision.created_at)

    def sections(self, request: HttpRequest, row: Any) -> Iterable[Section]:
        yield self._now(row)
        yield self._skipped(request, row)
        yield self.columns(row)

    def _now(self, bulk_decision: BulkDecision) -> Facts:
        facts = [
            Fact("bulk decision", self.what(bulk_decision)),
            Fact("status", self.standing(bulk_decision), _hint(bulk_decision)),
            Fact("progress", self.progress(bulk_decision)),
            Fact("decided about", self._listed(bulk_decision, BulkDecisionOutcome.DONE, bulk_decision.done_count)),
            Fact("left out", self._listed(bulk_decision, BulkDecisionOutcome.SKIPPED, bulk_decision.skipped_count)),
            Fact("still to do", self._listed(bulk_decision, BulkDecisionOutcome.WAITING, bulk_decision.left)),
            Fact("asked by", self.asker(bulk_decision)),
            Fact("note", redact_text(bulk_decision.note) or display.NOTHING),
            Fact(
                "filters",
                redact_text(bulk_decision.selection) or display.NOTHING,
                "The filters of the list when the user asked.",
            ),
            Fact("asked", self.asked(bulk_decision)),
            Fact("started", display.moment(bulk_decision.started_at)),
            Fact("finished", display.moment(bulk_decision.finished_at)),
        ]
        if bulk_decision.cancel_reason:
            facts.insert(2, Fact("cancelled because", redact_text(bulk_decision.cancel_reason)))
        return Facts("Bulk decision", facts)

    def _listed(self, bulk_decision: BulkDecision, outcome: BulkDecisionOutcome, number: int) -> Any:
        """A number with a link to the letters that it counts."""
        narrowed = {"by_bulk_decision": bulk_decision.pk, "outcome": outcome.value}
        return display.linked(
            display.address(self.admin_site, BulkDecisionItem, "changelist", **narrowed), f"{number:,}"
        )

    def _skipped(self, request: HttpRequest, bulk_decision: BulkDecision) -> Table:
        left_out = self.visible(request, BulkDecisionItem).filter(
            bulk_decision=bulk_decision.pk, outcome=BulkDecisionOutcome.SKIPPED
        )
        rows = list(left_out.order_by("id")[: MAX_SKIPPED + 1])
        letters = self.find(request, DeadLetter, [row.dead_letter_id for row in rows])
        cells = [(self.name(letters, row.dead_letter_id), redact_text(row.explanation)) for row in rows[:MAX_SKIPPED]]
        note = f"More than {MAX_SKIPPED}; these are the first." if len(rows) > MAX_SKIPPED else ""
        return Table("Left out", ("Dead letter", "Why"), cells, note=note)


class BulkDecisionItemPage(ReadOnlyPage):
    """The letters of bulk decisions, with the outcome of each."""

    list_display = ("number", "bulk_decision_link", "letter", "standing", "why", "decided")
    list_filter = (BulkDecisionOutcomeFilter, BulkDecisionFilter)
    ordering = ("-id",)
    sortable_by = ()

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """The letters of the bulk decisions that the user sees."""
        rows = super().get_queryset(request)
        return rows if self.sees_all(request, DeadLetter) else rows.filter(bulk_decision__asked_by=request.user)

    def enrich(self, request: HttpRequest, rows: Sequence[Any]) -> None:
        letters = self.find(request, DeadLetter, [row.dead_letter_id for row in rows])
        bulk_decisions = self.find(request, BulkDecision, [row.bulk_decision_id for row in rows])
        for row in rows:
            row.visible_letters, row.visible_bulk_decisions = letters, bulk_decisions

    @admin.display(description="id")
    def number(self, row: BulkDecisionItem) -> str:
        return f"#{row.pk}"

    @admin.display(description="bulk decision")
    def bulk_decision_link(self, row: Any) -> Any:
        return self.name(row.visible_bulk_decisions, row.bulk_decision_id, f"#{row.bulk_decision_id}")

    @admin.display(description="dead letter")
    def letter(self, row: Any) -> Any:
        return self.name(row.visible_letters, row.dead_letter_id)

    @admin.display(description="outcome")
    def standing(self, row: BulkDecisionItem) -> Any:
        return display.standing(BulkDecisionOutcome, row.outcome)

    @admin.display(description="explanation")
    def why(self, row: BulkDecisionItem) -> str:
        return redact_text(row.explanation) or display.NOTHING

    @admin.display(description="decided")
    def decided(self, row: BulkDecisionItem) -> Any:
        return display.moment(row.decided_at)

    def sections(self, request: HttpRequest, row: Any) -> Iterable[Section]:
        self.enrich(request, [row])
        facts = [
            Fact("bulk decision", self.bulk_decision_link(row)),
            Fact("dead letter", self.letter(row)),
            Fact("outcome", self.standing(row)),
            Fact("explanation", self.why(row)),
            Fact("decided", self.decided(row)),
        ]
        yield Facts("Letter of a bulk decision", facts)
        yield self.columns(row)


def _hint(bulk_decision: BulkDecision) -> str:
    return "Waiting for a scheduler to process it." if bulk_decision.status == BulkDecisionStatus.WAITING else ""
