"""Dead letters: the runs that failed for good, the reasons, and the decisions about them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from chainsched.admin.kit import display
from chainsched.admin.kit.filters import DeadLetteredFilter, FingerprintFilter, LetterStatusFilter, typed_of_letters
from chainsched.admin.kit.manifest_search import FoundByManifest
from chainsched.admin.kit.page import HIDDEN
from chainsched.admin.kit.permissions import Verbs
from chainsched.admin.kit.sections import Fact, Facts, Section, Table
from chainsched.admin.pages.bulk_decisions import DecidingAboutMany
from chainsched.admin.pages.triage import TriagePage
from chainsched.domain.known import is_known
from chainsched.domain.redaction import redact_text
from chainsched.domain.states import DeadLetterStatus
from chainsched.models import DeadLetter, Manifest, Metadata
from chainsched.models.downstream import load_downstream

MAX_FINGERPRINT = 8
# Dependents of a retry that are read, and those that are named.
MAX_DOWNSTREAM = 500
MAX_CONSEQUENCES = 10


def _counted(number: int) -> str:
    return f"{number} or more" if number == MAX_DOWNSTREAM else str(number)


class DeadLetterPage(Verbs, FoundByManifest, TriagePage, DecidingAboutMany):
    """Letters that await a decision, newest first; on request also those that were decided about."""

    list_display = ("number", "manifest_name", "standing", "why", "attempts", "alike", "since")
    list_filter = (
        LetterStatusFilter,
        DeadLetteredFilter,
        FingerprintFilter,
        typed_of_letters("group", "manifest__group__name"),
        typed_of_letters("workflow", "manifest__workflow"),
    )
    people = ("resolved_by",)
    ordering = ("-dead_lettered_at", "-id")
    sortable_by = ()
    target = "letter"

    def enrich(self, request: HttpRequest, rows: Sequence[Any]) -> None:
        visible = self.find(request, Manifest, [letter.manifest_id for letter in rows])
        failures = self.failures(request, rows)
        for letter in rows:
            letter.visible_manifests = visible
            letter.failure = failures[letter.pk]

    @admin.display(description="id")
    def number(self, letter: DeadLetter) -> str:
        return f"#{letter.pk}"

    @admin.display(description="manifest")
    def manifest_name(self, letter: Any) -> Any:
        """A link to the manifest; its id if it was removed or this user may not see it."""
        is_lost = letter.manifest_id is not None and letter.manifest_id not in letter.visible_manifests
        return self.name(
            letter.visible_manifests, letter.manifest_id, f"#{letter.manifest_id} (gone)" if is_lost else ""
        )

    @admin.display(description="status")
    def standing(self, letter: DeadLetter) -> Any:
        if not is_known(DeadLetterStatus, letter.status):
            return display.standing(DeadLetterStatus, letter.status)
        return display.badge(letter.status, letter.status.partition("_")[0])

    @admin.display(description="failure")
    def why(self, letter: Any) -> str:
        """The reason; for users who may not see payloads, the type of the failure."""
        return display.shorten(letter.failure)

    @admin.display(description="fingerprint")
    def alike(self, letter: DeadLetter) -> str:
        return letter.fingerprint[:MAX_FINGERPRINT] or display.NOTHING

    @admin.display(description="given up")
    def since(self, letter: DeadLetter) -> Any:
        return display.moment(letter.dead_lettered_at)

    @admin.display(description="attempts")
    def attempts(self, letter: DeadLetter) -> int:
        return letter.failure_count

    def sections(self, request: HttpRequest, row: Any) -> Iterable[Section]:
        self.enrich(request, [row])
        executions = self.find(request, Metadata, [row.execution_id, row.retry_execution_id])
        yield self._failure(request, row, executions)
        yield self._decision(row, executions)
        yield from self._downstream(request, row)
        yield from self._payloads(request, executions.get(row.execution_id))
        yield self.columns(row)

    def _failure(self, request: HttpRequest, letter: DeadLetter, executions: dict[Any, Any]) -> Facts:
        last = executions.get(letter.execution_id)
        is_shown = self.read_payloads(request, letter, "reason")
        facts = [
            Fact("status", display.standing(DeadLetterStatus, letter.status)),
            Fact("manifest", self.manifest_name(letter), "While it awaits a decision, its manifest does not run."),
            Fact("last attempt", self.name(executions, letter.execution_id)),
            Fact("failure", last.failure_type if last else display.NOTHING),
            Fact("reason", redact_text(letter.reason)[: display.MAX_SHOWN] if is_shown else HIDDEN),
            Fact("failed attempts", letter.failure_count),
            Fact("fingerprint", letter.fingerprint or display.NOTHING, "The same for similar failures."),
            Fact("given up", display.moment(letter.dead_lettered_at)),
        ]
        return Facts("Failure", facts)

    def _decision(self, letter: DeadLetter, executions: dict[Any, Any]) -> Facts:
        if letter.is_awaiting:
            return Facts("Decision", [Fact("decision", "Awaited: retry or acknowledge it.")])
        facts = [
            Fact("decided", display.moment(letter.resolved_at)),
            Fact("by", letter.resolved_by or "the system"),
            Fact("note", redact_text(letter.note) or display.NOTHING),
            Fact("retry", self.name(executions, letter.retry_execution_id)),
        ]
        return Facts("Decision", facts)

    def consequences(self, request: HttpRequest, rows: Sequence[Any], name: str) -> Sequence[str]:
        """The dependents that run after a retry, if it succeeds."""
        if name != "retry":
            return ()
        found = self._would_run([letter.manifest_id for letter in rows if letter.is_awaiting])
        seen = self.visible(request, Manifest).filter(pk__in=found)
        names = list(seen.order_by("depth", "external_id").values_list("external_id", flat=True)[:MAX_DOWNSTREAM])
        number = _counted(seen.count() if names else 0)
        listed = ", ".join(names[:MAX_CONSEQUENCES]) + (" and others" if len(names) > MAX_CONSEQUENCES else "")
        return (f"Dependents that run after a success, {number} in all: {listed}.",) if names else ()

    def _downstream(self, request: HttpRequest, letter: DeadLetter) -> Iterable[Section]:
        """The manifests that run after a successful retry, on every level below; only those that the user may see."""
        if not letter.is_awaiting:
            return
        seen = self.visible(request, Manifest).filter(pk__in=self._would_run([letter.manifest_id]))
        manifests = list(seen.order_by("depth", "external_id"))
        rows = [
            (display.link(self.admin_site, manifest), manifest.group.name, manifest.workflow)
            for manifest in manifests[:MAX_CONSEQUENCES]
        ]
        note = f"{_counted(len(manifests))} in all; these are the nearest." if len(manifests) > len(rows) else ""
        yield Table("Runs next if the retry succeeds", ("Manifest", "Group", "Workflow"), rows, note=note)

    def _would_run(self, manifest_ids: Iterable[int | None]) -> list[int]:
        return load_downstream({id_ for id_ in manifest_ids if id_ is not None}, limit=MAX_DOWNSTREAM)

    def _payloads(self, request: HttpRequest, execution: Metadata | None) -> Iterable[Section]:
        if execution is not None:
            yield from self.payloads(request, execution, "failure_traceback", "input")
