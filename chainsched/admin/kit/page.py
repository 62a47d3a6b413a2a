"""The base of all pages: read-only, payloads by permission only, and links to other rows that the user may see.

The classes in this package are mixins without a base of their own, to be combined with Django's ``ModelAdmin`` or with
that of a theme.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.contrib.admin import AdminSite
from django.contrib.admin.options import IncorrectLookupParameters, ShowFacets
from django.contrib.admin.views.main import SEARCH_VAR
from django.db import models
from django.http import HttpRequest, HttpResponse

from chainsched.admin.kit import display
from chainsched.admin.kit.mixin_base import Mixin
from chainsched.admin.kit.paginator import MAX_COUNTED, BoundedPaginator
from chainsched.admin.kit.sections import Fact, Facts, Passage, Section
from chainsched.db.fields import IdList, with_users
from chainsched.domain.redaction import redact_text
from chainsched.flow.transactions import index_reads

# The inputs and outputs of jobs, the progress that they report, and the texts of their failures, which quote them.
PAYLOADS = frozenset({"input", "output", "trigger_input", "progress", "failure_reason", "failure_traceback", "reason"})
VIEW_PAYLOADS = "chainsched.view_payloads"
HIDDEN = f"Hidden: seeing them requires the permission {VIEW_PAYLOADS}."
SHOW_ALL = "all"
NUL = "\x00"
MAX_KEY = 2**63 - 1
MAX_DIGITS = len(str(-MAX_KEY))


class ReadOnlyPage(Mixin):
    """Shows rows to users with the view permission; no user, not even a superuser, can edit them."""

    change_form_template = "chainsched/admin/change_form.html"
    change_list_template = "chainsched/admin/change_list.html"
    list_per_page = 50
    list_max_show_all = 200
    paginator = BoundedPaginator
    show_facets = ShowFacets.NEVER
    show_full_result_count = False
    fields = ()
    # Related rows to read in the same query, and references to users, who may be in another database.
    related: Sequence[str] = ()
    people: Sequence[str] = ()

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_payloads_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whether the user may see payloads, reasons and tracebacks; a project may narrow it by row."""
        return _holds(request, VIEW_PAYLOADS)

    def get_queryset(self, request: HttpRequest) -> models.QuerySet[Any]:
        """Rows without their payloads, which may be large; a page that shows a payload reads it."""
        names = {field.name for field in self.opts.concrete_fields}
        rows = super().get_queryset(request).defer(*sorted(PAYLOADS & names))
        rows = rows.prefetch_related(*map(with_users, self.people)) if self.people else rows
        return rows.select_related(*self.related) if self.related else rows

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest) -> bool:
        """Refuse filters by payloads: a user could guess hidden values and check the guesses."""
        if PAYLOADS & set(lookup.split("__")):
            return False
        return super().lookup_allowed(lookup, value, request)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """The row of an address; None also for ids that no column can hold, which the database would refuse."""
        field = self.opts.pk if from_field is None else self.opts.get_field(from_field)
        return super().get_object(request, object_id, from_field) if may_be_key(field, object_id) else None

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """The list; the values that its rows need from other tables are read for all of them at once.

        Values in the address that no column can hold are answered as Django answers filters that do not exist.
        """
        if any(NUL in value for name, values in request.GET.lists() if name != SEARCH_VAR for value in values):
            raise IncorrectLookupParameters
        try:
            with index_reads():
                changelist: Any = super().get_changelist_instance(request)
                changelist.is_cut = changelist.result_count >= MAX_COUNTED
                self.enrich(request, list(changelist.result_list))
        except OverflowError as error:
            raise IncorrectLookupParameters(str(error)) from error
        return changelist

    def enrich(self, request: HttpRequest, rows: Sequence[Any]) -> None:
        """Read the values for the columns of these rows, in a number of queries that does not grow with the rows."""

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        """The page of a row: its sections in place of Django's form."""
        row = context.get("original")
        if row is not None:
            title = str(self.opts.verbose_name).capitalize()
            context |= {"sections": list(self.sections(request, row)), "action_form": None, "title": title}
        return super().render_change_form(request, context, *args, **kwargs)

    def sections(self, request: HttpRequest, row: Any) -> Iterable[Section]:
        """The sections of the page of this row, from top to bottom."""
        yield self.columns(row)

    def columns(self, row: Any, *, title: str = "All columns", is_collapsed: bool = True) -> Facts:
        """Every column that is no payload; references as plain numbers, because their rows may have been deleted."""
        fields = [field for field in type(row)._meta.concrete_fields if field.name not in PAYLOADS]
        facts = [Fact(str(field.verbose_name), _shown(row, field), str(field.help_text)) for field in fields]
        return Facts(title, facts, is_collapsed=is_collapsed)

    def payloads(self, request: HttpRequest, row: Any, *names: str) -> Iterable[Section]:
        """The payloads of a row that are not empty, or the name of the permission that is missing."""
        if not self.read_payloads(request, row, *names):
            yield Facts("Payloads", [Fact(", ".join(names).replace("_", " "), HIDDEN)])
            return
        for name in names:
            value = getattr(row, name)
            if value not in (None, ""):
                text = display.passage(value)
                shown = text if SHOW_ALL in request.GET else text[: display.MAX_SHOWN]
                yield Passage(name.replace("_", " ").capitalize(), shown, left_out=len(text) - len(shown))

    def read_payloads(self, request: HttpRequest, row: Any, *names: str) -> bool:
        """Read these payloads of a row, all at once; False, and nothing is read, if the user may not see them."""
        if not self.has_payloads_permission(request, row):
            return False
        if missing := row.get_deferred_fields() & set(names):
            row.refresh_from_db(fields=missing)
        return True

    def visible(self, request: HttpRequest, model: type[models.Model]) -> Any:
        """The rows of a model that this user may see on its own page here; none if there is no such page."""
        return visible(self.admin_site, request, model)

    def sees_all(self, request: HttpRequest, model: type[models.Model]) -> bool:
        """Whether this user sees all rows of a model; a project may narrow its page to some of them."""
        if not self.admin_site.is_registered(model):
            return True
        return not is_narrowed(self.admin_site.get_model_admin(model).get_queryset(request))

    def find(self, request: HttpRequest, model: type[models.Model], keys: Iterable[Any]) -> dict[Any, Any]:
        """The rows with these keys, as far as this user may see them: one query, or none."""
        wanted = {key for key in keys if key is not None}
        return dict(self.visible(request, model).in_bulk(wanted)) if wanted else {}

    def name(self, found: dict[Any, Any], key: Any, words: str = "") -> Any:
        """A link to the row with this key if it is among those found; otherwise its name without a link."""
        if key in found:
            return display.link(self.admin_site, found[key], words)
        return words or (display.NOTHING if key is None else f"#{key}")


def may_be_key(field: Any, text: str) -> bool:
    """Whether a column can hold this text as a key."""
    if not isinstance(field, models.IntegerField):
        return NUL not in text
    is_number = text.isascii() and text.removeprefix("-").isdigit() and len(text) <= MAX_DIGITS
    return is_number and -MAX_KEY <= int(text) <= MAX_KEY


def visible(site: AdminSite, request: HttpRequest, model: type[models.Model]) -> Any:
    """The rows of a model that this user may see on its own page of this admin; none if there is no such page."""
    if not site.is_registered(model):
        return model.objects.none()  # type: ignore[attr-defined]
    page = site.get_model_admin(model)
    rows = page.get_queryset(request)
    return rows if page.has_view_permission(request) else rows.none()


def is_narrowed(rows: models.QuerySet[Any]) -> bool:
    """Whether a project narrows these rows of a page to some of them for its user."""
    return bool(rows.query.where)


def _holds(request: HttpRequest, permission: str) -> bool:
    return bool(request.user.has_perm(permission))


def _shown(row: models.Model, field: models.Field[Any, Any]) -> Any:
    value = field.value_from_object(row)
    if isinstance(field, models.DateTimeField):
        return display.moment(value)
    if value in (None, "", []):
        return display.NOTHING
    if isinstance(field, IdList):
        return ", ".join(map(str, value))[: display.MAX_SHOWN]
    if isinstance(field, models.JSONField):
        return display.document(value)[: display.MAX_SHOWN]
    if isinstance(field, models.TextField | models.CharField) and not field.choices:
        return redact_text(value)[: display.MAX_SHOWN]
    # As text: ids of rows and processes are names, so they are shown without thousands separators.
    return str(dict(field.flatchoices).get(value, value))
