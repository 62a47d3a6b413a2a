"""Triage: the letters that await a decision, by kind of failure, so that one decision covers all of the same kind."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.core.exceptions import PermissionDenied
from django.db.models.functions import Left
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse

from chainsched.admin.kit import display
from chainsched.admin.kit.filters import FINGERPRINT, WITHOUT_FINGERPRINT
from chainsched.admin.kit.page import ReadOnlyPage
from chainsched.domain.redaction import redact_text
from chainsched.models import DeadLetter, Manifest, ManifestGroup, Metadata

# Kinds of failure on the page, letters of each kind for which the manifests are read, and names shown of each kind.
MAX_KINDS = 50
MAX_SAMPLED = 20
MAX_NAMED = 5
# Characters of a reason that are read; far more than is shown, so that redaction sees the text around a secret.
MAX_REASON = 4096


@dataclass(frozen=True, slots=True)
class Kind:
    """Failures of the same kind: how many await a decision, since when, an example, and their groups and workflows."""

    fingerprint: str
    number: int
    first_at: datetime
    last_at: datetime
    example_id: int
    failure: str
    groups: Sequence[Any]
    workflows: Sequence[str]
    address: str

    @property
    def first(self) -> Any:
        return display.moment(self.first_at)

    @property
    def last(self) -> Any:
        return display.moment(self.last_at)


class TriagePage(ReadOnlyPage):
    """Adds the page of kinds of failures to the list of dead letters."""

    def get_urls(self) -> list[URLPattern]:
        """The address of the triage, before Django's own."""
        view = self.admin_site.admin_view(self.triage_view)
        return [path("triage/", view, name="chainsched_deadletter_triage"), *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """The list, with a link to the triage."""
        link = {"url": self._address("triage"), "words": "Triage: by kind of failure"}
        return super().changelist_view(request, {"page_links": [link], **(extra_context or {})})

    def triage_view(self, request: HttpRequest) -> HttpResponse:
        """The kinds of failures that await a decision, the most frequent first."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        letters: Any = self.get_queryset(request)
        awaiting = letters.awaiting()
        counted = list(awaiting.count_by_fingerprint()[: MAX_KINDS + 1])
        actions = self.get_actions(request)
        context = {
            **self.admin_site.each_context(request),
            "title": "Dead letters by kind of failure",
            "opts": self.opts,
            "kinds": self._kinds(request, awaiting, counted[:MAX_KINDS]),
            "is_cut": len(counted) > MAX_KINDS,
            "max_kinds": MAX_KINDS,
            "max_sampled": MAX_SAMPLED,
            "decisions": [(name, f"{name.capitalize()} all") for name in ("retry", "acknowledge") if name in actions],
            "list_url": self._address("changelist"),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "chainsched/admin/triage.html", context)

    def failures(self, request: HttpRequest, letters: Sequence[Any]) -> dict[int, str]:
        """The beginning of each letter's reason, redacted; the type of its failure if the user may not see payloads."""
        readable = {letter.pk for letter in letters if self.has_payloads_permission(request, letter)}
        hidden = {letter.pk: letter.execution_id for letter in letters if letter.pk not in readable}
        rows = DeadLetter.objects.filter(pk__in=readable) if readable else DeadLetter.objects.none()
        reasons = {pk: redact_text(reason) for pk, reason in rows.values_list("pk", Left("reason", MAX_REASON))}
        types = self._types_of_failures(request, set(hidden.values()) - {None})
        return reasons | {pk: types.get(execution_id, "") for pk, execution_id in hidden.items()}

    def _types_of_failures(self, request: HttpRequest, execution_ids: Collection[Any]) -> dict[Any, str]:
        if not execution_ids:
            return {}
        seen = self.visible(request, Metadata).filter(pk__in=execution_ids).order_by()
        return dict(seen.values_list("pk", "failure_type"))

    def _address(self, view: str) -> str:
        return reverse(f"{self.admin_site.name}:chainsched_deadletter_{view}")

    def _kinds(self, request: HttpRequest, awaiting: Any, counted: Sequence[Mapping[str, Any]]) -> list[Kind]:
        """The kinds with their details, in a number of queries that does not grow with the kinds."""
        sampled = list(awaiting.newest_by_fingerprint([row["fingerprint"] for row in counted], number=MAX_SAMPLED))
        newest = awaiting.filter(pk__in=[row["example"] for row in counted]).order_by()
        failures = self.failures(request, list(newest))
        columns = ("id", "group_id", "workflow")
        manifests = self.visible(request, Manifest).filter(pk__in={manifest_id for _, manifest_id in sampled} - {None})
        rows = {row["id"]: row for row in manifests.order_by().values(*columns)}
        groups = self.find(request, ManifestGroup, [row["group_id"] for row in rows.values()])
        return [
            Kind(
                fingerprint=row["fingerprint"],
                number=row["number"],
                first_at=row["first_at"],
                last_at=row["last_at"],
                example_id=row["example"],
                failure=display.shorten(failures.get(row["example"], "")),
                groups=_few(self.name(groups, id_) for id_ in sorted(_distinct(members, "group_id")) if id_ in groups),
                workflows=_few(sorted(_distinct(members, "workflow"))),
                address=_narrowed(self._address("changelist"), row["fingerprint"]),
            )
            for row in counted
            for members in [[rows[id_] for print_, id_ in sampled if print_ == row["fingerprint"] and id_ in rows]]
        ]


def _distinct(rows: Iterable[Mapping[str, Any]], column: str) -> list[Any]:
    return list(dict.fromkeys(row[column] for row in rows))


def _few(values: Iterable[Any]) -> list[Any]:
    """The first of the values, and an ellipsis if there are more."""
    found = list(values)
    return [*found[:MAX_NAMED], *(["…"] if len(found) > MAX_NAMED else [])]


def _narrowed(address: str, fingerprint: str) -> str:
    """The address of the list of letters that await a decision with this fingerprint."""
    return f"{address}?{urlencode({FINGERPRINT: fingerprint or WITHOUT_FINGERPRINT})}"
