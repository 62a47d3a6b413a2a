"""Actions of operators: a page asks first, permissions are checked again for each row, and the history is written.

An action names an operation. Its first POST shows the question; the second, which has the answer and the number of
rows that was shown, carries the operation out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import unquote
from django.core.exceptions import BadRequest, PermissionDenied
from django.db import OperationalError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse

from chainsched.admin.kit.action_locations import EVERYWHERE, ON_THE_PAGE, ActionLocation, LocatedActions, action
from chainsched.admin.kit.forms import ReasonForm, form_of
from chainsched.admin.kit.page import ReadOnlyPage, may_be_key
from chainsched.exceptions import ChainschedError
from chainsched.operations import Instruction, Operation, apply_operation, operations_of

# The form has a hidden field for each row, and Django accepts 1,000 fields in a form.
MAX_ROWS = 500
MAX_NAMED = 20
PAGE_ACTION = f"{ActionLocation.CHANGE_FORM.value}-action"


@dataclass(frozen=True, slots=True)
class Question:
    """The content of the page that asks: the form, the number of rows, some of them, and the consequences.

    ``hidden`` are the names and values of hidden fields, by which the answer finds the rows again.
    """

    form: ReasonForm
    count: int
    named: Sequence[Any]
    hidden: Sequence[tuple[str, str]]
    consequences: Sequence[str] = ()


class OperatingPage(LocatedActions, ReadOnlyPage):
    """Gives a page the actions of its ``target`` in ``chainsched.operations``, and carries them out."""

    target = ""
    operations: Mapping[str, Operation] = {}
    max_named = MAX_NAMED
    checkbox_name = ACTION_CHECKBOX_NAME

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "target" in vars(cls):
            cls.operations = operations_of(cls.target)
            cls.actions = tuple(cls.operations)
            for operation in cls.operations.values():
                setattr(cls, operation.name, _action_for(operation))

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """The page of a row, or one of its actions.

        Django 6.1 would run the action inside a transaction around the whole request; the engine's own transactions
        are short.
        """
        if request.method == "POST" and object_id is not None and PAGE_ACTION in request.POST:
            return self._act_on_one(request, object_id)
        return super().changeform_view(request, object_id, form_url, extra_context)

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        """The page of a row, with a button for each action that fits it."""
        row = context.get("original")
        if row is not None:
            context["page_actions"] = [
                {"name": name, "label": getattr(function, "page_description", name)}
                for name, function in self.find_actions(request).items()
                if name in self.operations and self.is_offered(request, row, self.operations[name])
            ]
        return super().render_change_form(request, context, *args, **kwargs)

    def is_offered(self, request: HttpRequest, row: Any, operation: Operation) -> bool:
        """Whether the page of this row has a button for this operation."""
        return operation.is_fitting(row) and self.is_permitted(request, row, operation)

    def is_permitted(self, request: HttpRequest, row: Any, operation: Operation) -> bool:
        """Whether this user may do this operation on this row."""
        return bool(getattr(self, f"has_{operation.permission}_permission")(request, row))

    def response_action(self, request: HttpRequest, queryset: QuerySet[Any], *args: Any, **kwargs: Any) -> Any:
        """Run the action that was chosen in the list; refuses a selection of ids that no row can have."""
        chosen = request.POST.getlist(ACTION_CHECKBOX_NAME)
        if not all(may_be_key(self.opts.pk, key) for key in chosen):
            self.message_user(request, "Nothing was done: the selection names rows that do not exist.", messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())
        return super().response_action(request, queryset, *args, **kwargs)

    def operate(self, request: HttpRequest, rows: QuerySet[Any], name: str) -> HttpResponse | None:
        """Ask about the selected rows, or carry the operation out if the request has the answer."""
        operation = self.operations[name]
        chosen = list(rows.order_by("pk")[: MAX_ROWS + 1])
        if len(chosen) > MAX_ROWS:
            return self.operate_on_many(request, rows, name)
        if not chosen:
            self.message_user(request, "Nothing was done: the selection is empty.", messages.ERROR)
            return None
        form = self.form_for(request, operation, chosen)
        is_answered = "confirmed" in request.POST
        if is_answered and request.POST.get("count") != str(len(chosen)):
            self.message_user(
                request, "The selection has changed since it was shown; check it again.", messages.WARNING
            )
            return self._ask_about_all(request, chosen, name, self.form_for(request, operation, chosen, is_fresh=True))
        if not is_answered or not form.is_valid():
            return self._ask_about_all(request, chosen, name, form)
        self._carry_out(request, chosen, operation, form)
        return None

    def operate_on_many(self, request: HttpRequest, rows: QuerySet[Any], name: str) -> HttpResponse | None:
        """Refuse more rows than a form can name; a page that can process them overrides this."""
        message = f"Nothing was done: at most {MAX_ROWS} can be chosen at once. Narrow the list by its filters."
        self.message_user(request, message, messages.ERROR)
        return None

    def consequences(self, request: HttpRequest, rows: Sequence[Any], name: str) -> Sequence[str]:
        """Sentences about the consequences of this operation on these rows, for the page that asks."""
        return ()

    def _act_on_one(self, request: HttpRequest, object_id: str) -> HttpResponse:
        row = self.get_object(request, unquote(object_id))
        if not self.has_view_permission(request, row):
            raise PermissionDenied
        if row is None:
            return HttpResponseRedirect(request.get_full_path())
        if request.POST.getlist(ACTION_CHECKBOX_NAME) != [str(row.pk)]:
            raise BadRequest
        function = self.find_actions(request).get(request.POST[PAGE_ACTION])
        if function is None:
            raise PermissionDenied
        response = function(self, request, self.get_queryset(request).filter(pk=row.pk))
        return response if isinstance(response, HttpResponse) else HttpResponseRedirect(request.get_full_path())

    def form_for(
        self, request: HttpRequest, operation: Operation, rows: Sequence[Any], *, is_fresh: bool = False
    ) -> ReasonForm:
        """The form of the question, with the answer if the request has one."""
        data = request.POST if "confirmed" in request.POST and not is_fresh else None
        may_see = self.has_payloads_permission(request, rows[0])
        return form_of(operation)(data, rows=rows, may_see_payloads=may_see)

    def _ask_about_all(self, request: HttpRequest, rows: Sequence[Any], name: str, form: ReasonForm) -> HttpResponse:
        hidden = [(self.checkbox_name, str(row.pk)) for row in rows]
        consequences = self.consequences(request, rows, name)
        return self.ask(request, name, Question(form, len(rows), rows[: self.max_named], hidden, consequences))

    def ask(self, request: HttpRequest, name: str, question: Question) -> HttpResponse:
        """The page that asks before an operation is carried out."""
        operation = self.operations[name]
        is_on_page = PAGE_ACTION in request.POST
        context = {
            **self.admin_site.each_context(request),
            "title": operation.label,
            "opts": self.opts,
            "operation": operation,
            "form": question.form,
            "question": question,
            "unnamed": question.count - len(question.named),
            "action_field": PAGE_ACTION if is_on_page else "action",
            "action_name": name,
            "way_back": request.get_full_path(),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "chainsched/admin/confirm.html", context)

    def _carry_out(self, request: HttpRequest, rows: Sequence[Any], operation: Operation, form: ReasonForm) -> None:
        """Row by row: each row has an outcome and, at once, a history entry of its own."""
        instruction = Instruction(request.user, form.cleaned_data["reason"], form.details())
        done, without_effect, refused = Counter[str](), Counter[str](), Counter[str]()
        for row in rows:
            if not self.is_permitted(request, row, operation):
                refused["not permitted"] += 1
                continue
            try:
                outcome = apply_operation(operation, row, instruction)
                (done if outcome.has_effect else without_effect)[outcome.in_words] += 1
            except ChainschedError as error:
                refused[str(error)] += 1
            except OperationalError:
                refused["the database is busy with this row; try again"] += 1
        self._report(request, operation, done, messages.SUCCESS)
        self._report(request, operation, without_effect, messages.WARNING)
        self._report(request, operation, refused, messages.ERROR)

    def _report(self, request: HttpRequest, operation: Operation, outcomes: Counter[str], level: int) -> None:
        for outcome, number in outcomes.most_common(5):
            noun = self.opts.verbose_name if number == 1 else self.opts.verbose_name_plural
            self.message_user(request, f"{operation.label}: {number} {noun}: {outcome.rstrip('.')}.", level)


def _action_for(operation: Operation) -> Callable[..., HttpResponse | None]:
    """The admin action that asks about an operation and carries it out."""

    def act(page: OperatingPage, request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse | None:
        return page.operate(request, rows, operation.name)

    act.__name__ = operation.name
    act.__doc__ = operation.summary
    mark = action(
        permission=operation.permission,
        description=operation.label,
        plural=operation.plural,
        location=EVERYWHERE if operation.plural else ON_THE_PAGE,
    )
    return mark(act)
