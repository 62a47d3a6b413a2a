"""The forms that ask before an operation: always for the reason, and for the further values it needs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from django import forms

from chainsched.admin.kit.schema_fields import DocumentField, collect, fields_of, initial_of
from chainsched.api import MAX_REASON
from chainsched.conf import get_config
from chainsched.domain.declarations import MAX_COUNT, MAX_PRIORITY
from chainsched.domain.inputs import OWN_INPUT
from chainsched.domain.redaction import redact
from chainsched.domain.routing import MAX_QUEUE_LENGTH, check_queue
from chainsched.exceptions import ChainschedError
from chainsched.models import Manifest
from chainsched.operations import Operation
from chainsched.registry import registry

MAX_DELAY = timedelta(days=366)


class ReasonForm(forms.Form):
    """Asks for the reason."""

    reason = forms.CharField(
        max_length=MAX_REASON,
        required=False,
        help_text="Kept in the history together with your name.",
        widget=forms.TextInput(attrs={"class": "vTextField"}),
    )

    def __init__(self, data: Any = None, *, rows: Sequence[Any], may_see_payloads: bool) -> None:
        super().__init__(data)
        self.rows = rows
        self.may_see_payloads = may_see_payloads

    def details(self) -> dict[str, Any]:
        """The answers, apart from the reason."""
        return {name: value for name, value in self.cleaned_data.items() if name != "reason"}


class NoteForm(ReasonForm):
    """Asks for the note that stays with a dead letter."""

    reason = forms.CharField(
        label="Note",
        max_length=MAX_REASON,
        help_text="Kept with the dead letter: how it was dealt with.",
        widget=forms.TextInput(attrs={"class": "vTextField"}),
    )


class LimitsForm(ReasonForm):
    """Asks for a group's limit, priority and queue."""

    max_active_jobs = forms.IntegerField(
        min_value=1,
        max_value=MAX_COUNT,
        required=False,
        help_text="How many jobs may be active at once. Leave it empty for no limit.",
    )
    priority = forms.IntegerField(min_value=0, max_value=MAX_PRIORITY, help_text="0 to 31; higher goes first.")
    queue = forms.CharField(
        required=False,
        max_length=MAX_QUEUE_LENGTH,
        help_text="The queue that workers take its jobs from, for manifests without one. Leave it empty for 'default'.",
    )
    field_order = ("max_active_jobs", "priority", "queue", "reason")

    def __init__(self, data: Any = None, *, rows: Sequence[Any], may_see_payloads: bool) -> None:
        super().__init__(data, rows=rows, may_see_payloads=may_see_payloads)
        self.initial = {name: getattr(rows[0], name) for name in ("max_active_jobs", "priority", "queue")}

    def clean_queue(self) -> str:
        """The name of a queue; empty for none of its own."""
        queue: str = self.cleaned_data["queue"]
        try:
            return check_queue(queue) if queue else ""
        except ValueError as error:
            raise forms.ValidationError(f"The name of a queue {error}.") from error


class TriggerForm(ReasonForm):
    """Asks for the delay and, for a single manifest, for the input."""

    delay = forms.IntegerField(
        label="Delay in seconds",
        min_value=0,
        max_value=int(MAX_DELAY.total_seconds()),
        required=False,
        help_text="Leave it empty to run now.",
    )
    input = DocumentField(
        required=False, label="Input as JSON", help_text="Leave it empty to use the manifest's own input."
    )
    field_order = ("delay", "input", "reason")

    def __init__(self, data: Any = None, *, rows: Sequence[Any], may_see_payloads: bool) -> None:
        super().__init__(data, rows=rows, may_see_payloads=may_see_payloads)
        if len(rows) > 1:
            del self.fields["input"]

    def clean_input(self) -> Any:
        """The input in its stored form, if the input type of the workflow accepts it."""
        value = self.cleaned_data["input"]
        return OWN_INPUT if value is None else _checked(self.rows[0], value)

    def details(self) -> dict[str, Any]:
        return {name: value for name, value in super().details().items() if value is not OWN_INPUT}


class ActivationForm(ReasonForm):
    """Asks for the input of a dormant child, with a field for each property of its type."""

    def __init__(self, data: Any = None, *, rows: Sequence[Any], may_see_payloads: bool) -> None:
        super().__init__(data, rows=rows, may_see_payloads=may_see_payloads)
        self.schema = _schema_of(rows[0])
        self.fields = {**fields_of(self.schema), **self.fields}
        self.initial = self._own_input(rows[0])

    def clean(self) -> dict[str, Any]:
        """The answers as one document, if the input type of the workflow accepts it."""
        document = collect(self.schema, self.cleaned_data)
        if not self.errors:
            document = _checked(self.rows[0], document)
        return {"reason": self.cleaned_data.get("reason", ""), "input": document}

    def _own_input(self, manifest: Manifest) -> dict[str, Any]:
        """The manifest's own input, for users who may see it, unless a part of it is redacted for them too."""
        own = manifest.input if self.may_see_payloads else None
        if redact(own) != own:
            return {}
        return initial_of(self.schema, own)


# By the names of the further values that an operation asks for.
FORMS: Mapping[tuple[str, ...], type[ReasonForm]] = {
    (): ReasonForm,
    ("delay", "input"): TriggerForm,
    ("input",): ActivationForm,
    ("max_active_jobs", "priority", "queue"): LimitsForm,
}


def form_of(operation: Operation) -> type[ReasonForm]:
    """The form to show before an operation is carried out."""
    return NoteForm if operation.needs_reason else FORMS[tuple(operation.asks)]


def _schema_of(manifest: Manifest) -> dict[str, Any]:
    """The JSON Schema of a manifest's input; an empty one, which allows any input, if the workflow is unknown here."""
    try:
        return registry.get(manifest.workflow).input_type.schema()
    except ChainschedError:
        return {}


def _checked(manifest: Manifest, value: Any) -> Any:
    try:
        json.dumps(value)
        return registry.get(manifest.workflow).input_type.dump(value, max_bytes=get_config().max_input_bytes)
    except ChainschedError as error:
        raise forms.ValidationError(list(getattr(error, "problems", ())) or str(error)) from error
