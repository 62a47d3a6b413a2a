"""The search of the lists: the beginning of a manifest's external id, which is looked up first, by its index."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest

from chainsched.admin.kit.mixin_base import Mixin
from chainsched.models import Manifest

# A search shows the rows of this many manifests; if more of them match, the user has to type a longer beginning.
MAX_MATCHES = 200


class FoundByManifest(Mixin):
    """Finds the rows of manifests by the beginning of the external id, in two queries that both use an index."""

    # The column that refers to the manifest.
    manifest_column = "manifest"
    search_fields = ("manifest__external_id__startswith",)
    search_help_text = (
        f"The beginning of a manifest's external id, case-sensitive; finds rows of the first {MAX_MATCHES} manifests."
    )

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """The rows of the manifests found, out of the manifests that this user may see."""
        if not search_term:
            return queryset, False
        named = self._manifests(request).filter(external_id__startswith=search_term).order_by("external_id")
        found = list(named.values_list("id", flat=True)[:MAX_MATCHES])
        return queryset.filter(**{f"{self.manifest_column}__in": found}), False

    def _manifests(self, request: HttpRequest) -> QuerySet[Any]:
        if self.admin_site.is_registered(Manifest):
            return self.admin_site.get_model_admin(Manifest).get_queryset(request)
        return Manifest.objects.all()
