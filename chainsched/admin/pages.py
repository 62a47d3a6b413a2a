"""One page a model: what its list shows, by what it is filtered, and by what rows are found.

Filters offer a fixed number of choices and searches begin at an indexed column, however many rows there are.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from chainsched.admin.read_only import ReadOnlyAdmin
from chainsched.models import DeadLetter, Loop, Manifest, ManifestGroup, ManifestState, Metadata, Process, WorkQueue

BY_MANIFEST = "The beginning of a manifest's external id, with its capitals."


@admin.register(ManifestGroup)
class ManifestGroupAdmin(ReadOnlyAdmin):
    """Groups with their limits and switches."""

    list_display = ("name", "max_active_jobs", "priority", "is_enabled")
    list_filter = ("is_enabled",)
    search_fields = ("name__startswith",)
    search_help_text = "The beginning of a group's name, with its capitals."
    sortable_by = ("name",)


@admin.register(Manifest)
class ManifestAdmin(ReadOnlyAdmin):
    """Manifests with what makes them run and where they stand."""

    list_display = (
        "external_id",
        "schedule_type",
        "is_enabled",
        "next_run_at",
        "last_successful_run",
        "consecutive_failures",
        "depends_on",
        "group",
        "workflow",
    )
    list_filter = ("schedule_type", "is_enabled", "is_declared")
    list_select_related = ("group", "depends_on", "state")
    search_fields = ("external_id__startswith",)
    search_help_text = BY_MANIFEST
    sortable_by = ("external_id",)


@admin.register(ManifestState)
class ManifestStateAdmin(ReadOnlyAdmin):
    """What the engine knows about each manifest."""

    list_display = ("manifest", "next_run_at", "consecutive_failures", "last_successful_run", "last_finished_run")
    list_filter = (("next_run_at", admin.EmptyFieldListFilter),)
    list_select_related = ("manifest",)
    ordering = ("manifest_id",)
    search_fields = ("manifest__external_id__startswith",)
    search_help_text = BY_MANIFEST
    sortable_by = ("next_run_at",)


@admin.register(WorkQueue)
class WorkQueueAdmin(ReadOnlyAdmin):
    """The queue, newest first."""

    list_display = (
        "id",
        "manifest_external_id",
        "workflow",
        "status",
        "priority",
        "source",
        "attempt",
        "scheduled_for",
        "not_before",
        "execution_id",
    )
    list_filter = ("status", "source")
    ordering = ("-id",)
    sortable_by = ("id",)


@admin.register(Metadata)
class MetadataAdmin(ReadOnlyAdmin):
    """Executions, newest first."""

    list_display = (
        "id",
        "manifest_external_id",
        "state",
        "failure_type",
        "attempt",
        "source",
        "scheduled_for",
        "started_at",
        "ended_at",
        "workflow",
    )
    list_filter = ("state", "source")
    ordering = ("-id",)
    search_fields = ("manifest__external_id__startswith",)
    search_help_text = BY_MANIFEST + " Or an execution's whole external id."
    sortable_by = ("id",)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find an execution by its uuid, which Django would compare as text and so without the index."""
        try:
            return queryset.filter(external_id=UUID(search_term)), False
        except ValueError:
            return super().get_search_results(request, queryset, search_term)


@admin.register(DeadLetter)
class DeadLetterAdmin(ReadOnlyAdmin):
    """Dead letters, newest first."""

    list_display = ("id", "manifest_name", "status", "reason", "failure_count", "dead_lettered_at", "resolved_at")
    list_filter = ("status",)
    list_select_related = ("manifest",)
    ordering = ("-id",)
    search_fields = ("manifest__external_id__startswith",)
    search_help_text = BY_MANIFEST
    sortable_by = ("id",)

    @admin.display(description="manifest")
    def manifest_name(self, letter: DeadLetter) -> str | None:
        """The manifest's name; its id if it was removed."""
        if letter.manifest is not None:
            return str(letter.manifest.external_id)
        return None if letter.manifest_id is None else f"#{letter.manifest_id} (removed)"


@admin.register(Process)
class ProcessAdmin(ReadOnlyAdmin):
    """Schedulers and workers, newest first."""

    list_display = ("id", "kind", "host", "pid", "started_at", "heartbeat_at", "stopped_at", "lost_at")
    list_filter = (("stopped_at", admin.EmptyFieldListFilter), ("lost_at", admin.EmptyFieldListFilter))
    ordering = ("-id",)
    sortable_by = ("id",)


@admin.register(Loop)
class LoopAdmin(ReadOnlyAdmin):
    """The rows that make something exclusive."""

    list_display = ("name", "turned_at")
    ordering = ("name",)
    sortable_by = ("name",)
