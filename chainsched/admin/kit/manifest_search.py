"""The search of the lists: the beginning of a manifest's name, looked up by its index before anything else is."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest

from chainsched.admin.kit.mixin_base import Mixin
from chainsched.models import Manifest

# Manifests whose rows a search leads to; a beginning that more of them share is too short.
MAX_MATCHES = 200


class FoundByManifest(Mixin):
    """Finds the rows of the manifests whose external id begins as typed, in two steps that both have their index."""

    search_fields = ("manifest__external_id__startswith",)
    search_help_text = (
        f"The beginning of a manifest's external id, with its capitals; the first {MAX_MATCHES} manifests count."
    )

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """The rows of the manifests found, among those that the project lets this user see."""
        if not search_term:
            return queryset, False
        named = self._manifests(request).filter(external_id__startswith=search_term).order_by("external_id")
        return queryset.filter(manifest__in=list(named.values_list("id", flat=True)[:MAX_MATCHES])), False

    def _manifests(self, request: HttpRequest) -> QuerySet[Any]:
        if self.admin_site.is_registered(Manifest):
            return self.admin_site.get_model_admin(Manifest).get_queryset(request)
        return Manifest.objects.all()
