"""What all pages share: they only show, keep payloads from most eyes, and never follow a dangling reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db import models
from django.http import HttpRequest

# What jobs were called with, what they returned, and what was on the stack when they failed.
PAYLOADS = frozenset({"input", "output", "trigger_input", "failure_traceback"})

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[models.Model]
else:
    _ModelAdmin = admin.ModelAdmin  # generic for type checkers only


class ReadOnlyAdmin(_ModelAdmin):
    """Shows rows to whoever has the view permission and lets nobody, not even a superuser, change them."""

    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False

    def get_queryset(self, request: HttpRequest) -> models.QuerySet[Any]:
        """Rows without their payloads, which may be large; a page that shows one fetches it."""
        names = {field.name for field in self.opts.concrete_fields}
        return super().get_queryset(request).defer(*sorted(PAYLOADS & names))

    def get_fields(self, request: HttpRequest, obj: models.Model | None = None) -> list[Any]:
        """Every column that this user may see, references without a constraint as plain ids."""
        return [
            _shown_name(field)
            for field in self.opts.concrete_fields
            if field.name not in PAYLOADS or _may_see_payloads(request)
        ]

    def get_readonly_fields(self, request: HttpRequest, obj: models.Model | None = None) -> list[Any]:
        return self.get_fields(request, obj)

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest) -> bool:
        """Refuse filters over payloads: answers to guesses would give away what is not shown."""
        if PAYLOADS & set(lookup.split("__")):
            return False
        return super().lookup_allowed(lookup, value, request)


def _shown_name(field: models.Field[Any, Any]) -> str:
    """The name under which a column is shown: what a reference without constraint names may be gone."""
    is_loose = field.is_relation and not getattr(field, "db_constraint", True)
    return field.attname if is_loose else field.name


def _may_see_payloads(request: HttpRequest) -> bool:
    return bool(getattr(request.user, "is_superuser", False))
