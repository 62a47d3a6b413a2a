"""Filters of the lists: a fixed number of choices, or a text that the user types, regardless of the number of rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ORDER_VAR, SEARCH_VAR
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest

from chainsched.db.clock import database_now
from chainsched.domain.obstacles import Obstacle
from chainsched.domain.states import (
    BulkDecisionOutcome,
    BulkDecisionStatus,
    DeadLetterStatus,
    ExecutionState,
    QueueStatus,
)
from chainsched.models import DeadLetter, ManifestGroup, Metadata, WorkQueue
from chainsched.models.obstacles import has_met

ALL = "all"
MAX_TYPED = 200
MAX_DIGITS = 19
# Executions have no index by workflow, group or outcome, because every run of every job would pay for it; neither have
# dispatched queue rows. A filter looks at this many of the newest rows; older ones are found by their manifest.
NEWEST = 100_000


def newest(rows: QuerySet[Any]) -> QuerySet[Any]:
    """The rows that a filter without an index may scan: the newest ``NEWEST``."""
    last = rows.model.objects.order_by("-id").values_list("id", flat=True).first() or 0
    return rows.filter(id__gt=last - NEWEST)


class TypedFilter(admin.SimpleListFilter):
    """Asks for an exact text. It lists no choices, so its cost does not grow with their number."""

    template = "chainsched/admin/typed_filter.html"
    column = ""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[Any, str]]:
        return []

    def has_output(self) -> bool:
        return True

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        typed = self.value()
        return queryset.filter(**{self.column: typed[:MAX_TYPED].replace("\x00", "")}) if typed else queryset

    def choices(self, changelist: Any) -> Iterator[Any]:
        """The values for the template: the current text, and the other parameters of the address."""
        others = changelist.get_filters_params()
        kept = [(name, value) for name, values in others.items() if name != self.parameter_name for value in values]
        if changelist.query:
            kept.append((SEARCH_VAR, changelist.query))
        if order := changelist.params.get(ORDER_VAR):
            kept.append((ORDER_VAR, order))
        yield {"name": self.parameter_name, "typed": self.value() or "", "kept": kept}


def typed(title: str, column: str) -> type[TypedFilter]:
    """A filter by the exact text of a column."""
    name = column.rpartition("__")[0] or column
    attributes = {"title": title, "parameter_name": f"by_{name}", "column": column}
    return type(f"{name.title().replace('_', '')}Filter", (TypedFilter,), attributes)


def typed_among_newest(title: str, column: str) -> type[TypedFilter]:
    """A filter of executions by the exact text of a column without an index."""

    class AmongNewest(typed(title, column)):  # type: ignore[misc]
        """Looks at the newest executions only."""

        def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
            return newest(super().queryset(request, queryset)) if self.value() else queryset

    return AmongNewest


def typed_of_letters(title: str, column: str) -> type[TypedFilter]:
    """A filter of dead letters by a column of their manifest; of decided letters it looks at the newest only."""

    class OfLetters(typed(title, column)):  # type: ignore[misc]
        """A manifest has at most one letter that awaits a decision, so their number stays small."""

        def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
            found = super().queryset(request, queryset)
            is_decided = request.GET.get("status", LetterStatusFilter.default) != LetterStatusFilter.default
            return newest(found) if self.value() and is_decided else found

    return OfLetters


FINGERPRINT = "by_fingerprint"
WITHOUT_FINGERPRINT = "none"


class FingerprintFilter(TypedFilter):
    """Dead letters with the same fingerprint, or without one."""

    title = "fingerprint"
    parameter_name = FINGERPRINT
    column = "fingerprint"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() == WITHOUT_FINGERPRINT:
            return queryset.filter(fingerprint="")
        return super().queryset(request, queryset)


class ChosenFilter(admin.SimpleListFilter):
    """Fixed choices; a default applies until the user chooses another one, or all."""

    options: tuple[tuple[str, str], ...] = ()
    default = ""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[Any, str]]:
        return [*self.options, *([(ALL, "All")] if self.default else [])]

    def value(self) -> str | None:
        return super().value() or self.default or None

    def choices(self, changelist: Any) -> Iterator[Any]:
        offered = super().choices(changelist)
        if self.default:
            next(offered)  # Django's own "All", which without a parameter means the default
        return offered

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        chosen = self.value()
        return self.narrow(queryset, chosen) if chosen in dict(self.options) else queryset

    def narrow(self, rows: QuerySet[Any], chosen: Any) -> QuerySet[Any]:
        """The rows that match the choice."""
        raise NotImplementedError


class ManifestStateFilter(ChosenFilter):
    """Manifests by their open work, or by the obstacle that keeps them from running."""

    title = "state"
    parameter_name = "state"
    options = (
        ("running", "Running"),
        ("pending", "Pending"),
        ("queued", "Queued"),
        ("dead_letter", "Stopped by a dead letter"),
        ("idle", "Nothing open"),
        ("disabled", "Disabled"),
        ("retired", "Retired"),
        ("done", "Done"),
    )

    def narrow(self, rows: QuerySet[Any], chosen: Any) -> QuerySet[Any]:
        executions = Metadata.objects.active().filter(manifest=OuterRef("pk"))
        queued = Exists(WorkQueue.objects.queued().filter(manifest=OuterRef("pk")))
        letters = Exists(DeadLetter.objects.awaiting().filter(manifest=OuterRef("pk")))
        conditions: dict[str, Any] = {
            "running": Exists(executions.filter(state=ExecutionState.IN_PROGRESS)),
            "pending": Exists(executions.filter(state=ExecutionState.PENDING)),
            "queued": queued,
            "dead_letter": letters,
            "idle": ~Exists(executions) & ~queued & ~letters,
            "disabled": has_met([Obstacle.DISABLED]) | Q(group__in=_disabled_groups()),
            "retired": has_met([Obstacle.RETIRED]),
            "done": has_met([Obstacle.DONE]),
        }
        return rows.filter(conditions[chosen])


def _disabled_groups() -> list[int]:
    """Read in a query of its own: a condition on another table would keep the indexes of manifests from being used."""
    return list(ManifestGroup.objects.filter(is_enabled=False).values_list("id", flat=True))


class DueFilter(ChosenFilter):
    """Manifests by the time of their next run."""

    title = "next run"
    parameter_name = "due"
    options = (("now", "Due now"), ("hour", "Within the hour"), ("day", "Within a day"), ("never", "No alarm set"))

    def narrow(self, rows: QuerySet[Any], chosen: Any) -> QuerySet[Any]:
        if chosen == "never":
            return rows.filter(state__next_run_at__isnull=True)
        ahead = {"now": timedelta(0), "hour": timedelta(hours=1), "day": timedelta(days=1)}[chosen]
        return rows.filter(state__next_run_at__lte=database_now() + ahead)


class FailingFilter(ChosenFilter):
    """Manifests that have failed since their last success."""

    title = "failing"
    parameter_name = "failing"
    options = (("yes", "Failing"), ("no", "Not failing"))

    def narrow(self, rows: QuerySet[Any], chosen: Any) -> QuerySet[Any]:
        is_failing = Q(state__consecutive_failures__gt=0)
        return rows.filter(is_failing if chosen == "yes" else ~is_failing)


class ExecutionStateFilter(ChosenFilter):
    """Executions by state; those that have ended are searched among the newest."""

    title = "state"
    parameter_name = "state"
    options = tuple((state.value, state.name.replace("_", " ").capitalize()) for state in ExecutionState)

    def narrow(self, rows: QuerySet[Any], chosen: Any) -> QuerySet[Any]:
        found = rows.filter(state=chosen)
        return newest(found) if ExecutionState(chosen).is_terminal else found


class CreatedFilter(ChosenFilter):
    """Executions by the time of their dispatch."""

    title = "time"
    parameter_name = "since"
    options = (("hour", "Last hour"), ("day", "Last 24 hours"), ("week", "Last 7 days"))

    def narrow(self, rows: QuerySet[Any], chosen: Any) -> QuerySet[Any]:
        return newest(rows.filter(created_at__gte=since(chosen)))


# Queued rows that take no part in dispatch, because they could not be dispatched.
PUT_ASIDE = "put_aside"


class QueueStatusFilter(ChosenFilter):
    """Rows in line, unless the user chooses another status; dispatched rows are searched among the newest."""

    title = "status"
    parameter_name = "status"
    options = (*((status.value, status.name.capitalize()) for status in QueueStatus), (PUT_ASIDE, "Put aside"))
    default = QueueStatus.QUEUED.value

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return newest(queryset) if self.value() not in dict(self.options) else super().queryset(request, queryset)

    def narrow(self, rows: QuerySet[Any], chosen: Any) -> QuerySet[Any]:
        if chosen in (QueueStatus.QUEUED, PUT_ASIDE):
            return rows.filter(status=QueueStatus.QUEUED, put_aside_at__isnull=chosen == QueueStatus.QUEUED)
        found = rows.filter(status=chosen)
        return newest(found) if chosen == QueueStatus.DISPATCHED else found


class LetterStatusFilter(ChosenFilter):
    """Letters that await a decision, unless the user chooses another status."""

    title = "status"
    parameter_name = "status"
    options = tuple((status.value, status.name.replace("_", " ").capitalize()) for status in DeadLetterStatus)
    default = DeadLetterStatus.AWAITING_INTERVENTION.value

    def narrow(self, rows: QuerySet[Any], chosen: Any) -> QuerySet[Any]:
        return rows.filter(status=chosen)


class DeadLetteredFilter(ChosenFilter):
    """Dead letters by the time at which their run was given up."""

    title = "time"
    parameter_name = "since"
    options = CreatedFilter.options

    def narrow(self, rows: QuerySet[Any], chosen: Any) -> QuerySet[Any]:
        return rows.filter(dead_lettered_at__gte=since(chosen))


class BulkDecisionStatusFilter(ChosenFilter):
    """Bulk decisions by status."""

    title = "status"
    parameter_name = "status"
    options = tuple((status.value, status.name.replace("_", " ").capitalize()) for status in BulkDecisionStatus)

    def narrow(self, rows: QuerySet[Any], chosen: Any) -> QuerySet[Any]:
        return newest(rows.filter(status=chosen))


class NumberFilter(TypedFilter):
    """Rows by the number of another row; a text that is no number finds none."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        typed = self.value()
        if not typed:
            return queryset
        is_number = typed.isdecimal() and typed.isascii() and len(typed) < MAX_DIGITS
        return self.narrow(queryset, int(typed)) if is_number else queryset.none()

    def narrow(self, rows: QuerySet[Any], number: int) -> QuerySet[Any]:
        """The rows that belong to the row with this number."""
        raise NotImplementedError


class BulkDecisionFilter(NumberFilter):
    """The letters of one bulk decision, by its number."""

    title = "bulk decision"
    parameter_name = "by_bulk_decision"

    def narrow(self, rows: QuerySet[Any], number: int) -> QuerySet[Any]:
        return rows.filter(bulk_decision=number)


class RunFilter(NumberFilter):
    """The executions of one run of the graph, by its number, with those that stand for it besides another run."""

    title = "run"
    parameter_name = "by_run"

    def narrow(self, rows: QuerySet[Any], number: int) -> QuerySet[Any]:
        return rows.filter(pk__in=Metadata.objects.of_run(number).order_by().values("pk"))


class RunStateFilter(ChosenFilter):
    """Runs of the graph by whether something of them is open; cancelled ones are searched among the newest."""

    title = "state"
    parameter_name = "state"
    options = (("open", "Open"), ("closed", "Closed"), ("cancelled", "Cancelled"))

    def narrow(self, rows: QuerySet[Any], chosen: Any) -> QuerySet[Any]:
        if chosen == "cancelled":
            return newest(rows.filter(cancelled_at__isnull=False))
        return rows.filter(closed_at__isnull=chosen == "open", cancelled_at__isnull=True)


class BulkDecisionOutcomeFilter(ChosenFilter):
    """The letters of bulk decisions by outcome; among the newest, unless the user names a bulk decision."""

    title = "outcome"
    parameter_name = "outcome"
    options = tuple((outcome.value, outcome.name.capitalize()) for outcome in BulkDecisionOutcome)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        found = super().queryset(request, queryset)
        return found if request.GET.get(BulkDecisionFilter.parameter_name) or not self.value() else newest(found)

    def narrow(self, rows: QuerySet[Any], chosen: Any) -> QuerySet[Any]:
        return rows.filter(outcome=chosen)


class LivenessFilter(ChosenFilter):
    """Processes by whether they run, stopped or were lost."""

    title = "liveness"
    parameter_name = "is"
    options = (("running", "Alive or stale"), ("stopped", "Stopped"), ("lost", "Lost"))

    def narrow(self, rows: QuerySet[Any], chosen: Any) -> QuerySet[Any]:
        return {
            "running": rows.filter(stopped_at__isnull=True, lost_at__isnull=True),
            "stopped": rows.filter(stopped_at__isnull=False),
            "lost": rows.filter(lost_at__isnull=False),
        }[chosen]


def since(name: str) -> datetime:
    """The earliest time that a choice of time includes."""
    return database_now() - {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(days=7)}[name]
